"""Conversations about facts such as hours, prices and codes. The system prompt may or may not state them."""

from __future__ import annotations

from dataclasses import dataclass

from . import pools
from .phrasing import more, worded
from .samples import Check, Draw, Message, Pool, Sample, lines, reply, restyle, system, user
from .talk import OWNS_UP, foreign_request, opening_turns, persona
from .texts import TRAINING, read_texts

_TEXTS = read_texts("facts")

UNKNOWN = "I am sorry, that is not in my information."

_VALUE_ASKS = more(lines(_TEXTS["value_asks"]), TRAINING["value_asks"])
_PLACE_ASKS = more(lines(_TEXTS["place_asks"]), TRAINING["place_asks"])
_PRICE_ASKS = more(lines(_TEXTS["price_asks"]), TRAINING["price_asks"])
_HOURS_ASKS = more(lines(_TEXTS["hours_asks"]), TRAINING["hours_asks"])
_NEXT_ASKS = more(lines(_TEXTS["next_asks"]), TRAINING["next_asks"])
_LEADS = more(lines(_TEXTS["leads"]), TRAINING["leads"])


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact that the system prompt may state, with the ways to ask for it and to answer."""

    kind: str
    key: str
    value: str

    @property
    def label(self) -> str:
        """Return the fact's name in the form that a list in the system prompt uses."""
        return {"price": f"{self.key} price", "hours": f"{self.key}"}.get(self.kind, self.key)

    @property
    def asks(self) -> Pool:
        """Return the templates that ask for this fact."""
        return {"value": _VALUE_ASKS, "place": _PLACE_ASKS, "price": _PRICE_ASKS, "hours": _HOURS_ASKS}[self.kind]

    @property
    def article_key(self) -> str:
        """Return the fact's name in the form that a follow-up uses, as in 'and a muffin?'."""
        return {"price": f"a {self.key}", "hours": f"on {self.key}"}.get(self.kind, f"the {self.key}")

    @property
    def answer(self) -> str:
        """Return the sentence that answers the question."""
        if self.kind == "place":
            verb = "are" if self.key.endswith("s") else "is"
            return f"The {self.key} {verb} {self.value}."
        if self.kind == "price":
            return f"A {self.key} costs {self.value}."
        if self.kind == "hours":
            return f"On {self.key} we are {'closed' if self.value == 'closed' else 'open ' + self.value}."
        return f"The {self.key} is {self.value}."


def _usual_value(draw: Draw) -> Fact:
    """Draw a typical fact of a house or hotel, such as the wifi password or the checkout time."""
    key = draw.any(
        (
            "wifi password",
            "wifi name",
            "phone number",
            "address",
            "manager",
            "checkout time",
            "check-in time",
            "breakfast time",
            "door code",
            "email address",
            "room number",
            "next bus",
            "bin day",
            "wifi password",
        )
    )
    if key in ("wifi password", "door code", "room number", "wifi name"):
        value = draw.open(pools.code)
    elif key == "phone number":
        value = draw.open(pools.phone)
    elif key == "email address":
        value = pools.email(draw)
    elif key == "manager":
        value = f"{pools.name(draw)} {draw.open(pools.pseudo_word).capitalize()}"
    elif key == "address":
        value = pools.street(draw)
    elif key == "bin day":
        value = draw.any(pools.WEEKDAYS)
    else:
        value = draw.open(pools.clock)
    return Fact("value", key, value)


def _spot(draw: Draw) -> str:
    spot = str(draw.pick(pools.SPOTS))
    return f"{spot} near {pools.name(draw)} {draw.any(('Hall', 'Gate', 'Corner'))}" if draw.chance(0.15) else spot


def _menu_item(draw: Draw) -> str:
    return f"{draw.open(pools.pseudo_word)} {draw.pick(pools.MENU)}" if draw.chance(0.4) else str(draw.pick(pools.MENU))


def one_fact(draw: Draw) -> Fact:
    """Draw a fact of any kind except opening hours."""
    roll = draw.random.random()
    if roll < 0.25:
        return _usual_value(draw)
    if roll < 0.60:
        return Fact("value", pools.key(draw), pools.value(draw))
    if roll < 0.80:
        thing = str(draw.pick(pools.FACILITIES))
        return Fact("place", f"{draw.open(pools.pseudo_word)} {thing}" if draw.chance(0.35) else thing, _spot(draw))
    return Fact("price", _menu_item(draw), draw.open(pools.price))


def hours(draw: Draw) -> list[Fact]:
    """Draw the opening hours of all days, or of some."""
    days = (
        list(pools.WEEKDAYS)
        if draw.chance(0.5)
        else sorted(draw.random.sample(pools.WEEKDAYS, draw.whole(2, 5)), key=pools.WEEKDAYS.index)
    )
    spans = [f"from {draw.open(pools.clock)} to {draw.open(pools.clock)}" for _ in range(3)]
    return [Fact("hours", day, "closed" if draw.chance(0.15) else draw.any(spans)) for day in days]


def distinct_facts(draw: Draw, count: int) -> list[Fact]:
    """Draw facts with different keys."""
    found: dict[str, Fact] = {}
    while len(found) < count:
        fact = one_fact(draw)
        found.setdefault(fact.key, fact)
    return list(found.values())


def _write(draw: Draw, facts: list[Fact]) -> str:
    """Write the facts in one of several layouts."""
    style = draw.whole(0, 4)
    if style == 0:
        return "\n".join(f"- {_upper(f.label)}: {f.value}" for f in facts)
    if style == 1:
        return "\n".join(f"{_upper(f.label)}: {f.value}" for f in facts)
    if style == 2:
        return " ".join(f.answer for f in facts)
    if style == 3:
        return "\n".join(f.answer for f in facts)
    return "; ".join(f"{f.label}: {f.value}" for f in facts)


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def fact_prompt(draw: Draw, facts: list[Fact]) -> Message:
    """Make a system message that states the facts."""
    head = persona(draw)[0] if draw.chance(0.7) else ""
    if draw.chance(0.4):
        head = f"{head} {draw.pick(_LEADS)}".strip()
    body = _write(draw, facts)
    return system(f"{head}{draw.any((chr(10), ' ', chr(10)))}{body}" if head else body)


def _fact_count(draw: Draw) -> int:
    roll = draw.random.random()
    return draw.whole(1, 3) if roll < 0.3 else draw.whole(3, 8) if roll < 0.93 else draw.whole(9, 18)


def _house(draw: Draw, count: int | None = None) -> list[Fact]:
    facts = distinct_facts(draw, count or _fact_count(draw))
    if draw.chance(0.4):
        at = draw.whole(0, len(facts))
        facts[at:at] = hours(draw)
    return facts


def _ask(draw: Draw, fact: Fact) -> Message:
    return user(restyle(draw, worded(draw, fact.asks, 0.2).format(key=fact.key)))


def exchange(draw: Draw, fact: Fact) -> list[Message]:
    """Make an exchange: a question about a fact, and the answer."""
    return [_ask(draw, fact), reply(fact.answer)]


def known(draw: Draw) -> Sample:
    """Make a conversation with a question about one of the facts in the system prompt."""
    facts = _house(draw)
    timed = [f for f in facts if f.kind == "hours"]
    fact = draw.any(timed) if timed and draw.chance(0.6) else draw.any(facts)
    before = opening_turns(draw) if draw.chance(0.1) else []
    messages = [fact_prompt(draw, facts), *before, _ask(draw, fact), reply(fact.answer)]
    return Sample("facts", messages, Check("contains", (fact.value,)))


def quiz(draw: Draw) -> Sample:
    """Make a conversation with questions about many facts of one system prompt, one after another."""
    facts = _house(draw, draw.whole(3, 7))
    messages = [fact_prompt(draw, facts)]
    keys = {fact.key for fact in facts}
    for fact in draw.shuffled(facts)[:8]:
        messages += exchange(draw, fact)
        other = one_fact(draw)
        if draw.chance(0.15) and other.key not in keys:
            messages += [_ask(draw, other), reply(UNKNOWN)]
    return Sample("sessions", messages, Check("exact", (messages[-1]["content"],)))


def foreign_beside(draw: Draw) -> Sample:
    """Make a conversation in which the system prompt states facts, but the request is out of domain."""
    messages = [fact_prompt(draw, _house(draw)), user(foreign_request(draw)), reply(OWNS_UP)]
    return Sample("out_of_domain", messages, Check("owns_up"))


def crowded(draw: Draw) -> Sample:
    """Make a conversation with a question about one of very many facts, which fill a large part of the context."""
    facts = distinct_facts(draw, draw.whole(25, 60))
    fact = draw.any(facts)
    return Sample("long_prompts", [fact_prompt(draw, facts), *exchange(draw, fact)], Check("contains", (fact.value,)))


def absent(draw: Draw) -> Sample:
    """Make a conversation with a question about a fact that the system prompt does not state."""
    facts = _house(draw)
    if draw.chance(0.15):
        facts = []
    keys = {f.key for f in facts}
    while True:
        fact = draw.any(hours(draw)) if draw.chance(0.12) else one_fact(draw)
        if fact.key not in keys and not (fact.kind == "hours" and fact.key in keys):
            break
    before = [fact_prompt(draw, facts)] if facts else [system(persona(draw)[0])]
    messages = [*before, _ask(draw, fact), reply(UNKNOWN)]
    return Sample("absent", messages, Check("exact", (UNKNOWN, OWNS_UP)))


def follow_up(draw: Draw) -> Sample:
    """Make a conversation with a question about one fact, then a few words that ask for a similar fact."""
    if draw.chance(0.5):
        extra = [f for f in distinct_facts(draw, draw.whole(1, 4)) if f.kind != "hours"]
        group = hours(draw)
        facts = extra + group
    else:
        group = distinct_facts(draw, draw.whole(4, 9))
        facts = group
    first = draw.any(group)
    others = [f for f in group if f.kind == first.kind and f.key != first.key]
    if not others:
        return follow_up(draw)
    second = draw.any(others)
    next_ask = str(draw.pick(_NEXT_ASKS)).format(key=second.article_key if draw.chance(0.8) else second.key)
    messages = [
        fact_prompt(draw, facts),
        _ask(draw, first),
        reply(first.answer),
        user(restyle(draw, next_ask)),
        reply(second.answer),
    ]
    return Sample("follow_up", messages, Check("contains", (second.value,)))
