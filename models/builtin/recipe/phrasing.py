"""Puts words such as 'could you ... please' around the wordings of training. These words are called frames.

No framed wording equals a wording of an evaluation set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from .samples import Draw, Pool, is_sealed, normal

_VERBS = """
set start turn switch play put make give get call phone ring dial telephone stop pause halt cut end add append
write note jot buy remind create schedule nudge notify alert warn tell show check read look find fetch open close
dim bring lower raise reduce increase brighten change adjust heat warm cool keep hold light colour color tint paint
stream queue stick pop throw crank drop move slide mute silence kill shut connect place patch reach contact
wake beep ding ping buzz count time run begin launch add book cancel order announce say repeat convert calculate
compute solve work save include insert enter record remember prompt help let activate sound power flip have fade
express double halve subtract take explain describe {state}
"""
_IMPERATIVE = frozenset(_VERBS.split())
_ORDERED = (
    "please {x}",
    "please {x}",
    "{x} please",
    "{x}, please",
    "can you {x}?",
    "can you {x}?",
    "could you {x}?",
    "could you {x}?",
    "can you please {x}?",
    "could you please {x}?",
    "can you {x} please?",
    "could you {x} please?",
    "would you {x}?",
    "would you please {x}?",
    "would you {x} please?",
    "will you {x}?",
    "will you please {x}?",
    "can you {x} for me?",
    "could you {x} for me?",
    "could you {x} for me please?",
    "could you quickly {x}?",
    "can you quickly {x}?",
    "could you just {x}?",
    "can you just {x}?",
    "could you maybe {x}?",
    "could you kindly {x}?",
    "can you go ahead and {x}?",
    "could you possibly {x}?",
    "I want you to {x}",
    "I need you to {x}",
    "I'd like you to {x}",
    "I would like you to {x}",
    "go ahead and {x}",
    "kindly {x}",
    "just {x}",
    "quickly {x}",
    "{x} for me",
    "{x} for me please",
    "{x} now",
    "{x} right now",
    "{x} quickly",
    "{x} thanks",
    "{x}, thanks",
    "{x}, thank you",
    "{x} if you can",
    "{x}, will you?",
    "{x}, would you?",
    "{x}, can you?",
    "{x}, ok?",
    "{x} straight away",
    "please could you {x}?",
    "please can you {x}?",
    "please go and {x}",
    "do me a favour and {x}",
    "be so kind and {x}",
    "be nice and {x}",
    "are you able to {x}?",
    "is it possible to {x}?",
    "would it be possible to {x}?",
    "would you be able to {x}?",
    "would you be so kind and {x}?",
    "would you kindly {x}?",
    "any chance you could {x}?",
    "I was wondering if you could {x}",
    "I wonder if you could {x}",
    "I would be glad if you could {x}",
    "it would be great if you could {x}",
    "it would be nice if you could {x}",
    "I'd appreciate it if you could {x}",
    "if you could {x}, that would be great",
    "may I ask you to {x}?",
    "can I ask you to {x}?",
    "could I ask you to {x}?",
    "you can {x} now",
    "you may {x}",
    "now {x}",
    "now please {x}",
    "then {x}",
    "I need your help, {x}",
    "why don't you {x}?",
    "time to {x}",
    "I want to {x}",
    "I need to {x}",
    "I'd like to {x}",
    "I would like to {x}",
    "could we {x}?",
    "can we {x}?",
    "let's {x}",
    "how do I get you to {x}?",
    "make sure to {x}",
    "be sure to {x}",
    "try to {x}",
)
_ANY = (
    "hey, {x}",
    "hey {x}",
    "hi, {x}",
    "hi {x}",
    "hello, {x}",
    "hello {x}",
    "ok, {x}",
    "okay, {x}",
    "ok {x}",
    "so, {x}",
    "so {x}",
    "well, {x}",
    "right, {x}",
    "alright, {x}",
    "all right, {x}",
    "excuse me, {x}",
    "sorry, {x}",
    "listen, {x}",
    "um, {x}",
    "uh, {x}",
    "hmm, {x}",
    "oh, {x}",
    "oh and {x}",
    "by the way, {x}",
    "one more thing, {x}",
    "quick one: {x}",
    "hey there, {x}",
    "hi there, {x}",
    "hello there, {x}",
    "good morning, {x}",
    "good evening, {x}",
    "morning, {x}",
    "assistant, {x}",
    "hey assistant, {x}",
    "computer, {x}",
    "my friend, {x}",
    "thanks, {x}",
    "great, {x}",
    "good, {x}",
    "now, {x}",
    "yes, {x}",
    "next, {x}",
    "first, {x}",
    "{x}",
    "{x}",
)


@cache
def _taken(pool: Pool) -> frozenset[str]:
    return frozenset(normal(str(item)) for item in pool.eval)


def more(pool: Pool, text: str) -> Pool:
    """Return the pool with lines added to its training part. Lines that are in an evaluation set are left out."""
    taken = _taken(pool)
    fresh = (line.strip() for line in text.strip().splitlines())
    return replace(
        pool,
        train=tuple(
            dict.fromkeys((*pool.train, *(f for f in fresh if f and normal(f) not in taken and not is_sealed(f))))
        ),
    )


def is_order(template: str) -> bool:
    """Return whether a wording is a plain imperative, so that 'could you' can stand before it."""
    plain = not any(mark in template for mark in ("?", "please", ",", ": "))
    return plain and template.split(" ", 1)[0].lower() in _IMPERATIVE


def framed(draw: Draw, text: str, share: float = 0.45, *, orderly: bool | None = None) -> str:
    """Return a wording with polite words around it, or unchanged. `share` is the probability for an imperative.

    `orderly` says whether 'could you' can stand before the wording. If None, `is_order` decides.
    """
    if (is_order(text) if orderly is None else orderly) and draw.chance(share):
        text = _into(draw, _ORDERED, text)
    if draw.chance(share / 3):
        text = _into(draw, _ANY, text)
    elif "please" not in text and "thank" not in text and draw.chance(share / 6):
        text = text.replace("?", "") + draw.any((" please", ", please", " thanks", ", thank you", " now"))
    return text


def _into(draw: Draw, frames: Sequence[str], text: str) -> str:
    return str(draw.any(frames)).replace("{x}", text)


def worded(draw: Draw, pool: Pool, share: float = 0.45) -> str:
    """Draw a wording from a pool. For training, add polite words, but never make a wording of an evaluation set."""
    if draw.split != "train":
        return str(draw.pick(pool))
    taken = _taken(pool)
    while True:
        text = framed(draw, str(draw.pick(pool)), share)
        if normal(text) not in taken and not is_sealed(text):
            return text
