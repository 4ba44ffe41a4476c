"""Small talk, questions about the assistant itself, and requests outside its domain."""

from __future__ import annotations

from .phrasing import more, worded
from .pools import BOT_NAMES, NAMES, place, pseudo_word
from .samples import Check, Draw, Message, Pool, Sample, lines, reply, restyle, system, user, words
from .texts import TRAINING, read_texts

_TEXTS = read_texts("talk")

OWNS_UP = "I am the small built-in model and cannot help with that; run `edgeagent pull` to get a larger one."

PERSONAS = more(lines(_TEXTS["personas"]), TRAINING["personas"])
PLAIN_SYSTEMS = more(lines(_TEXTS["plain_systems"]), TRAINING["plain_systems"])

_USUAL: dict[str, tuple[str, Pool]] = {
    "greet": (
        "Hello! How can I help you?",
        lines(_TEXTS["greet"]),
    ),
    "wellbeing": (
        "I am doing well, thank you. What can I do for you?",
        lines(_TEXTS["wellbeing"]),
    ),
    "abilities": (
        "I can set timers and alarms, switch lights and heating, play music, keep lists, do simple sums and "
        "answer questions about this place.",
        lines(_TEXTS["abilities"]),
    ),
    "thanks": (
        "You are welcome!",
        lines(_TEXTS["thanks"]),
    ),
    "bye": (
        "Goodbye! Have a nice day.",
        lines(_TEXTS["bye"]),
    ),
    "human": (
        "No, I am a small language model that runs on this device.",
        lines(_TEXTS["human"]),
    ),
    "private": (
        "I run on this device and answer without the internet.",
        lines(_TEXTS["private"]),
    ),
    "maker": (
        "I was made by the edgeagent project.",
        lines(_TEXTS["maker"]),
    ),
    "praise": (
        "Thank you, that is kind of you.",
        lines(_TEXTS["praise"]),
    ),
    "blame": (
        "I am sorry. Please tell me again what you need.",
        lines(_TEXTS["blame"]),
    ),
    "joke": (
        "Why did the clock go to school? It wanted to tell the time better.",
        lines(_TEXTS["joke"]),
    ),
    "fine": (
        "All right. Tell me when you need something.",
        lines(_TEXTS["fine"]),
    ),
}

_INTENTS = {
    intent: (answer, more(wordings, TRAINING["intents"][intent])) for intent, (answer, wordings) in _USUAL.items()
}

_WHO = more(lines(_TEXTS["who"]), TRAINING["who"])
_UNNAMED = "I am edgeagent mini, a small assistant that runs on this device."

_ALIEN_FRAMES = more(lines(_TEXTS["alien_frames"]), TRAINING["alien_frames"])
_ALIEN_TOPICS = words(_TEXTS["alien_topics"])
_ALIEN_WHOLE = more(lines(_TEXTS["alien_whole"]), TRAINING["alien_whole"])


def persona(draw: Draw) -> tuple[str, str]:
    """Draw a persona: a system prompt that names the assistant, and that name."""
    called = str(draw.pick(BOT_NAMES)) if draw.chance(0.5) else draw.open(pseudo_word).capitalize()
    return str(draw.pick(PERSONAS)).format(name=called, place=place(draw)), called


def any_system(draw: Draw) -> list[Message]:
    """Draw no system message, a plain one, or one that names the assistant."""
    roll = draw.random.random()
    if roll < 0.4:
        return []
    if roll < 0.6:
        return [system(str(draw.pick(PLAIN_SYSTEMS)))]
    return [system(persona(draw)[0])]


def small_talk(draw: Draw) -> Sample:
    """Make a conversation of small talk: greetings, thanks, questions about the assistant and the like."""
    return introduction(draw) if draw.chance(0.18) else nameless_talk(draw)


def nameless_talk(draw: Draw) -> Sample:
    """Make a conversation of small talk that does not ask for the assistant's name."""
    answer, wordings = _INTENTS[draw.any(tuple(_INTENTS))]
    messages = [*any_system(draw), user(restyle(draw, worded(draw, wordings, 0.15))), reply(answer)]
    return Sample("chat", messages, Check("exact", (answer,)))


def introduction(draw: Draw) -> Sample:
    """Make a conversation in which the user asks who the assistant is.

    The answer has the name that the system prompt gives, if there is one.
    """
    question = user(restyle(draw, worded(draw, _WHO, 0.15)))
    if draw.chance(0.3):
        before = [system(str(draw.pick(PLAIN_SYSTEMS)))] if draw.chance(0.5) else []
        return Sample("chat", [*before, question, reply(_UNNAMED)], Check("exact", (_UNNAMED,)))
    prompt, called = persona(draw)
    answer = f"I am {called}, a small assistant that runs on this device."
    return Sample("chat", [system(prompt), question, reply(answer)], Check("contains", (called,)))


def _topic(draw: Draw) -> str:
    roll = draw.random.random()
    if roll < 0.82:
        return str(draw.pick(_ALIEN_TOPICS))
    if roll < 0.88:
        return f"{draw.open(pseudo_word)} {draw.open(pseudo_word)}"
    if roll < 0.94:
        return draw.open(pseudo_word).capitalize()
    return f"{draw.pick(NAMES)} {draw.open(pseudo_word).capitalize()}"


def foreign_request(draw: Draw) -> str:
    """Draw an out-of-domain request, which the model must decline."""
    if draw.chance(0.3):
        return restyle(draw, worded(draw, _ALIEN_WHOLE, 0.2))
    text = worded(draw, _ALIEN_FRAMES, 0.2).format(x=_topic(draw), y=_topic(draw))
    if draw.chance(0.15):
        text = f"{draw.any(('please', 'hey,', 'so,', 'can you help?', 'hello,', 'ok,'))} {text}"
    return restyle(draw, text)


def foreign(draw: Draw) -> Sample:
    """Make a conversation with an out-of-domain request. The reply is the one fixed sentence that declines it."""
    before = any_system(draw)
    if draw.chance(0.15):
        before += [user(restyle(draw, str(draw.pick(_INTENTS["greet"][1])))), reply(_INTENTS["greet"][0])]
    messages = [*before, user(foreign_request(draw)), reply(OWNS_UP)]
    return Sample("out_of_domain", messages, Check("owns_up"))


def opening_turns(draw: Draw) -> list[Message]:
    """Draw one exchange of small talk that precedes another conversation."""
    answer, wordings = _INTENTS[draw.any(("greet", "wellbeing", "thanks", "fine", "abilities"))]
    return [user(restyle(draw, str(draw.pick(wordings)))), reply(answer)]
