"""Questions in several wordings each, with hard negatives, made by rule.

Two questions are the same if they have the same intent and the same values in its slots. So the truth is known by
construction, without a judge. The hard negatives are questions of the same wording with another number, day, name or
object, with a negation, or with an antonym. The museum's kiosk is like the bundled model's training; of the bank's help
desk the bundled model knows nothing. The domains of `fresh_domains` were not looked at before the rules were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.answers.similar.fresh_domains import FRESH
from tests.answers.similar.intents import Domain, Intent, intent

_DAYS = ("Monday", "Tuesday", "Saturday", "Sunday")
_PEOPLE = ("Anna Weber", "Hannah Weber", "Peter Lindqvist")
_ROOMS = ("3", "5", "12")

MUSEUM = (
    intent(
        "When do you open on {day}?",
        "What time does the museum open on {day}?",
        "From when are you open on {day}?",
        "On {day}, at what time do the doors open?",
        "opening time on {day}",
        day=_DAYS,
    ),
    intent(
        "When do you close on {day}?",
        "What time does the museum close on {day}?",
        "Until when are you open on {day}?",
        "On {day}, at what time do the doors close?",
        "closing time on {day}",
        day=_DAYS,
    ),
    intent(
        "How much is a ticket for {who}?",
        "What does admission cost for {who}?",
        "What's the entrance fee for {who}?",
        "Price of a ticket for {who}?",
        "How much do {who} have to pay to get in?",
        who=("adults", "children", "students", "pensioners"),
    ),
    intent(
        "Where is room {room}?",
        "How do I get to room {room}?",
        "Which way is room {room}?",
        "Can you show me the way to room {room}?",
        "I am looking for room {room}.",
        room=_ROOMS,
    ),
    intent(
        "What can I see in room {room}?",
        "What is on display in room {room}?",
        "Which exhibits are in room {room}?",
        "What is shown in room {room}?",
        room=_ROOMS,
    ),
    intent(
        "Where are the toilets?",
        "Where is the restroom?",
        "Which way to the bathroom?",
        "Is there a toilet here?",
        "I need the loo, where is it?",
        "How do I find the washrooms?",
    ),
    intent(
        "Where is the café?",
        "How do I get to the cafeteria?",
        "Is there a place to have a coffee?",
        "Where can I get something to drink and eat?",
        "Which floor is the café on?",
    ),
    intent(
        "Am I allowed to take photos?",
        "Is photography allowed?",
        "May I take pictures in the museum?",
        "Can we photograph the exhibits?",
        "Are visitors permitted to take photographs?",
    ),
    intent(
        "What am I not allowed to photograph?",
        "Which exhibits can I not photograph?",
        "Where is photography not allowed?",
        "What may we not take pictures of?",
    ),
    intent(
        "Can I bring my {animal}?",
        "Are {animal}s allowed inside?",
        "May I take a {animal} into the museum?",
        "I have a {animal} with me, can it come in?",
        animal=("dog", "cat"),
    ),
    intent(
        "Is the museum accessible by wheelchair?",
        "Can I get around with a wheelchair?",
        "Is there wheelchair access?",
        "Is the building suitable for wheelchair users?",
        "Do you have ramps for wheelchairs?",
    ),
    intent(
        "Where can I leave my {thing}?",
        "Is there a place to store my {thing}?",
        "What do I do with my {thing} during the visit?",
        "Where do I put my {thing}?",
        thing=("coat", "suitcase", "stroller", "umbrella"),
    ),
    intent(
        "When does the guided tour in {language} start?",
        "What time is the {language} tour?",
        "At what time does the tour in {language} begin?",
        "Start of the guided tour in {language}?",
        language=("English", "German", "French"),
    ),
    intent(
        "How long does the guided tour take?",
        "What is the duration of the guided tour?",
        "How many minutes does the tour last?",
        "Is the guided tour long?",
    ),
    intent(
        "Where can I park my {vehicle}?",
        "Is there parking for a {vehicle}?",
        "Where do I leave my {vehicle} outside?",
        "Do you have parking spaces for a {vehicle}?",
        vehicle=("car", "bicycle", "bus"),
    ),
    intent(
        "Which bus goes to the {place}?",
        "What bus do I take to get to the {place}?",
        "How do I get to the {place} by bus?",
        "Which bus line takes me to the {place}?",
        place=("main station", "airport", "old town"),
    ),
    intent(
        "Who painted the portrait of {person}?",
        "Which artist made the portrait of {person}?",
        "By whom is the picture of {person}?",
        "Who is the painter of {person}'s portrait?",
        person=_PEOPLE,
    ),
    intent(
        "When was {person} born?",
        "What is {person}'s date of birth?",
        "In which year was {person} born?",
        "What year was the birth of {person}?",
        person=_PEOPLE,
    ),
    intent(
        "When did {person} die?",
        "What is {person}'s date of death?",
        "In which year did {person} die?",
        "What year was the death of {person}?",
        person=_PEOPLE,
    ),
    intent(
        "Do you have a gift shop?",
        "Where is the museum shop?",
        "Can I buy souvenirs somewhere?",
        "Where do you sell postcards and souvenirs?",
        "Where can I buy a present?",
    ),
    intent(
        "Can I pay by card?",
        "Do you accept credit cards?",
        "Is card payment possible?",
        "Do you take cards?",
        "May I pay with a credit card?",
    ),
    intent(
        "Can I pay in cash?",
        "Do you accept cash?",
        "Is cash payment possible?",
        "Do you take cash?",
        "May I pay with notes and coins?",
    ),
    intent(
        "Is there free Wi-Fi?",
        "Do you have a wireless network for visitors?",
        "How do I connect to the Wi-Fi?",
        "What is the Wi-Fi password?",
        "Can I use the internet here for free?",
    ),
    intent(
        "Is there a discount for groups of {count}?",
        "Do you have a group price for {count} people?",
        "We are {count} people, is it cheaper?",
        "Is it cheaper for a group with {count} people?",
        count=("10", "20", "30"),
    ),
    intent(
        "Which exhibition is the oldest?",
        "What is your oldest exhibit?",
        "What's the oldest thing in the museum?",
        "Which of your objects is the oldest?",
    ),
    intent(
        "Which exhibition is the newest?",
        "What is your newest exhibit?",
        "What's the newest thing in the museum?",
        "Which of your objects is the newest?",
    ),
)

BANK = (
    intent(
        "How do I block my {card}?",
        "I want to block my {card}.",
        "What must I do to have my {card} blocked?",
        "My {card} should be blocked, how does that work?",
        card=("credit card", "debit card"),
    ),
    intent(
        "How do I unblock my {card}?",
        "I want to unblock my {card}.",
        "What must I do to have my {card} unblocked?",
        "My {card} is blocked and I want it to work again.",
        card=("credit card", "debit card"),
    ),
    intent(
        "My {card} was stolen, what do I do?",
        "Somebody has stolen my {card}.",
        "What happens if my {card} is stolen?",
        "I was robbed and my {card} is gone.",
        card=("credit card", "debit card"),
    ),
    intent(
        "How do I open a {kind} account?",
        "I would like to open a {kind} account.",
        "What do I need to open a {kind} account?",
        "Can I get a {kind} account with you?",
        kind=("savings", "current", "joint"),
    ),
    intent(
        "How do I close a {kind} account?",
        "I would like to close my {kind} account.",
        "What do I need to close a {kind} account?",
        "How can I cancel my {kind} account?",
        kind=("savings", "current", "joint"),
    ),
    intent(
        "What does a transfer to {country} cost?",
        "How much is the fee for sending money to {country}?",
        "What are the charges for a payment to {country}?",
        "Is sending money to {country} expensive?",
        country=("France", "Poland", "Brazil"),
    ),
    intent(
        "How long does a transfer to {country} take?",
        "When does money that I send to {country} arrive?",
        "How many days does a payment to {country} need?",
        "How fast is a transfer to {country}?",
        country=("France", "Poland", "Brazil"),
    ),
    intent(
        "What is the interest on a loan over {years} years?",
        "Which rate do I pay for a loan of {years} years?",
        "How high is the interest rate if I borrow for {years} years?",
        "Interest rate for a {years} year loan?",
        years=("2", "5", "10", "15"),
    ),
    intent(
        "What interest do I get on savings over {years} years?",
        "Which rate do you pay on a deposit of {years} years?",
        "How much interest does a deposit for {years} years earn?",
        "Interest for saving over {years} years?",
        years=("2", "5", "10"),
    ),
    intent(
        "How do I change my {secret}?",
        "I want a new {secret}.",
        "Where can I set another {secret}?",
        "Can I choose a different {secret}?",
        secret=("PIN", "password", "user name"),
    ),
    intent(
        "I forgot my {secret}, what can I do?",
        "What if I no longer know my {secret}?",
        "I can't remember my {secret}.",
        "My {secret} is forgotten, how do I get in?",
        secret=("PIN", "password", "user name"),
    ),
    intent(
        "How do I raise my daily limit to {amount} euros?",
        "I want to increase my daily limit to {amount} euros.",
        "Can you set my daily limit up to {amount} euros?",
        "My daily limit should go up to {amount} euros.",
        amount=("1000", "2000", "5000"),
    ),
    intent(
        "How do I lower my daily limit to {amount} euros?",
        "I want to decrease my daily limit to {amount} euros.",
        "Can you set my daily limit down to {amount} euros?",
        "My daily limit should go down to {amount} euros.",
        amount=("1000", "2000", "500"),
    ),
    intent(
        "Where is the nearest cash machine?",
        "Where can I withdraw money nearby?",
        "Is there an ATM close by?",
        "I need cash, where is a machine?",
        "Nearest ATM?",
    ),
    intent(
        "Where is the nearest branch?",
        "Which branch is closest?",
        "Is there a branch close by?",
        "Where do I find your next branch?",
    ),
    intent(
        "Why was my payment rejected?",
        "My payment did not go through, why?",
        "What is the reason that my payment failed?",
        "Why could my payment not be made?",
    ),
    intent(
        "Why was my payment made twice?",
        "I was charged two times, why?",
        "My payment was booked double.",
        "Why did you take the money twice?",
    ),
    intent(
        "How do I dispute a charge?",
        "There is a charge that I did not make.",
        "I don't recognise a payment on my statement.",
        "How can I object to a wrong booking?",
    ),
    intent(
        "Where do I find my {document}?",
        "How can I download my {document}?",
        "I need my {document}, where is it?",
        "Can you send me my {document}?",
        document=("account statement", "tax certificate", "loan contract"),
    ),
    intent(
        "What documents do I need for a mortgage?",
        "Which papers do you want for a mortgage?",
        "What must I bring to apply for a mortgage?",
        "Which documents does a mortgage application need?",
    ),
    intent(
        "What documents do I not need for a mortgage?",
        "Which papers are not needed for a mortgage?",
        "What do I not have to bring to apply for a mortgage?",
    ),
    intent(
        "How do I report a change of {detail}?",
        "My {detail} has changed.",
        "I have a new {detail}, where do I enter it?",
        "Where can I update my {detail}?",
        detail=("address", "phone number", "surname", "email address"),
    ),
    intent(
        "Who is the adviser for {place}?",
        "Which adviser is responsible for {place}?",
        "Whom do I talk to in {place}?",
        "What's the name of the adviser in {place}?",
        place=("Leeds", "York", "Hull"),
    ),
    intent(
        "Can I deposit coins?",
        "Do you accept coins?",
        "Where can I pay in coins?",
        "I have many coins, can I bring them?",
    ),
    intent(
        "Do you charge a fee for the {card}?",
        "What does the {card} cost each year?",
        "Is the {card} free of charge?",
        "How high is the annual fee of the {card}?",
        card=("credit card", "debit card"),
    ),
    intent(
        "How do I activate online banking?",
        "I want to start using online banking.",
        "How can I sign up for online banking?",
        "What do I do to switch on online banking?",
    ),
    intent(
        "How do I deactivate online banking?",
        "I want to stop using online banking.",
        "How can I sign off from online banking?",
        "What do I do to switch off online banking?",
    ),
)

_BEFORE = ("", "", "Hello, ", "Hi! ", "Please tell me: ", "One question: ", "Excuse me, ", "Sorry to bother you. ")
_AFTER = ("", "", " Thanks!", " Thank you.", " I'd like to know.")

TUNED = {"museum": Domain(MUSEUM, _BEFORE, _AFTER), "bank": Domain(BANK, _BEFORE, _AFTER)}
"""The domains that were looked at while the prior, the rules and their words were chosen."""
DOMAINS = TUNED | FRESH


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and what it means. Questions with equal meanings have the same right answer."""

    text: str
    meaning: str


def questions(intents: Sequence[Intent]) -> dict[str, tuple[str, ...]]:
    """Return each meaning of a domain with its wordings, without what is said before and after them."""
    found = {}
    for number, each in enumerate(intents):
        for values in each.values():
            meaning = "/".join([str(number), *values.values()])
            found[meaning] = tuple(wording.format(**values) for wording in each.wordings)
    return found


def stream(domain: str, seed: int, length: int, *, is_terse: bool = False) -> list[Asked]:
    """Return a stream of questions. Few meanings are asked often and many seldom, as Zipf's law says.

    `is_terse`: with one greeting or none around them, so that the stream has fewer texts.

    A fifth of the questions follows the one before with another value in a slot, or with a similar intent's wording:
    what a cache that compares only likeness would answer wrongly.
    """
    random = Random(f"{domain}/{seed}")
    known = DOMAINS[domain]
    if is_terse:
        known = replace(known, before=known.before[1:3], after=("",))
    meanings = questions(known.intents)
    order = list(meanings)
    random.shuffle(order)
    weights = [1 / (rank + 3) for rank in range(len(order))]
    asked: list[Asked] = []
    while len(asked) < length:
        if asked and random.random() < 0.2:
            last = asked[-1].meaning.partition("/")[0]
            near = [each for each in order if abs(int(each.partition("/")[0]) - int(last)) <= 1]
            meaning = random.choice(near)
        else:
            (meaning,) = random.choices(order, weights)
        asked.append(Asked(_said(random, known, random.choice(meanings[meaning])), meaning))
    return asked


def negatives(domain: str, seed: int, length: int) -> list[Asked]:
    """Return a stream in which no meaning comes twice: each answer from similarity would be wrong."""
    random = Random(f"{domain}/negatives/{seed}")
    known = DOMAINS[domain]
    meanings = list(questions(known.intents).items())
    random.shuffle(meanings)
    return [Asked(_said(random, known, random.choice(texts)), meaning) for meaning, texts in meanings[:length]]


def _said(random: Random, domain: Domain, wording: str) -> str:
    text = random.choice(domain.before) + wording
    if random.random() < 0.2:
        text = text.lower()
    return text + random.choice(domain.after)
