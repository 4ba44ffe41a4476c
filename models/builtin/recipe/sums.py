"""Conversations with simple sums and unit conversions, which the assistant answers directly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .phrasing import more, worded
from .samples import Check, Draw, Message, Sample, lines, reply, restyle, user
from .talk import any_system, opening_turns
from .texts import TRAINING, read_texts

_TEXTS = read_texts("sums")

_ASK = more(lines(_TEXTS["ask"]), TRAINING["sum_ask"])
_CONVERT = more(lines(_TEXTS["convert"]), TRAINING["convert"])
_DOUBLE = more(lines(_TEXTS["double"]), TRAINING["double"])
_HALVE = more(lines(_TEXTS["halve"]), TRAINING["halve"])
_ADD = more(lines(_TEXTS["add"]), TRAINING["add"])
_TAKE = more(lines(_TEXTS["take"]), TRAINING["take"])


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of arithmetic: its wordings, and how its operands are drawn."""

    sign: str
    phrases: tuple[str, ...]
    draw: Callable[[Draw], tuple[int, int, int]]


def _pair(draw: Draw) -> tuple[int, int]:
    """Draw two operands: with a small second one, both of medium size, or whole tens."""
    roll = draw.random.random()
    if roll < 0.4:
        return draw.whole(1, 99), draw.whole(1, 10)
    if roll < 0.75:
        return draw.whole(1, 50), draw.whole(1, 50)
    return 10 * draw.whole(1, 40), 10 * draw.whole(1, 40)


def _plus(draw: Draw) -> tuple[int, int, int]:
    a, b = draw.shuffled(_pair(draw))
    return a, b, a + b


def _minus(draw: Draw) -> tuple[int, int, int]:
    b, a = sorted(_pair(draw))
    return a, b, a - b


def _times(draw: Draw) -> tuple[int, int, int]:
    a, b = draw.whole(1, 12), draw.whole(1, 12)
    return a, b, a * b


def _over(draw: Draw) -> tuple[int, int, int]:
    b, c = draw.whole(1, 12), draw.whole(1, 12)
    return b * c, b, c


OPERATIONS = (
    Operation("plus", ("{a} plus {b}", "{a} + {b}", "{a}+{b}", "{a} and {b}", "{a} plus {b}", "{a} + {b}"), _plus),
    Operation(
        "minus", ("{a} minus {b}", "{a} - {b}", "{a}-{b}", "{a} take away {b}", "{a} less {b}", "{a} minus {b}"), _minus
    ),
    Operation("times", ("{a} times {b}", "{a} * {b}", "{a} x {b}", "{a} multiplied by {b}", "{a} times {b}"), _times),
    Operation("divided by", ("{a} divided by {b}", "{a} / {b}", "{a} over {b}", "{a} divided by {b}"), _over),
)
_WEIGHTS = (5, 4, 2, 1)

# Unit pairs with a factor; `limit` keeps the tables small where the factor is not a power of ten.
_UNITS = (
    ("kilometres", "metres", 1000, 999),
    ("metres", "centimetres", 100, 999),
    ("centimetres", "millimetres", 10, 999),
    ("kilograms", "grams", 1000, 999),
    ("litres", "millilitres", 1000, 999),
    ("tonnes", "kilograms", 1000, 999),
    ("hours", "minutes", 60, 12),
    ("minutes", "seconds", 60, 12),
    ("weeks", "days", 7, 12),
    ("days", "hours", 24, 5),
    ("dozen", "pieces", 12, 12),
    ("feet", "inches", 12, 12),
    ("years", "months", 12, 12),
    ("euros", "cents", 100, 999),
)


def _belongs(draw: Draw, key: str) -> bool:
    return draw.belongs(key)


def operands(draw: Draw) -> tuple[Operation, int, int, int]:
    """Draw a sum that belongs to this split. Training and evaluation share multiplication and division up to 12."""
    while True:
        operation = draw.random.choices(OPERATIONS, _WEIGHTS)[0]
        a, b, result = operation.draw(draw)
        if operation.sign in ("times", "divided by") or _belongs(draw, f"{a} {operation.sign} {b}"):
            return operation, a, b, result


def sentence(operation: str, a: int, b: int, result: int) -> str:
    """Return the sentence that answers a sum."""
    return f"{a} {operation} {b} is {result}."


def _exchange(draw: Draw) -> tuple[list[Message], int]:
    operation, a, b, result = operands(draw)
    return [user(asked(draw, operation, a, b)), reply(sentence(operation.sign, a, b, result))], result


def asked(draw: Draw, operation: Operation, a: int, b: int) -> str:
    """Return the text that asks for a sum."""
    text = worded(draw, _ASK, 0.2).format(sum=draw.any(operation.phrases).format(a=a, b=b))
    return restyle(draw, text)


def drill(draw: Draw) -> tuple[str, str]:
    """Draw one line of arithmetic without a conversation: the part that is given, and the result.

    A third are questions whose result is in JSON.
    """
    roll = draw.random.random()
    if draw.chance(0.35):
        operation, a, b, result = operands(draw)
        key = draw.any(("result", "answer", "value", "total", "output"))
        return f'{asked(draw, operation, a, b)}\n{{"{key}":', f" {result}}}\n"
    if roll < 0.72:
        operation, a, b, result = operands(draw)
        return f"{a} {operation.sign} {b} is", f" {result}.\n"
    if roll < 0.86:
        first, second = _measures(draw)
        return f"{first} are", f" {second}.\n"
    n = draw.whole(1, 100)
    if not _belongs(draw, f"double {n}") or not _belongs(draw, f"halve {2 * n}"):
        return drill(draw)
    return (f"Double {n} is", f" {2 * n}.\n") if draw.chance(0.6) else (f"Half of {2 * n} is", f" {n}.\n")


def simple_sum(draw: Draw) -> Sample:
    """Make a conversation with one sum."""
    turns, result = _exchange(draw)
    before = [*any_system(draw), *(opening_turns(draw) if draw.chance(0.1) else [])]
    return Sample("sums", [*before, *turns], Check("contains", (f"is {result}",)))


def conversion(draw: Draw) -> Sample:
    """Make a conversation that converts a unit. Numbers are held out only if the factor is a power of ten."""
    first, second = _measures(draw)
    amount, of = first.split(" ", 1)
    text = worded(draw, _CONVERT, 0.2).format(n=amount, of=of, to=second.split(" ", 1)[1])
    answer = f"{first} are {second}."
    return Sample("sums", [*any_system(draw), user(restyle(draw, text)), reply(answer)], Check("contains", (second,)))


def _measures(draw: Draw) -> tuple[str, str]:
    """Draw two equal measures in different units."""
    large, small, factor, limit = draw.any(_UNITS)
    while True:
        n = draw.whole(2, min(limit, 99)) if draw.chance(0.8) else draw.whole(2, limit)
        if limit < 100 or _belongs(draw, f"{n} {large}"):
            break
    down = draw.chance(0.75)
    return (f"{n} {large}", f"{n * factor} {small}") if down else (f"{n * factor} {small}", f"{n} {large}")


def _step(draw: Draw, last: int) -> tuple[str, str, int] | None:
    """Draw a follow-up about the last result: the request, the answer and the new result.

    Return None if the drawn follow-up does not suit the result or the split.
    """
    kind = draw.any(("double", "halve", "add", "take"))
    n = draw.whole(1, 10)
    if kind == "double" and _belongs(draw, f"double {last}"):
        return str(draw.pick(_DOUBLE)), f"Double {last} is {2 * last}.", 2 * last
    if kind == "halve" and last > 0 and last % 2 == 0 and _belongs(draw, f"halve {last}"):
        return str(draw.pick(_HALVE)), f"Half of {last} is {last // 2}.", last // 2
    if kind == "add" and _belongs(draw, f"{last} plus {n}"):
        return str(draw.pick(_ADD)).format(n=n), sentence("plus", last, n, last + n), last + n
    if kind == "take" and n <= last and _belongs(draw, f"{last} minus {n}"):
        return str(draw.pick(_TAKE)).format(n=n), sentence("minus", last, n, last - n), last - n
    return None


def sum_follow_up(draw: Draw) -> Sample:
    """Make a conversation with a sum, then one or two requests that build on its result."""
    while True:
        turns, last = _exchange(draw)
        step = _step(draw, last) if last <= 100 else None
        if step:
            break
    text, answer, result = step
    turns += [user(restyle(draw, text)), reply(answer)]
    return Sample("follow_up", [*any_system(draw), *turns], Check("contains", (f"is {result}",)))
