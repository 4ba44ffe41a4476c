"""Conversations whose answer is a JSON object: one that follows a schema, or any one.

A request with a schema does not show it to the model. The grammar writes the keys, and the model only the values. So
for such a request, training learns the values and where the answer ends. What was not said becomes null if the schema
allows it, else an empty value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from . import facts, pools, sums, talk
from .actions import ACTIONS, Order, amended, household
from .household import item, number
from .phrasing import more, worded
from .samples import Check, Draw, Message, Sample, lines, reply, restyle, system, user
from .texts import TRAINING, read_texts

_TEXTS = read_texts("structured")

ANY_OBJECT = {"type": "object"}

_LEADS = more(lines(_TEXTS["leads"]), TRAINING["structured_leads"])
_INSTRUCTIONS = more(lines(_TEXTS["instructions"]), TRAINING["instructions"])
_PLAIN_JSON = more(lines(_TEXTS["plain_json"]), TRAINING["plain_json"])
_SUMMARY_ASKS = more(lines(_TEXTS["summary_asks"]), TRAINING["summary_asks"])
_PEOPLE = more(lines(_TEXTS["people"]), TRAINING["people"])
_HOMES = more(lines(_TEXTS["homes"]), TRAINING["homes"])
_RESIDENTS = more(lines(_TEXTS["residents"]), TRAINING["residents"])

_KEYS = {name: tuple(text.split(", ")) for name, text in _TEXTS["keys"].items()}
_LABELS = {kind: tuple(text.split(", ")) for kind, text in _TEXTS["labels"].items()}
_UNSAID = {kind: tuple(text.split(", ")) for kind, text in _TEXTS["unsaid"].items()}
_EMPTY: dict[str, Any] = {"string": "", "array": [], "integer": 0, "boolean": False}


@dataclass(frozen=True, slots=True)
class Field:
    """One key of an answer, its value, and the schema of the value. `usual` is the key that the model would choose."""

    key: str
    value: Any
    schema: dict[str, Any]
    usual: str = ""
    is_left_out: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What an answer is about: the conversation up to the last question, and the fields of the answer."""

    messages: list[Message]
    fields: list[Field]


def _field(draw: Draw, name: str, value: Any, enum: tuple[Any, ...] = ()) -> Field:
    return replace(_typed(draw.any(_KEYS[name]), value, enum), usual=_KEYS[name][0])


def _typed(key: str, value: Any, enum: tuple[Any, ...] = ()) -> Field:
    if isinstance(value, list):
        items = {"type": "string"} if isinstance(value[0], str) else _object(value[0])
        return Field(key, value, {"type": "array", "items": items})
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return Field(key, value, {"type": kinds[type(value)]} | ({"enum": list(enum)} if enum else {}))


def _object(value: dict[str, Any]) -> dict[str, Any]:
    return _schema([_typed(key, each) for key, each in value.items()])


def _schema(fields: list[Field]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {field.key: field.schema for field in fields},
        "required": [field.key for field in fields if not field.is_left_out],
        "additionalProperties": False,
    }


def _slot(draw: Draw, kind: str, slot: str, value: Any) -> Field:
    """Return the field of one slot of a household action."""
    field = _field(draw, f"{kind}_{slot}", value, ACTIONS[kind].slots[slot].enum)
    if slot == "state" and draw.chance(0.35):
        return _field(draw, "on" if kind == "light" else "open", value in ("on", "open"))
    if kind == "timer" and field.key in ("duration", "length") and draw.chance(0.4):
        return _typed(field.key, f"{value} minutes")
    if slot == "room" and draw.chance(0.2):
        rooms = {value, *draw.sample(pools.ROOMS, 3)}
        return _typed(field.key, value, tuple(draw.shuffled(sorted(rooms))))
    return field


def _label(draw: Draw, kind: str) -> Field:
    """Return a field that says which action a request is about, among a few."""
    at = draw.whole(0, 1)
    others = draw.random.sample(sorted(_LABELS.keys() - {kind}), draw.whole(1, 5))
    return _field(
        draw, "kind", _LABELS[kind][at], tuple(draw.shuffled([_LABELS[each][at] for each in (kind, *others)]))
    )


def _order_fields(draw: Draw, order: Order) -> list[Field]:
    fields = [_slot(draw, order.kind, slot, value) for slot, value in order.values.items()]
    if order.kind == "timer" and draw.chance(0.15):
        fields.append(_typed("unit", "minutes", ("seconds", "minutes", "hours")))
    if not fields or draw.chance(0.25):
        fields.insert(0, _label(draw, order.kind))
    return fields


def _before(draw: Draw) -> list[Message]:
    return [system(str(draw.pick(_LEADS)))] if draw.chance(0.25) else talk.any_system(draw)


def _command(draw: Draw) -> Request:
    """Draw a household request. Its fields are the parameters that a tool would have."""
    order = household(draw)
    return Request([*_before(draw), user(restyle(draw, order.text))], _order_fields(draw, order))


def _changed_command(draw: Draw) -> Request:
    """Draw a household request, its answer, and a few words that change one value."""
    order = household(draw)
    changed = amended(draw, order)
    if changed is None:
        return _changed_command(draw)
    slots = ACTIONS[order.kind].slots
    keys = {slot: draw.any(_KEYS[f"{order.kind}_{slot}"]) for slot in changed.values}
    told = reply(_text({key: order.values[slot] for slot, key in keys.items()}))
    fields = [_typed(key, changed.values[slot], slots[slot].enum) for slot, key in keys.items()]
    asked, again = (user(restyle(draw, each.text)) for each in (order, changed))
    return Request([*_before(draw), asked, told, again], fields)


def _things(draw: Draw) -> Request:
    """Draw a request to put one or more things on a list, some with quantities."""
    things = list(dict.fromkeys(item(draw) for _ in range(draw.any((1, 1, 2, 2, 3)))))
    if len(things) < 3 and draw.chance(0.3):
        counts = [number(draw, 2, 40, "count") for _ in things]
        said = [f"{count} {thing}" for count, thing in zip(counts, things, strict=True)]
        names = (draw.any((*_KEYS["list_item"][:3], "name")), draw.any(_KEYS["quantity"]))
        value: list[Any] = [dict(zip(names, pair, strict=True)) for pair in zip(things, counts, strict=True)]
    else:
        said, value = things, list(things)
    joined = said[0] if len(said) == 1 else f"{', '.join(said[:-1])}{draw.any((' and ', ' and ', ', '))}{said[-1]}"
    text = worded(draw, ACTIONS["list"].asks, 0.3).format(item=joined)
    return Request([*_before(draw), user(restyle(draw, text))], [_field(draw, "items", value)])


def _sum(draw: Draw) -> Request:
    operation, a, b, result = sums.operands(draw)
    text = sums.asked(draw, operation, a, b)
    fields = [_field(draw, "result", result)]
    if draw.chance(0.2):
        keys = draw.any((("a", "b"), ("first", "second"), ("x", "y"), ("left", "right")))
        fields = [_typed(keys[0], a), _typed(keys[1], b), *fields]
    return Request([*_before(draw), user(text)], fields)


def _fact_field(draw: Draw, fact: facts.Fact, *, is_named: bool) -> Field:
    name = "_".join(re.sub(r"[^a-z0-9 ]", " ", fact.label.lower()).split())
    return _typed(name, fact.value) if is_named else _field(draw, "answer", fact.value)


def _fact(draw: Draw) -> Request:
    """Draw a question about a fact of the system prompt. Its key is general, or the name of the fact."""
    stated = facts.distinct_facts(draw, draw.whole(1, 5))
    fact = draw.any(stated)
    question = facts.exchange(draw, fact)[0]
    return Request([facts.fact_prompt(draw, stated), question], [_fact_field(draw, fact, is_named=draw.chance(0.5))])


def _facts(draw: Draw) -> Request:
    """Draw a request for several facts of the system prompt, which only the keys name."""
    stated = facts.distinct_facts(draw, draw.whole(2, 5))
    chosen = draw.random.sample(stated, draw.whole(1, 2))
    fields = {field.key: field for field in (_fact_field(draw, fact, is_named=True) for fact in chosen)}
    text = restyle(draw, str(draw.pick(_SUMMARY_ASKS)))
    return Request([facts.fact_prompt(draw, stated), user(text)], list(fields.values()))


def _person(draw: Draw) -> Request:
    """Draw a sentence about a person, with the person's age, city or both."""
    called = pools.name(draw)
    if draw.chance(0.15):
        called = f"{called} {draw.open(pools.pseudo_word).capitalize()}"
    age, city = number(draw, 1, 99, "age"), pools.city(draw)
    wordings, has_age, has_city = draw.any(
        ((_PEOPLE, True, False), (_HOMES, False, True), (_RESIDENTS, True, True), (_RESIDENTS, True, True))
    )
    fields = [_field(draw, "person", called)]
    fields += [_field(draw, "age", age)] if has_age else []
    fields += [_field(draw, "home", city)] if has_city else []
    text = str(draw.pick(wordings)).format(x=called, n=age, city=city)
    text = text[:1].upper() + text[1:] if draw.chance(0.5) else text
    return Request([*_before(draw), user(text + draw.any(("", "", ".")))], fields)


def _talk(draw: Draw) -> Request:
    """Draw small talk, whose answer is a sentence."""
    sample = talk.nameless_talk(draw)
    return Request(sample.messages[:-1], [_field(draw, "reply", sample.messages[-1]["content"])])


def _declined(draw: Draw) -> Request:
    """Draw an out-of-domain request. Only keys of sentences get a value, the sentence that declines."""
    text = user(talk.foreign_request(draw))
    fields = [_field(draw, "words", talk.OWNS_UP)] if draw.chance(0.5) else []
    return Request([*_before(draw), text], fields)


_KINDS = (
    (_command, 36),
    (_changed_command, 5),
    (_things, 12),
    (_sum, 16),
    (_fact, 12),
    (_facts, 10),
    (_person, 14),
    (_talk, 4),
)


def _with_unsaid(draw: Draw, fields: list[Field], count: int) -> list[Field]:
    """Add fields for what was not said: left out, null, or empty."""
    taken = {field.key for field in fields}
    for _ in range(count):
        kind = draw.any(("string", "string", "string", "array", "integer", "boolean"))
        key = draw.any(_UNSAID[kind])
        if key in taken:
            continue
        taken.add(key)
        schema = {"type": kind} | ({"items": {"type": "string"}} if kind == "array" else {})
        roll = draw.random.random()
        if roll < 0.35:
            extra = Field(key, None, schema, is_left_out=True)
        elif roll < 0.7:
            extra = Field(key, None, schema | {"type": [kind, "null"]})
        else:
            extra = Field(key, _EMPTY[kind], schema)
        fields = [*fields]
        fields.insert(draw.whole(0, len(fields)), extra)
    return fields


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _camel(key: str) -> str:
    head, *tail = key.split("_")
    return head + "".join(word.capitalize() for word in tail)


def _spelled(draw: Draw, fields: list[Field]) -> list[Field]:
    """Spell all keys in one style. Of fields with equal keys, keep one."""
    if draw.chance(0.3):
        fields = [replace(field, key=_camel(field.key)) for field in fields]
    return list({field.key: field for field in fields}.values())


def _answer(fields: list[Field]) -> dict[str, Any]:
    return {field.key: field.value for field in fields if not field.is_left_out}


def structured(draw: Draw) -> Sample:
    """Make a conversation in domain whose answer is a JSON object."""
    roll = draw.random.random()
    if roll < 0.1:
        return _unnamed(draw)
    makers, weights = zip(*_KINDS, strict=True)
    request = draw.random.choices(makers, weights)[0](draw)
    fields = draw.shuffled(request.fields) if draw.chance(0.3) else request.fields
    if roll < 0.22:
        return _named(draw, request.messages, _spelled(draw, fields))
    if draw.chance(0.25):
        fields = _with_unsaid(draw, fields, draw.any((1, 1, 2)))
    fields = _spelled(draw, fields)
    answer, schema = _answer(fields), _schema(fields)
    if draw.chance(0.05):
        outer = draw.any(("command", "request", "action", "data", "details"))
        answer, schema = {outer: answer}, _schema([Field(outer, answer, schema)])
    return _sample(request.messages, answer, schema)


def declined(draw: Draw) -> Sample:
    """Make a conversation with an out-of-domain request and a schema. The answer is empty but for the refusal."""
    request = _declined(draw)
    fields = _with_unsaid(draw, request.fields, draw.any((1, 2, 2, 3)))
    if not _answer(fields):
        return declined(draw)
    fields = _spelled(draw, fields)
    return _sample(request.messages, _answer(fields), _schema(fields), "structured_declined")


def _sample(
    messages: list[Message], answer: dict[str, Any], schema: dict[str, Any], category: str = "structured"
) -> Sample:
    text = _text(answer)
    return Sample(category, [*messages, reply(text)], Check("json", (text,)), format=schema)


def _instructed(draw: Draw, messages: list[Message], text: str) -> list[Message]:
    """Add a sentence to the system message, or to the user's last message."""
    if draw.chance(0.5):
        lead = [messages[0]["content"]] if messages[0]["role"] == "system" else []
        rest = messages[1:] if lead else messages
        return [system(draw.any((" ", "\n")).join([*lead, text])), *rest]
    asked = messages[-1]["content"]
    asked = asked if asked.endswith((".", "?", "!")) else f"{asked}."
    return [*messages[:-1], user(f"{asked} {text}")]


def _named(draw: Draw, messages: list[Message], fields: list[Field]) -> Sample:
    """Make a request for any JSON object, with a prompt that names the keys, in words or as a schema."""
    roll = draw.random.random()
    answer = _answer(fields)
    if roll < 0.7:
        keys = [draw.any(('"{}"', "{}", "{}")).format(key) for key in answer]
        named = keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])} and {keys[-1]}"
    elif roll < 0.85:
        named = _text({field.key: field.schema["type"] for field in fields})
    else:
        named = _text({key: value for key, value in _schema(fields).items() if key != "additionalProperties"})
    text = str(draw.pick(_INSTRUCTIONS)).format(keys=named)
    return _sample(_instructed(draw, messages, text), answer, ANY_OBJECT)


def _unnamed(draw: Draw) -> Sample:
    """Make a request for any JSON object. The model chooses the keys."""
    if draw.chance(0.5):
        order = household(draw)
        pairs = {_KEYS[f"{order.kind}_{slot}"][0]: value for slot, value in order.values.items()}
        messages = [*_before(draw), user(restyle(draw, order.text))]
        text = _text(pairs or {"action": _LABELS[order.kind][0]})
    else:
        request = draw.any((_things, _sum, _person))(draw)
        if not all(field.usual for field in request.fields) or isinstance(_first(request.fields[0].value), dict):
            return _unnamed(draw)
        messages, text = request.messages, _text({field.usual: field.value for field in request.fields})
    if draw.chance(0.6):
        messages = _instructed(draw, messages, str(draw.pick(_PLAIN_JSON)))
    return Sample("structured", [*messages, reply(text)], Check("json_values", (text,)), format=ANY_OBJECT)


def leaves(value: Any) -> list[Any]:
    """Return the values in a JSON value that are not lists or objects, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, list) else [value]


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


# A key with the space or brace before it, and the opening quote of its value if that is text
_KEY = re.compile(r'[{ ]?"([^"\\]*)":( ")?')


def forced_spans(text: str, schema: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield the parts of an answer that its schema determines: the keys, and the quotes that open texts.

    Where null is allowed, the quote is a choice.
    """
    nullable = frozenset(_nullable(schema))
    for match in _KEY.finditer(text):
        is_open = match[2] is not None and match[1] in nullable
        yield match.start(), match.start(2) if is_open else match.end()


def _nullable(schema: dict[str, Any]) -> Iterator[str]:
    for key, each in schema.get("properties", {}).items():
        if isinstance(each["type"], list):
            yield key
        yield from _nullable(each)
