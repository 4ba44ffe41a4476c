"""What the guards refuse, and what they leave to the boundary, as a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.answers.similar.guards import MAX_CHARACTERS, RULES, refusal, refusal_alone
from edgeagent.answers.similar.words import LANGUAGES

REFUSED = [
    ("numbers", "Where is room 3?", "Where is room 5?"),
    ("numbers", "Where is room three?", "Where is room five?"),
    ("numbers", "Tickets for two people, please", "Tickets for 3 people, please"),
    ("numbers", "What is 12 times 30?", "What is 12 times 300?"),
    ("numbers", "What happens at 10:30?", "What happens at 10:45?"),
    ("numbers", "I was charged twice, why?", "I was charged, why?"),
    ("numbers", "Wo ist Raum drei?", "Wo ist Raum vier?"),
    ("numbers", "Où est la salle deux ?", "Où est la salle six ?"),
    ("numbers", "¿Dónde está la sala cuatro?", "¿Dónde está la sala siete?"),
    ("numbers", "Dov'è la sala sette?", "Dov'è la sala otto?"),
    ("numbers", "部屋3はどこですか", "部屋5はどこですか"),
    ("numbers", "How far is -5 from 3?", "How far is 5 from 3?"),
    ("numbers", "How far is \u22125 from 3?", "How far is 5 from 3?"),
    ("numbers", "Does the heater run at \u20135 °C?", "Does the heater run at 5 °C?"),
    ("numbers", "Does the heater run at minus 5 degrees?", "Does the heater run at 5 degrees?"),
    ("numbers", "Le chauffage marche à moins 5 degrés ?", "Le chauffage marche à 5 degrés ?"),
    ("numbers", "¿Funciona la calefacción a menos 5 grados?", "¿Funciona la calefacción a 5 grados?"),
    ("numbers", "Il riscaldamento funziona a meno 5 gradi?", "Il riscaldamento funziona a 5 gradi?"),
    ("dates", "When do you open on Monday?", "When do you open on Sunday?"),
    ("dates", "Wann öffnen Sie am Montag?", "Wann öffnen Sie am Sonntag?"),
    ("dates", "Is there a tour in the morning?", "Is there a tour in the evening?"),
    ("dates", "À quelle heure ouvrez-vous le lundi ?", "À quelle heure ouvrez-vous le mardi ?"),
    ("dates", "opening hours in march", "when are you open in may"),
    ("dates", "when are you open in may", "hello, when are you open"),
    ("dates", "When are you open in May?", "Hello, when are you open?"),
    ("dates", "is there a tour in late may", "is there a tour, please"),
    ("dates", "opening times jan please", "when do you open in feb"),
    ("dates", "Is there a tour on Tue?", "Can I join a tour on Thu, please?"),
    ("antonyms", "Where is the men's toilet?", "Where do I find the women's toilet?"),
    ("antonyms", "What does a children's ticket cost?", "How much is the adult's ticket?"),
    ("antonyms", "Where is the ladies' room?", "Where can I find the gentlemen’s room?"),
    ("antonyms", "Does the ticket include the boat?", "Is the boat excluded from the ticket?"),
    ("units", "How far is the station in miles?", "How many kilometres is the station away?"),
    ("negation", "What am I allowed to bring?", "What am I not allowed to bring?"),
    ("negation", "Why can I pay?", "Why can't I pay?"),
    ("negation", "are dogs allowed?", "why arent dogs allowed?"),
    ("negation", "Kann ich mit Karte zahlen?", "Kann ich nicht mit Karte zahlen?"),
    ("negation", "Welche Ausweise sind gültig?", "Welche Ausweise sind nicht gültig?"),
    ("negation", "Je peux prendre des photos ?", "Je ne peux pas prendre des photos ?"),
    ("negation", "¿Puedo pagar con tarjeta?", "¿No puedo pagar con tarjeta?"),
    ("negation", "Posso pagare con la carta?", "Non posso pagare con la carta?"),
    ("negation", "Do you have vegetarian dishes?", "Do you have non-vegetarian dishes?"),
    ("negation", "What is minus five plus three?", "What is five plus three?"),
    ("negation", "where can I smoke", "where am I forbidden to smoke"),
    ("negation", "Wo darf ich rauchen?", "Wo ist das Rauchen verboten?"),
    ("negation", "Où peut-on fumer ?", "Où est-il interdit de fumer ?"),
    ("negation", "¿Dónde puedo fumar?", "¿Dónde está prohibido fumar?"),
    ("negation", "Dove posso fumare?", "Dove è vietato fumare?"),
    ("negation", "Kan ik met kaart betalen?", "Kan ik niet met kaart betalen?"),
    ("negation", "Posso pagar com cartão?", "Não posso pagar com cartão?"),
    ("negation", "Lze platit kartou?", "Nelze u vás platit kartou?"),
    ("negation", "Можно ли платить картой в кафе?", "Нельзя платить картой в кафе?"),
    ("negation", "هل يمكنني الدفع بالبطاقة", "هل لا يمكنني الدفع بالبطاقة"),
    ("negation", "카드로 결제할 수 있나요", "카드 결제가 안 되나요"),
    ("negation", "카드로 결제할 수 있나요", "여기서 카드로 결제할 수 없나요"),
    ("antonyms", "Můžu platit kartou?", "Je možné, že nemůžu platit kartou?"),
    ("antonyms", "approve the refund", "deny the refund"),
    ("antonyms", "How do I mute the speaker?", "How can the speaker be unmuted?"),
    ("antonyms", "Hello, when is breakfast served?", "At what time is lunch served?"),
    ("antonyms", "How much is a ticket for students?", "How much is the ticket price for seniors?"),
    ("antonyms", "Is there parking for cars?", "Is parking available for buses?"),
    ("antonyms", "Ab wann ist Frühstück?", "Um wie viel Uhr ist Abendessen?"),
    ("antonyms", "¿A qué hora es el desayuno?", "¿Cuándo se sirve la cena?"),
    ("antonyms", "Quando è il pranzo?", "A che ora inizia la cena?"),
    ("antonyms", "Y a-t-il un parking pour voitures ?", "Où est le parking des vélos ?"),
    ("antonyms", "When do you open at the weekend?", "When do you close at the weekend?"),
    ("antonyms", "How do I block my card?", "How do I unblock my card?"),
    ("antonyms", "Turn on the light in the kitchen", "Switch off the kitchen's light"),
    ("antonyms", "What does a ticket cost for adults?", "Price of the tickets for children?"),
    ("antonyms", "Wo ist der Eingang?", "Wo ist der Ausgang?"),
    ("antonyms", "Où est l'entrée ?", "Où est la sortie ?"),
    ("antonyms", "¿Cuándo abre el museo?", "¿Cuándo cierra el museo?"),
    ("antonyms", "Quando apre il museo?", "Quando chiude il museo?"),
    ("names", "Who painted the portrait of Anna Weber?", "Whose work is the portrait of Hannah Weber?"),
    ("names", "Anna Weber was born when?", "When was Hannah Weber born?"),
    ("names", "How do I get to Leeds?", "how do i get to york?"),
    ("names", "Wie komme ich nach Leeds?", "Wie komme ich nach York?"),
    ("characters", "几点开门", "几点关门"),
    ("characters", "从北京到上海多少钱", "从上海到北京多少钱"),
    ("characters", "请问厕所在哪里", "请问出口在哪里"),
    ("characters", "次の電車は何時ですか", "最後の電車は何時ですか"),
    ("characters", "カードで払えますか", "カードで払えませんか"),
    ("small_letters", "where does anna smith work", "which is the office of berta jones"),
    ("small_letters", "how do i get to leeds?", "what is the best way to york?"),
    ("small_letters", "как пройти в эрмитаж", "где находится кремль"),
    ("quoted", 'What does "sure thing" mean in French?', 'What does "well done" mean in French?'),
    ("quoted", "Translate 'good luck' for me", "Translate 'what a pity' for me"),
    ("codes", "How much is it + tax?".replace(" it", " a visit"), "How much is a visit?"),
    ("codes", "Who wrote to a@example.org?", "Who wrote to b@example.org?"),
    ("codes", "Explain a+b", "Explain a*b"),
    ("codes", "directions to gate a please", "how do i get to gate b"),
    ("codes", "where is gate a please", "how do i get to gate e"),
    ("codes", "where is gate a please", "how do i get to the gate"),
    ("codes", "where is hall k please", "how do i get to hall v"),
    ("codes", "where is stand s please", "how do i get to stand z"),
    ("codes", "Où est la salle C ?", "Je cherche la salle D"),
    ("codes", "What vitamin e dose is safe?", "Which dose of vitamin a is safe?"),
    ("order", "Trains from Leeds to York", "Trains from York to Leeds"),
    ("order", "Is gold heavier than lead?", "Is lead heavier than gold?"),
    ("order", "How long is the way from Leeds to York? Please help.", "How long is the way from York to Leeds?"),
    ("order", "how long is the way from the mill to the sea?", "Quick: how far do I walk from the sea to the mill?"),
    ("order", "Does Anna Weber replace Paul Becker?", "Tell me, does Paul Becker stand in for Anna Weber?"),
    ("order", "Wie lang ist der Weg von Bonn bis Köln?", "Wie lang ist ungefähr der Weg von Köln bis Bonn?"),
    ("context", "Is it open?", "Is it open?"),
    ("context", "What is the weather today?", "What is the weather today?"),
    ("context", "Say that again", "Say that again"),
    ("context", "What time do you close now?", "When do you close?"),
    ("context", "Ist das Museum heute offen?", "Ist das Museum heute offen?"),
    ("context", "Et maintenant, où aller ?", "Et maintenant, où aller ?"),
    ("context", "¿Está abierto hoy?", "¿Está abierto hoy?"),
    ("context", "È aperto oggi?", "È aperto oggi?"),
    ("context", "Is het museum vandaag open?", "Is het museum vandaag open?"),
    ("context", "O museu abre hoje?", "O museu abre hoje?"),
    ("context", "Kdy je dnes otevřeno?", "Kdy je dnes otevřeno?"),
    ("context", "Музей сегодня открыт?", "Музей сегодня открыт?"),
    ("context", "هل المتحف مفتوح اليوم", "هل المتحف مفتوح اليوم"),
    ("context", "今天几点关门", "今天几点关门"),
    ("context", "今日は何時までですか", "今日は何時までですか"),
    ("context", "오늘 몇 시에 닫나요", "오늘 몇 시에 닫나요"),
    ("context", "What is the time please?", "What is the time please?"),
    ("context", "when is the next train to Leeds", "when is the next train to Leeds"),
    ("context", "What is the time in New York?", "What is the time in New York?"),
    ("context", "tell me the date and time", "tell me the date and time"),
    ("context", "how long until closing", "how long until closing"),
    ("context", "How long before you close?", "How long before you close?"),
    ("context", "How long before I can enter?", "How long before I can enter?"),
    ("context", "When's the next boat?", "When's the next boat?"),
    ("context", "¿Cuándo sale el próximo a Madrid?", "¿Cuándo sale el próximo a Madrid?"),
    ("context", "What are your hours at present?", "What are your hours at present?"),
    ("context", "Wann fährt der nächste Zug?", "Wann fährt der nächste Zug?"),
    ("context", "Quelle heure est-il ?", "Quelle heure est-il ?"),
    ("context", "À quelle heure part le prochain train ?", "À quelle heure part le prochain train ?"),
    ("context", "¿Cuándo sale el próximo tren?", "¿Cuándo sale el próximo tren?"),
    ("context", "Quando parte il prossimo treno?", "Quando parte il prossimo treno?"),
    ("language", "Where are the toilets?", "Wo sind die Toiletten?"),
    ("language", "Where are the toilets?", "Где находятся туалеты?"),
    ("language", "Hola, ¿dónde está la salida?", "Dov'è l'uscita per favore?"),
    ("length", "Tickets?", "Where can I buy the tickets for the new exhibition about ancient ships and harbours?"),
    ("length", "please", "thanks"),
    ("one_word", "Can I bring a dog inside?", "Can I bring a cat inside?"),
    ("one_word", "How do I reset my password quickly?", "How do I reset my username quickly?"),
    ("one_word", "Jak zmienić numer telefonu banku", "Jak zmienić numer konta banku"),
]
ALLOWED = [
    ("What time do you open on Sunday?", "Hello, when does the museum of arts open on Sunday?"),
    ("Where is room 3?", "How do I get to room three?"),
    ("Where are the toilets?", "where is the restroom"),
    ("May I pay by card?", "can i pay with a card"),
    ("How do I change my e-mail address?", "How can the address of my e-mail be changed?"),
    ("Where may I not smoke?", "Where is smoking prohibited?"),
    ("Do you accept credit cards?", "May I pay with a credit card? Thanks!"),
    ("Why can't I pay by card?", "Why is payment by card not possible?"),
    ("Who painted the portrait of Anna Weber?", "by whom is anna weber's picture?"),
    ("A fee of 1,000 euros, why?", "Why is there a fee of 1000 euros?"),
    ("Wann öffnen Sie am Sonntag?", "Hallo, ab wann ist sonntags geöffnet?"),
    ("Où se trouve la caisse du musée ?", "où trouve t on la caisse d un musée"),
    ("Is there a café next to the museum?", "do you have a café next to your museum"),
    ("안녕하세요, 화장실이 어디에 있나요", "화장실이 어디에 있나요"),
    ("Was kostet der Eintritt?", "Wie viel muss man für den Eintritt zahlen?"),
    ("where are the toilets?", "hello, where is the nearest toilet"),
    ("几点开门", "请问几点开门呢？"),
    ("次の電車は何時ですか", "次の電車は何時でしょうか。"),
    ("What is the opening time?", "What are the opening times?"),
    ("Can u tell me how I get a ticket?", "How do I get a ticket?"),
    ("How do I block a card?", "How can I block my card?"),
    ("¿Hay mesas para al menos 5 personas?", "¿Tienen mesas para 5 personas?"),
    ("How late may I arrive at the hotel?", "how late can i arrive at your hotel"),
    ("What is the timetable on Sundays?", "Hello, what is the timetable on Sundays?"),
    ("What is the time limit for parking?", "Tell me the time limit for parking, please"),
    ("What is the date format in the form?", "Tell me the date format in the form"),
    ("How long before the show do the doors open?", "Hi, how long before the show do the doors open?"),
    ("How many days before arrival can I cancel for free?", "Hi, how many days before arrival can I cancel for free?"),
    ("When does the shop next door open?", "Hello, when does the shop next door open?"),
    ("What happens when I press Next?", "So what happens when I press Next?"),
    ("Where is the next bus stop?", "Hi, where is the next bus stop?"),
    ("A quelle heure est servi le petit-déjeuner ?", "A quelle heure est servi le petit-déjeuner ?"),
    ("¿Hay un supermercado próximo al hotel?", "Hola, ¿hay un supermercado próximo al hotel?"),
    ("Tem um mercado próximo ao hotel?", "Tem um mercado próximo ao hotel?"),
]


@pytest.mark.parametrize(("rule", "first", "second"), REFUSED)
def test_what_embeddings_miss_is_refused(rule: str, first: str, second: str) -> None:
    assert refusal(first, second) == rule
    assert refusal(second, first) == rule


@pytest.mark.parametrize(("first", "second"), ALLOWED)
def test_other_wordings_are_left_to_the_boundary(first: str, second: str) -> None:
    assert refusal(first, second) == refusal(second, first) == ""


def test_each_rule_is_in_the_table() -> None:
    assert {rule for rule, _, _ in REFUSED} == set(RULES)


def test_a_long_text_is_never_compared() -> None:
    text = "How does it work? " * MAX_CHARACTERS
    assert refusal(text, text) == "length"


@given(st.text(max_size=80), st.text(max_size=80))
def test_any_text_is_compared_and_the_order_does_not_matter(first: str, second: str) -> None:
    assert bool(refusal(first, second)) == bool(refusal(second, first))
    assert refusal_alone(first) in {"", "context", "length"}


@pytest.mark.parametrize("name", LANGUAGES)
def test_opposites_go_both_ways(name: str) -> None:
    opposites = LANGUAGES[name].opposites
    for word, others in opposites.items():
        assert all(word in opposites[other] for other in others), word
    assert not LANGUAGES[name].fillers & (LANGUAGES[name].negations | LANGUAGES[name].context)
