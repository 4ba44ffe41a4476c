"""Requests for tools: household requests with varied tool names, and requests for tools that no training text names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from . import pools
from .household import ACTIONS as _PLAIN_ACTIONS
from .household import Slots, number, room
from .phrasing import more, worded
from .samples import Draw, Tool, lines, pool, words
from .texts import TRAINING, read_texts

_TEXTS = read_texts("actions")

ACTIONS = {
    kind: replace(
        action,
        asks=more(action.asks, TRAINING["asks"][kind]),
        amends=more(action.amends, TRAINING["amends"][kind]) if action.amends else None,
    )
    for kind, action in _PLAIN_ACTIONS.items()
}

_VERBS = words(_TEXTS["verbs"])
_NOUNS = words(_TEXTS["nouns"])


@dataclass(frozen=True, slots=True)
class Detail:
    """One parameter of a made-up tool: its possible names, phrases that state its value, and a maker of values."""

    names: tuple[str, ...]
    phrases: tuple[str, ...]
    make: Callable[[Draw], Any]
    type: str = "string"


DETAILS: tuple[Detail, ...] = (
    Detail(
        ("{noun}_id", "id", "{noun}_number", "number", "code", "reference", "{noun}Id", "{noun}_code"),
        ("{v}", "number {v}", "with number {v}", "with the code {v}", "{v}", "id {v}"),
        lambda draw: draw.open(pools.code),
    ),
    Detail(
        ("name", "person", "customer", "user", "guest", "owner", "for_name"),
        ("for {v}", "of {v}", "for {v}", "in the name of {v}"),
        pools.name,
    ),
    Detail(
        ("city", "location", "place", "town", "destination"), ("in {v}", "for {v}", "near {v}", "to {v}"), pools.city
    ),
    Detail(("day", "date", "weekday"), ("on {v}", "for {v}", "on {v}"), lambda draw: draw.any(pools.WEEKDAYS)),
    Detail(("time", "hour", "start", "at"), ("at {v}", "for {v}", "from {v}"), lambda draw: draw.open(pools.clock)),
    Detail(
        ("count", "amount", "people", "quantity", "persons"),
        ("for {v} people", "times {v}", "with {v} people", "for {v}"),
        lambda draw: number(draw, 2, 60, "count"),
        "integer",
    ),
    Detail(("email", "mail", "address"), ("for {v}", "with the email {v}", "and mail {v}"), pools.email),
    Detail(("room", "area", "zone"), ("in the {v}", "for the {v}"), lambda draw: room(draw)),
    Detail(("color", "colour"), ("in {v}", "in the colour {v}"), lambda draw: draw.pick(pools.COLOURS)),
)
_DESCRIBE = pool(
    (
        "{Verb} a {noun}.",
        "{Verb} the {noun}.",
        "{Verb} one {noun} by its data.",
        "{Verb} a {noun} in the system.",
        "Use this to {verb} a {noun}.",
        "{Verb} any {noun}.",
        "",
    )
)
_FRAMES = lines(_TEXTS["frames"])


@dataclass(frozen=True, slots=True)
class Order:
    """One request for a tool: its text, the tool's schema, the expected arguments, and the kind of action.

    `done` is the sentence that reports success. `values` has the value of each slot, and `params` the parameter's name
    for each slot. All three are empty if the tool is made up.
    """

    text: str
    tool: Tool
    arguments: Slots
    done: str
    kind: str
    values: Slots
    params: dict[str, str]

    @property
    def name(self) -> str:
        """Return the tool's name."""
        return str(self.tool["function"]["name"])


def schema(name: str, description: str, properties: Slots, required: list[str]) -> Tool:
    """Return a tool's schema in the form that OpenAI clients send."""
    function: Tool = {"name": name}
    if description:
        function["description"] = description
    function["parameters"] = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": function}


def household(draw: Draw, kind: str | None = None, *, renamed: bool = False, framing: float = 0.45) -> Order:
    """Draw a household request and a tool for it. If `renamed`, the tool's name and sometimes a parameter are made up.

    `framing` is the probability of polite words around the request.
    """
    kind = kind or draw.any(tuple(ACTIONS))
    action = ACTIONS[kind]
    values = action.fill(draw)
    params = {slot: draw.any(spec.names) for slot, spec in action.slots.items()}
    if renamed and params and draw.chance(0.4):
        slot = draw.any(tuple(params))
        params[slot] = draw.open(pools.pseudo_word)
    properties: Slots = {}
    for slot, spec in action.slots.items():
        properties[params[slot]] = {"type": spec.type} | ({"enum": list(spec.enum)} if spec.enum else {})
    required = [params[slot] for slot, spec in action.slots.items() if not spec.optional]
    text = worded(draw, action.asks, framing).format(**values)
    arguments = {params[slot]: value for slot, value in values.items()}
    if "day" in params and draw.chance(0.4):
        values = values | {"day": draw.any(pools.WEEKDAYS)}
        arguments[params["day"]] = values["day"]
        text = f"{text.rstrip('?')} on {values['day']}"
    name = draw.any(action.names)
    name = _strange(draw, name) if renamed else name
    tool = schema(name, draw.any(action.descriptions), properties, required)
    done = action.done.format(**values)
    return Order(text, tool, arguments, done, kind, values, params)


def amended(draw: Draw, order: Order) -> Order | None:
    """Draw a follow-up that changes one value of an order, as in 'and in the bedroom'. Return None if there is none."""
    action = ACTIONS[order.kind]
    if action.amends is None or not draw.offers(action.amends):
        return None
    template = worded(draw, action.amends, 0.3)
    fresh = action.fill(draw)
    values = {
        slot: fresh[slot] if "{" + slot + "}" in template else old
        for slot, old in order.values.items()
        if slot in fresh
    }
    arguments = {order.params[slot]: value for slot, value in values.items()}
    return Order(
        template.format(**values), order.tool, arguments, action.done.format(**values), order.kind, values, order.params
    )


def _spell(draw: Draw, verb: str, noun: str) -> str:
    head = verb.replace(" ", "_")
    style = draw.random.random()
    if style < 0.65:
        return f"{head}_{noun}"
    if style < 0.8:
        return f"{noun}_{head}"
    return verb.title().replace(" ", "")[0].lower() + verb.title().replace(" ", "")[1:] + noun.capitalize()


def _strange(draw: Draw, usual: str) -> str:
    """Return a tool's name with a made-up word added, or a made-up name.

    The model can learn such a name only from the list of tools.
    """
    word = draw.open(pools.pseudo_word)
    if draw.chance(0.3):
        return word
    return f"{usual}_{word}" if draw.chance(0.5) else f"{word}_{usual}"


def _noun(draw: Draw) -> str:
    return draw.open(pools.pseudo_word) if draw.chance(0.45) else str(draw.pick(_NOUNS))


def unseen(draw: Draw) -> Order:
    """Draw a request for a made-up tool, with random verb, noun and parameters. No other text describes such a tool."""
    verb, noun = draw.open(pools.pseudo_word) if draw.chance(0.25) else str(draw.pick(_VERBS)), _noun(draw)
    details = draw.random.sample(DETAILS, draw.any((1, 1, 2, 2, 3)))
    if draw.chance(0.5) and DETAILS[0] not in details:
        details[0] = DETAILS[0]
    details.sort(key=lambda detail: detail is not DETAILS[0])
    parts = [f"{verb} {draw.any(('the ', 'the ', 'a ', ''))}{noun}"]
    properties: Slots = {}
    arguments: Slots = {}
    required: list[str] = []
    for detail in details:
        param = draw.any(detail.names).format(noun=noun)
        if param in properties:
            continue
        given = detail.make(draw)
        kind = detail.type
        optional = bool(required) and draw.chance(0.25)
        properties[param] = {"type": kind}
        if optional:
            continue
        if kind == "string" and str(given).isdigit() and str(given)[0] != "0" and draw.chance(0.4):
            given, properties[param] = int(given), {"type": "integer"}
        arguments[param] = given
        required.append(param)
        parts.append(draw.any(detail.phrases).format(v=given))
    request = " ".join(parts)
    text = str(draw.pick(_FRAMES)).format(req=request)
    description = str(draw.pick(_DESCRIBE)).format(verb=verb, Verb=verb.capitalize(), noun=noun)
    tool = schema(_spell(draw, verb, noun), description, properties, required)
    return Order(text, tool, arguments, "", "unseen", {}, {})
