"""Conversations with tools: calls, parallel calls, results in words, and requests that no offered tool serves."""

from __future__ import annotations

import json
from typing import Any

from . import facts, pools, sums, talk
from .actions import ACTIONS, Order, amended, household, unseen
from .phrasing import framed, is_order, more, worded
from .samples import Check, Draw, Message, Sample, Tool, lines, reply, restyle, user
from .texts import TRAINING, read_texts

_TEXTS = read_texts("tools")

NO_TOOL = "I have no tool for that here."

_JOIN = ("{a} and {b}", "{a}, and {b}", "{a} and then {b}", "{a} and also {b}", "{a}, then {b}")
_MORE_JOINS = (
    "{a} and {b}",
    "{a} and {b}",
    "{a} and {b}",
    "{a}, {b}",
    "{a}, and {b}",
    "{a}, then {b}",
    "{a}, and then {b}",
    "{a} then {b}",
    "{a}, also {b}",
    "{a}, and also {b}",
    "{a} also {b}",
    "{a} as well as {b}",
    "{a} plus {b}",
    "{a}, plus {b}",
    "{a} & {b}",
    "{a}; {b}",
    "{a}; also {b}",
    "{a}. {B}",
    "{a}. {B}",
    "{a}. {B}.",
    "{a}. And {b}",
    "{a}. Also {b}",
    "{a}. Also, {b}",
    "{a}. Then {b}",
    "{a}. After that {b}",
    "{a}. Oh, and {b}",
    "{a}. Next, {b}",
    "{a}! {B}!",
    "{a}, oh and {b}",
    "{a} and after that {b}",
    "{a} and afterwards {b}",
    "{a}, afterwards {b}",
    "{a} and please {b}",
    "{a}, and please also {b}",
    "{a} and, while you are at it, {b}",
    "{a} and at the same time {b}",
    "{a} and next {b}",
    "{a} and finally {b}",
    "first {a}, then {b}",
    "first {a} and then {b}",
    "two things: {a} and {b}",
    "I need two things: {a}, and {b}",
    "both please: {a} and {b}",
    "do two things for me: {a} and {b}",
    "{a}, but also {b}",
    "{a}, next {b}",
    "{a}, followed by this: {b}",
    "when you {a}, also {b}",
)
# Kinds with requests that are easily confused.
_RELATED = (
    ("timer", "alarm", "remind", "clock"),
    ("light", "dim", "colour"),
    ("dim", "volume", "heating"),
    ("light", "blinds", "heating", "colour"),
    ("music", "volume", "pause"),
    ("list", "remind", "call"),
    ("weather", "heating", "clock"),
    ("music", "call", "list"),
)
_WHAT_ADDED = more(lines(_TEXTS["what_added"]), TRAINING["what_added"])
_WHAT_DONE = more(lines(_TEXTS["what_done"]), TRAINING["what_done"])
_ERRORS = lines(_TEXTS["errors"])
_RESULT_KEYS = lines(_TEXTS["result_keys"])
_STATES = lines(_TEXTS["states"])


def _call(*orders: Order) -> Message:
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": o.name, "arguments": o.arguments}}
        for i, o in enumerate(orders, 1)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _result(content: Any, order: Order) -> Message:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return {"role": "tool", "name": order.name, "content": text}


def _expect(*orders: Order) -> Check:
    return Check("calls", calls=tuple({"name": o.name, "arguments": o.arguments} for o in orders))


def _order(draw: Draw, unseen_share: float = 0.15) -> Order:
    return unseen(draw) if draw.chance(unseen_share) else household(draw)


def _offer(draw: Draw, *orders: Order, most: int = 2) -> list[Tool]:
    """Return the tools of these orders among other tools, in random order.

    Each has a different name. Only one household tool serves each kind of action.
    """
    tools = {order.name: order.tool for order in orders}
    kinds = {order.kind for order in orders} - {"unseen"}
    verbs = {order.name for order in orders}
    for _ in range(draw.any(tuple(range(most + 1)))):
        near = _related(kinds) if draw.chance(0.35) else []
        other = household(draw, draw.any(near)) if near else _order(draw, 0.2)
        if other.kind not in kinds and other.name not in verbs:
            tools.setdefault(other.name, other.tool)
            kinds |= {other.kind} - {"unseen"}
    return draw.shuffled(list(tools.values()))


def _related(kinds: set[str]) -> list[str]:
    return sorted({near for group in _RELATED if kinds & set(group) for near in group} - kinds)


def _prefix(draw: Draw) -> list[Message]:
    if draw.chance(0.1):
        return [facts.fact_prompt(draw, facts.distinct_facts(draw, draw.whole(1, 4)))]
    return talk.any_system(draw)


def exchange(draw: Draw, order: Order) -> list[Message]:
    """Make an exchange: a request, the call of its tool, the result, and the assistant's report."""
    content, answer, _ = _outcome(draw, order)
    return [user(restyle(draw, order.text)), _call(order), _result(content, order), reply(answer)]


def errands(draw: Draw) -> Sample:
    """Make a conversation with up to three requests, each for a different offered tool."""
    orders = {order.kind if order.kind != "unseen" else order.name: order for order in (_order(draw) for _ in range(3))}
    if len({order.name for order in orders.values()}) < len(orders):
        return errands(draw)
    messages = _prefix(draw)
    for order in draw.shuffled(list(orders.values())):
        messages += exchange(draw, order)
    tools = draw.shuffled([order.tool for order in orders.values()])
    return Sample("sessions", messages, Check("exact", (messages[-1]["content"],)), tools)


def busy(draw: Draw) -> Sample:
    """Make a conversation with several requests for the same tools.

    Some requests ask for two things at once. Some need a tool that is not offered.
    """
    orders = {order.kind: order for order in (household(draw) for _ in range(draw.any((2, 3, 3))))}
    if len(orders) < 2:
        return busy(draw)
    messages = _prefix(draw)
    for _ in range(draw.whole(3, 5)):
        turn, roll = draw.random.sample(list(orders.values()), 2), draw.random.random()
        first, second = (amended_twin(draw, order) or order for order in turn)
        if roll < 0.3:
            missing = _order(draw, 0.1)
            if missing.kind not in orders:
                messages += [user(restyle(draw, missing.text)), reply(NO_TOOL)]
        elif roll < 0.75:
            told = (_small_record(draw), _small_record(draw))
            results = [_result(record[0], order) for record, order in zip(told, (first, second), strict=True)]
            answer = reply(f"{told[0][1]} {told[1][1]}")
            text = _joined(draw, first.text, second.text)
            messages += [user(restyle(draw, text)), _call(first, second), *results, answer]
        else:
            messages += exchange(draw, first)
    if not messages or messages[-1]["role"] != "assistant":
        messages += exchange(draw, next(iter(orders.values())))
    tools = draw.shuffled([order.tool for order in orders.values()])
    return Sample("sessions", messages, Check("exact", (messages[-1]["content"],)), tools)


def single_call(draw: Draw) -> Sample:
    """Make a conversation with one household request and one call."""
    return _single(draw, household(draw), "tool_calls")


def matching(draw: Draw) -> Sample:
    """Make a conversation with one request and one to three tools. In half of the cases, one of the tools fits."""
    orders = list({order.kind: order for order in (household(draw) for _ in range(draw.any((2, 2, 3, 3, 4))))}.values())
    if len(orders) < 2:
        return matching(draw)
    asked, *others = orders
    before = _prefix(draw) if draw.chance(0.3) else []
    before.append(user(restyle(draw, asked.text)))
    if draw.chance(0.5):
        others[0] = asked
        answer, check, category = _call(asked), _expect(asked), "tool_calls"
    else:
        answer, check, category = reply(NO_TOOL), Check("exact", (NO_TOOL,)), "no_tool"
    return Sample(category, [*before, answer], check, draw.shuffled([order.tool for order in others]))


def unseen_call(draw: Draw) -> Sample:
    """Make a conversation with one request for a tool that training does not name, and one call."""
    order = household(draw, renamed=True) if draw.chance(0.4) else unseen(draw)
    return _single(draw, order, "unseen_tools")


def _single(draw: Draw, order: Order, category: str) -> Sample:
    before = _prefix(draw) + (talk.opening_turns(draw) if draw.chance(0.1) else [])
    messages = [*before, user(restyle(draw, order.text)), _call(order)]
    return Sample(category, messages, _expect(order), _offer(draw, order))


def parallel_calls(draw: Draw) -> Sample:
    """Make a conversation with one request for two things, and two calls."""
    framing = draw.any((0.0, 0.0, 0.0, 0.45)) if draw.split == "train" else 0.0
    first, second = household(draw, framing=framing), household(draw, framing=framing)
    if second.kind == first.kind or (draw.split == "train" and draw.chance(0.07)):
        second = amended_twin(draw, first) or second
    if second.name == first.name and second.tool is not first.tool:
        return parallel_calls(draw)
    text = _joined(draw, first.text, second.text)
    if draw.split == "train" and not framing:
        text = framed(draw, text, 0.35, orderly=is_order(first.text) and is_order(second.text))
    messages = [*_prefix(draw), user(restyle(draw, text)), _call(first, second)]
    return Sample("tool_calls", messages, _expect(first, second), _offer(draw, first, second, most=2))


def _joined(draw: Draw, first: str, second: str) -> str:
    a, b = first.rstrip("?.").removesuffix(" please"), second.rstrip("?.")
    join = str(draw.any(_JOIN if draw.split != "train" or draw.chance(0.5) else _MORE_JOINS))
    return join.format(a=a, b=b, B=b[:1].upper() + b[1:])


def amended_twin(draw: Draw, order: Order) -> Order | None:
    """Draw a second order for the same tool with other values; None if the tool has no parameters."""
    action = ACTIONS[order.kind]
    if not action.slots:
        return None
    values = action.fill(draw)
    arguments = {order.params[slot]: value for slot, value in values.items()}
    text = worded(draw, action.asks, 0.1).format(**values)
    return Order(text, order.tool, arguments, action.done.format(**values), order.kind, values, order.params)


def _success(draw: Draw, order: Order) -> tuple[Any, str, tuple[str, ...]]:
    """Draw a tool's result, the sentence that reports it, and the texts that this sentence must contain."""
    if order.kind == "weather":
        degrees, sky, city = draw.whole(-15, 38), str(draw.pick(pools.WEATHER)), order.values["city"]
        key = draw.any(("temperature", "temp", "degrees"))
        content = {"city": city, key: degrees, draw.any(("condition", "sky", "weather")): sky}
        if draw.chance(0.4):
            del content["city"]
        return content, f"In {city} it is {degrees} degrees, {sky}.", (city, str(degrees), sky)
    if order.kind == "clock":
        now = draw.open(pools.clock)
        return {draw.any(("time", "now", "clock")): now}, f"It is {now}.", (now,)
    if order.kind == "unseen" and draw.chance(0.85):
        return _record(draw)
    content = draw.any(({"ok": True}, {"status": "ok"}, "ok", {"success": True}, {"result": "done"}, "done"))
    done = order.done or "Done."
    return content, done, (done.rstrip("."),)


def _record(draw: Draw) -> tuple[Any, str, tuple[str, ...]]:
    keys = draw.sample(_RESULT_KEYS, draw.any((1, 1, 2, 2, 3)))
    if draw.chance(0.2):
        keys[0] = draw.open(pools.pseudo_word)
    values = [
        draw.pick(_STATES) if draw.chance(0.35) else draw.whole(1, 500) if draw.chance(0.25) else pools.value(draw)
        for _ in keys
    ]
    parts = [f"the {key} is {value}" for key, value in zip(keys, values, strict=True)]
    told = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    return dict(zip(keys, values, strict=True)), "T" + told[1:] + ".", tuple(map(str, values))


def _outcome(draw: Draw, order: Order) -> tuple[Any, str, tuple[str, ...]]:
    if draw.chance(0.12):
        error = str(draw.pick(_ERRORS))
        return {"error": error}, f"That did not work: {error}.", (error,)
    return _success(draw, order)


def told_result(draw: Draw) -> Sample:
    """Make a conversation with a call, its result, and the answer that uses the result."""
    order = _order(draw)
    content, answer, must = _outcome(draw, order)
    messages = [*_prefix(draw), user(restyle(draw, order.text)), _call(order), _result(content, order), reply(answer)]
    return Sample("tool_answers", messages, Check("contains", must), _offer(draw, order, most=2))


def told_results(draw: Draw) -> Sample:
    """Make a conversation with two calls, two results, and one answer for both."""
    sample = parallel_calls(draw)
    calls = sample.messages[-1]["tool_calls"]
    first, second = _small_record(draw), _small_record(draw)
    results = [
        {"role": "tool", "name": c["function"]["name"], "content": json.dumps(o[0])}
        for c, o in zip(calls, (first, second), strict=True)
    ]
    answer = f"{first[1]} {second[1]}"
    return Sample(
        "tool_answers",
        [*sample.messages, *results, reply(answer)],
        Check("contains", first[2] + second[2]),
        sample.tools,
    )


def _small_record(draw: Draw) -> tuple[Any, str, tuple[str, ...]]:
    """Draw a result that can be reported without the request: the result, its sentence, and the text to expect."""
    key, value = str(draw.pick(_RESULT_KEYS)), str(draw.pick(_STATES)) if draw.chance(0.5) else pools.value(draw)
    return {key: value}, f"The {key} is {value}.", (value,)


def amended_call(draw: Draw) -> Sample:
    """Make a conversation with a call and its result, then a few words that change one value of the call."""
    order = household(draw)
    changed = amended(draw, order)
    if changed is None:
        return amended_call(draw)
    content, answer, _ = _success(draw, order)
    messages = [
        *_prefix(draw),
        user(restyle(draw, order.text)),
        _call(order),
        _result(content, order),
        reply(answer),
        user(restyle(draw, changed.text)),
        _call(changed),
    ]
    return Sample("tool_calls", messages, _expect(changed), _offer(draw, order, most=1))


def asked_back(draw: Draw) -> Sample:
    """Make a conversation in which, after a call, the user asks what was requested or whether it worked."""
    order = household(draw, "list" if draw.chance(0.6) else draw.any(("timer", "alarm", "light", "heating", "music")))
    content, answer, _ = _success(draw, order)
    messages = [*_prefix(draw), user(restyle(draw, order.text)), _call(order), _result(content, order), reply(answer)]
    if order.kind == "list" and draw.chance(0.75):
        item = order.values["item"]
        question, answer, must = draw.pick(_WHAT_ADDED), f"You asked me to add {item}.", str(item)
    else:
        question, must = draw.pick(_WHAT_DONE), answer.rstrip(".")
    messages += [user(restyle(draw, str(question))), reply(answer)]
    return Sample("follow_up", messages, Check("contains", (must,)), _offer(draw, order, most=1))


def tool_missing(draw: Draw) -> Sample:
    """Make a conversation with a request that needs a tool that is not offered."""
    order = _order(draw, 0.1)
    tools = [] if draw.chance(0.3) else [t for t in _offer(draw, order, most=3) if t is not order.tool]
    if not tools and draw.split == "train" and draw.chance(0.6):
        return tool_missing(draw)
    messages = [*_prefix(draw), user(restyle(draw, order.text)), reply(NO_TOOL)]
    return Sample("no_tool", messages, Check("exact", (NO_TOOL,)), tools)


def foreign_beside(draw: Draw) -> Sample:
    """Make a conversation with tools and an out-of-domain request, which the model must decline."""
    sample = talk.foreign(draw)
    return Sample(sample.category, sample.messages, sample.check, _offer(draw, _order(draw), most=2))


def tool_not_needed(draw: Draw) -> Sample:
    """Make a conversation with tools and a request that needs none of them."""
    make = draw.any(
        (talk.small_talk, sums.simple_sum, facts.known, facts.known, talk.foreign, sums.conversion, facts.absent)
    )
    sample = make(draw)
    tools = _offer(draw, _order(draw), most=2)
    category = sample.category if sample.category == "out_of_domain" else "tools_not_needed"
    return Sample(category, sample.messages, sample.check, tools)
