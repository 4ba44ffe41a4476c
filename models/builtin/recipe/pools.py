"""The words of the corpus: names, places, things, and functions that make random values."""

from __future__ import annotations

import random
import string

from .samples import Draw, words
from .texts import read_texts

_TEXTS = read_texts("pools")

NAMES = words(_TEXTS["names"])
CITIES = words(_TEXTS["cities"])
ROOMS = words(_TEXTS["rooms"])
COLOURS = words(_TEXTS["colours"])
ITEMS = words(_TEXTS["items"])
ARTISTS = words(_TEXTS["artists"])
MENU = words(_TEXTS["menu"])
PLACES = words(_TEXTS["places"])
BOT_NAMES = words(_TEXTS["bot_names"])
SPOTS = words(_TEXTS["spots"])
FACILITIES = words(_TEXTS["facilities"])
KEY_HEADS = words(_TEXTS["key_heads"])
KEY_NOUNS = words(_TEXTS["key_nouns"])
PREFERENCES = words(_TEXTS["preferences"])
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
WEATHER = words(_TEXTS["weather"])

_OFFENSIVE = (
    "fuck",
    "shit",
    "dick",
    "cock",
    "cunt",
    "tit",
    "nig",
    "fag",
    "rape",
    "nazi",
    "piss",
    "slut",
    "whor",
    "ass",
)
_ONSETS = (
    "b",
    "br",
    "c",
    "ch",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "sh",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "y",
    "z",
    "th",
    "qu",
)
_VOWELS = ("a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "ee", "oo")
_CODAS = ("", "", "", "", "l", "m", "n", "r", "s", "t", "x", "ck", "nd", "st")


def pseudo_word(source: random.Random) -> str:
    """Make a pronounceable word that is in no dictionary and is not offensive."""
    while True:
        count = source.choice((2, 2, 2, 3))
        parts = (source.choice(_ONSETS) + source.choice(_VOWELS) + source.choice(_CODAS) for _ in range(count))
        word = "".join(parts)
        if not any(part in word for part in _OFFENSIVE):
            return word


def code(source: random.Random) -> str:
    """Make an order number, a door code or a password."""
    shape = source.random()
    if shape < 0.45:
        return "".join(source.choice(string.digits) for _ in range(source.randint(3, 7)))
    if shape < 0.6:
        letters = "".join(source.choice(string.ascii_uppercase) for _ in range(source.randint(1, 3)))
        return f"{letters}-{source.randint(10, 99999)}"
    if shape < 0.8:
        return f"{pseudo_word(source)}{source.randint(1, 999)}"
    if shape < 0.97:
        return f"{pseudo_word(source)}-{pseudo_word(source)}"
    alphabet = string.ascii_letters + string.digits
    return "".join(source.choice(alphabet) for _ in range(source.randint(5, 9)))


def phone(source: random.Random) -> str:
    """Make a telephone number."""
    groups = [str(source.randint(100, 999)) for _ in range(source.choice((2, 3)))]
    return source.choice((" ", "-")).join(["0" + groups[0], *groups[1:], str(source.randint(10, 99))])


def clock(source: random.Random) -> str:
    """Make a time of day, such as 7:45."""
    return (
        f"{source.randint(0, 23)}:{source.choice((0, 0, 5, 10, 15, 20, 30, 30, 40, 45, 50, source.randint(1, 59))):02d}"
    )


def price(source: random.Random) -> str:
    """Make a price with its currency."""
    amount = f"{source.randint(1, 99)}.{source.choice((0, 20, 25, 40, 50, 50, 60, 75, 80, 90, 95)):02d}"
    if source.random() < 0.3:
        amount = str(source.randint(2, 250))
    return source.choice((f"{amount} euros", f"{amount} dollars", f"${amount}", f"{amount} pounds"))


def name(draw: Draw) -> str:
    """Draw a person's name, real or made up."""
    if draw.chance(0.4):
        return str(draw.pick(NAMES))
    return draw.open(pseudo_word).capitalize()


def city(draw: Draw) -> str:
    """Draw a city, real or made up."""
    if draw.chance(0.5):
        return str(draw.pick(CITIES))
    return draw.open(pseudo_word).capitalize()


def place(draw: Draw) -> str:
    """Draw the name of a house, shop or institution, real or made up."""
    if draw.chance(0.4):
        return str(draw.pick(PLACES))
    kind = draw.any(("Hotel", "Cafe", "Museum", "Hostel", "Library", "Clinic", "Shop", "House", "Centre", "Bar", "Inn"))
    return f"{draw.any(('the ', ''))}{draw.open(pseudo_word).capitalize()} {kind}"


def email(draw: Draw) -> str:
    """Draw an e-mail address."""
    return f"{draw.any(('info', 'hello', 'desk', 'office'))}@{draw.open(pseudo_word)}.{draw.any(('com', 'org', 'net'))}"


def street(draw: Draw) -> str:
    """Draw a street with a house number."""
    return f"{draw.open(pseudo_word).capitalize()} {draw.any(('Street', 'Road', 'Lane', 'Square'))} {draw.whole(1, 99)}"


def value(draw: Draw) -> str:
    """Draw a value of any kind, such as a name, a code or a price."""
    roll = draw.random.random()
    if roll < 0.35:
        return draw.open(code)
    if roll < 0.50:
        return draw.open(clock)
    if roll < 0.60:
        return draw.open(price)
    if roll < 0.68:
        return draw.open(phone)
    if roll < 0.86:
        return name(draw) if draw.chance(0.6) else f"{name(draw)} {draw.open(pseudo_word).capitalize()}"
    if roll < 0.92:
        return email(draw)
    return street(draw)


def key(draw: Draw) -> str:
    """Draw the name of a fact, such as 'gate code'. About a third of these names have a made-up word."""
    head = draw.pick(KEY_HEADS)
    if draw.chance(0.35):
        return f"{draw.open(pseudo_word)} {head}"
    return f"{draw.pick(KEY_NOUNS)} {head}"
