"""Domains that nothing was tuned on: desks of a library, a doctors' practice, a railway station, a hotel, a town hall.

They measure what the cache does with questions that its rules and its prior have not seen. So do not change a rule, a
word list or the prior by looking at them; write further domains for that.
"""

from __future__ import annotations

from tests.answers.similar.intents import Domain, intent

_AUTHORS = ("Maria Keller", "Mario Keller", "Ruth Hansen")
_MEDIA = ("books", "films", "board games")
_BRANCHES = ("from Mill Road to Park Lane", "from Park Lane to Mill Road")

LIBRARY = (
    intent(
        "How many {media} may I borrow at once?",
        "What is the limit for {media}?",
        "How many {media} can I take home?",
        "Is there a maximum number of {media} per person?",
        media=_MEDIA,
    ),
    intent(
        "How long can I keep {media}?",
        "For how many days are {media} lent?",
        "What is the loan period for {media}?",
        "When do I have to bring {media} back?",
        media=_MEDIA,
    ),
    intent(
        "How do I renew my loans?",
        "Can I extend the loan period?",
        "I need a book for longer, what do I do?",
        "Is it possible to keep a book for another few weeks?",
    ),
    intent(
        "What does it cost if a book is {days} days late?",
        "How high is the fee for {days} days overdue?",
        "I am {days} days late, what do I have to pay?",
        "What fine do I pay after {days} days?",
        days=("3", "7", "14"),
    ),
    intent(
        "How do I reserve a book?",
        "Can I put a book on hold?",
        "I would like to reserve a title.",
        "Is it possible to place a hold on a book?",
    ),
    intent(
        "How do I cancel a reservation?",
        "Can I remove a hold?",
        "I no longer want the book that I reserved.",
        "How can I take back a reservation?",
    ),
    intent(
        "Do you have books by {author}?",
        "Which titles of {author} are in stock?",
        "I'm looking for something by {author}.",
        "Where do I find {author}'s novels?",
        author=_AUTHORS,
    ),
    intent(
        "When did {author} publish her first novel?",
        "In which year did {author}'s first book come out?",
        "What year was the debut of {author}?",
        "How old is the first novel of {author}?",
        author=("Maria Keller", "Ruth Hansen"),
    ),
    intent(
        "Is {author} coming for a reading?",
        "When does {author} read here?",
        "Is there an evening with {author}?",
        "Can I hear {author} live in the library?",
        author=_AUTHORS,
    ),
    intent(
        "What is on floor {floor}?",
        "Which departments are on floor {floor}?",
        "What do I find on floor {floor}?",
        "Tell me what floor {floor} has.",
        floor=("1", "2", "4"),
    ),
    intent(
        "How do I get to floor {floor}?",
        "What is the way to floor {floor}?",
        "I want to go to floor {floor}, how do I do that?",
        "Where do I go up to floor {floor}?",
        floor=("1", "2", "4"),
    ),
    intent(
        "Can I book study room {room}?",
        "Is study room {room} free to reserve?",
        "I would like to have study room {room} for a group.",
        "How do I reserve study room {room}?",
        room=("6", "8", "16"),
    ),
    intent(
        "Where can I {act} a document?",
        "Is there a machine on which I can {act} pages?",
        "I need to {act} something, where do I go?",
        "How do I {act} my homework?",
        act=("print", "scan", "copy"),
    ),
    intent(
        "How much is a page printed in {ink}?",
        "What do you charge for printing in {ink}?",
        "Price per page for {ink} prints?",
        "What does a print in {ink} cost?",
        ink=("colour", "black and white"),
    ),
    intent(
        "May I eat in the reading room?",
        "Is food allowed in the reading room?",
        "Can I have my lunch in the reading room?",
        "Am I permitted to bring a sandwich into the reading room?",
    ),
    intent(
        "What may I not bring into the reading room?",
        "What is forbidden in the reading room?",
        "Which things are not allowed in the reading room?",
    ),
    intent(
        "I lost a book, what happens?",
        "A book that I borrowed is gone.",
        "What do I owe for a missing book?",
        "What if I can't find a borrowed book any more?",
    ),
    intent(
        "I found a book that belongs to the library.",
        "Where do I hand in a library book that I found?",
        "Somebody left one of your books on the train.",
        "What do I do with a library book that is not mine?",
    ),
    intent(
        "I damaged a book, what happens?",
        "A page of my book is torn.",
        "I spilled coffee over one of your books.",
        "Do I have to pay if a book gets broken?",
    ),
    intent(
        "How do I get a library card?",
        "I'd like to become a member.",
        "What do I need to sign up at the library?",
        "Where can I register as a reader?",
    ),
    intent(
        "How do I give up my library card?",
        "I'd like to end my membership.",
        "How can I leave the library as a member?",
        "What do I do to cancel my card?",
    ),
    intent(
        "What does a card for {who} cost?",
        "How much do {who} pay for a year?",
        "Annual fee for {who}?",
        "What's the price of membership for {who}?",
        who=("students", "families", "pensioners"),
    ),
    intent(
        "Can I return books when you're closed?",
        "Is there a return box outside?",
        "Where do I drop off books at night?",
        "How do I give back a book outside opening hours?",
    ),
    intent(
        "Are you open on {holiday}?",
        "Is the library closed on {holiday}?",
        "What are your hours on {holiday}?",
        "Can I come in on {holiday}?",
        holiday=("Christmas Eve", "Easter Monday", "New Year's Day"),
    ),
    intent(
        "Do you have books in {language}?",
        "Where are the {language} books?",
        "I am looking for something to read in {language}.",
        "Which shelf has {language} literature?",
        language=("Turkish", "Polish", "Arabic"),
    ),
    intent(
        "When does the reading group for {topic} meet?",
        "What day is the {topic} reading group?",
        "At what time is your group on {topic}?",
        "Is there a date for the {topic} circle?",
        topic=("poetry", "history", "crime fiction"),
    ),
    intent(
        "How do I borrow an e-book?",
        "Can I read your books on a tablet?",
        "How does lending of electronic books work?",
        "Where do I download e-books?",
    ),
    intent(
        "How do I give back an e-book early?",
        "Can I return an electronic book before its time is over?",
        "Do e-books have to be returned?",
    ),
    intent(
        "How long does a book take {way}?",
        "When does a book arrive that is sent {way}?",
        "How many days does a transfer {way} need?",
        "I want a book moved {way}, how long do I wait?",
        way=_BRANCHES,
    ),
    intent(
        "Can I donate my old books?",
        "Do you take books as a gift?",
        "I want to give you some books.",
        "Where do I bring books that I don't need any more?",
    ),
    intent(
        "Can I buy old books from you?",
        "Do you sell books that are sorted out?",
        "Is there a sale of used books?",
        "Are there second-hand books to purchase?",
    ),
    intent(
        "Can I use a computer with internet?",
        "Are there PCs for visitors?",
        "Where can I go online?",
        "I need a computer for an hour.",
    ),
)

_DOCTORS = ("Sarah Lang", "Sara Long", "Paul Becker")
_DRUGS = ("ibuprofen", "paracetamol", "aspirin")
_TESTS = ("blood test", "X-ray", "ultrasound")
_ILLNESSES = ("flu", "measles", "tetanus")

CLINIC = (
    intent(
        "How do I get an appointment with Doctor {name}?",
        "I'd like to see Doctor {name}.",
        "When is Doctor {name}'s next free slot?",
        "Can I book a visit to Doctor {name}?",
        name=_DOCTORS,
    ),
    intent(
        "I have to cancel my appointment with Doctor {name}.",
        "How do I call off a visit to Doctor {name}?",
        "I can't come to Doctor {name}, whom do I tell?",
        "Please strike out my slot with Doctor {name}.",
        name=_DOCTORS,
    ),
    intent(
        "Is Doctor {name} in on {day}?",
        "What are Doctor {name}'s hours on {day}?",
        "Can I see Doctor {name} on {day}?",
        "From when to when is Doctor {name} there on {day}?",
        name=("Sarah Lang", "Paul Becker"),
        day=("Tuesday", "Thursday"),
    ),
    intent(
        "How many tablets of {drug} are allowed in a day?",
        "How often may I take {drug}?",
        "What is the highest daily dose of {drug}?",
        "How much {drug} can an adult take?",
        drug=_DRUGS,
    ),
    intent(
        "Do I take {drug} before a meal?",
        "Is it right to swallow {drug} before eating?",
        "Should {drug} be taken ahead of breakfast?",
        drug=_DRUGS,
    ),
    intent(
        "Do I take {drug} after a meal?",
        "Is it right to swallow {drug} after eating?",
        "Should {drug} be taken once I had breakfast?",
        drug=_DRUGS,
    ),
    intent(
        "When do I start with {drug}?",
        "From which day on do I take {drug}?",
        "When should I begin to take {drug}?",
        drug=_DRUGS,
    ),
    intent(
        "When do I stop {drug}?",
        "Until which day do I take {drug}?",
        "When should I end taking {drug}?",
        drug=_DRUGS,
    ),
    intent(
        "How do I get a new prescription for {drug}?",
        "I have run out of {drug}.",
        "Can you prescribe {drug} to me once more?",
        "Where do I order my {drug} prescription?",
        drug=_DRUGS,
    ),
    intent(
        "I need a sick note for {days} days.",
        "Can the doctor write me off work for {days} days?",
        "How do I get a certificate for {days} days off?",
        "I'd like to be off sick for {days} days.",
        days=("1", "3", "5"),
    ),
    intent(
        "Do you vaccinate against {illness}?",
        "Can I get a shot against {illness} here?",
        "I'd like to be vaccinated against {illness}.",
        "Is the {illness} vaccine available at your practice?",
        illness=_ILLNESSES,
    ),
    intent(
        "When is the next vaccination against {illness} due?",
        "After how many years do I renew the {illness} vaccination?",
        "How long does the {illness} vaccine protect me?",
        "When do I need a booster against {illness}?",
        illness=_ILLNESSES,
    ),
    intent(
        "What are the side effects of the {illness} vaccine?",
        "Is a vaccination against {illness} risky?",
        "How will I feel after the shot against {illness}?",
        "Does the {illness} vaccination make one ill?",
        illness=_ILLNESSES,
    ),
    intent(
        "May I eat before my {test}?",
        "Must I be fasting for the {test}?",
        "Should I have an empty stomach for the {test}?",
        test=_TESTS,
    ),
    intent(
        "May I eat after my {test}?",
        "How soon is food allowed once the {test} is over?",
        "Should I wait with lunch after the {test}?",
        test=_TESTS,
    ),
    intent(
        "When do I get the results of my {test}?",
        "How many days until my {test} is evaluated?",
        "How soon are the findings of my {test} there?",
        "How long do I wait for what the {test} has shown?",
        test=_TESTS,
    ),
    intent(
        "How long does the {test} take?",
        "What is the duration of the {test}?",
        "How many minutes do I plan for the {test}?",
        test=_TESTS,
    ),
    intent(
        "From what age do you treat children?",
        "Can I bring my child to you?",
        "Do you see small children as patients?",
        "Is my four-year-old welcome at your practice?",
    ),
    intent(
        "Do you accept patients with {kind} insurance?",
        "I have {kind} insurance, can I come?",
        "Is {kind} health insurance taken?",
        "Are you open to {kind} patients?",
        kind=("private", "public"),
    ),
    intent(
        "What do I pay without insurance?",
        "I am not insured, what does a visit cost?",
        "How much is it if one has no insurance?",
    ),
    intent(
        "Do you take new patients?",
        "I'd like to become a patient of yours.",
        "Can I register with your practice?",
        "Is there room for one more patient?",
    ),
    intent(
        "I want to leave your practice as a patient.",
        "How do I change to another doctor?",
        "I no longer want to be your patient.",
    ),
    intent(
        "Whom do I call at the weekend?",
        "Who helps me when you're closed?",
        "Which number is for emergencies on Sundays?",
        "Where do I go if I get ill at night?",
    ),
    intent(
        "I need a referral to a {specialist}.",
        "Can you send me to a {specialist}?",
        "How do I get to see a {specialist}?",
        "Do I need a letter for the {specialist}?",
        specialist=("cardiologist", "dermatologist", "neurologist"),
    ),
    intent(
        "Do you make home visits?",
        "Can the doctor come to my house?",
        "My mother can't walk, does somebody come to her?",
        "Is a visit at home possible?",
    ),
    intent(
        "Can I talk to the doctor by video?",
        "Do you offer online consultations?",
        "Is it possible to see the doctor on a screen?",
        "How does a video visit work?",
    ),
    intent(
        "How do I raise my blood pressure?",
        "What helps against low blood pressure?",
        "My blood pressure is too low, what can I do?",
        "Which food makes blood pressure go up?",
    ),
    intent(
        "How do I lower my blood pressure?",
        "What helps against high blood pressure?",
        "My blood pressure is too high, what can I do?",
        "Which food makes blood pressure go down?",
    ),
    intent(
        "I have a fever of {degrees} degrees, what shall I do?",
        "My temperature is {degrees}, is that bad?",
        "What helps with {degrees} degrees of fever?",
        "The thermometer says {degrees}, must I come?",
        degrees=("38", "39", "40"),
    ),
    intent(
        "I am allergic to {stuff}, is that a problem?",
        "What do I do with an allergy to {stuff}?",
        "My body does not tolerate {stuff}.",
        stuff=("penicillin", "latex", "nuts"),
    ),
    intent(
        "I am not allergic to {stuff}, must I tell you?",
        "Do I write down that I have no allergy to {stuff}?",
        stuff=("penicillin", "latex", "nuts"),
    ),
    intent(
        "What do I bring to my first visit?",
        "Which papers do you need from a new patient?",
        "What should I have with me when I come for the first time?",
    ),
    intent(
        "Is there a shuttle {way}?",
        "Do you drive patients {way}?",
        "Can somebody take me {way}?",
        "Do you offer a ride {way}?",
        way=("from the station to the practice", "from the practice to the station"),
    ),
    intent(
        "How do I get a copy of my file?",
        "Can I see what you have written about me?",
        "I'd like to have my records on paper.",
    ),
)

_TOWNS = ("Bonn", "Trier", "Ulm")
_WAYS = ("from Bonn to Ulm", "from Ulm to Bonn")

STATION = (
    intent(
        "When does the next train leave {way}?",
        "At what time can I travel {way}?",
        "Which is the earliest connection {way}?",
        "I want to go {way}, when is a train?",
        way=_WAYS,
    ),
    intent(
        "How much is a ticket {way}?",
        "What do I pay for a journey {way}?",
        "What is the fare {way}?",
        "Price of a trip {way}?",
        way=_WAYS,
    ),
    intent(
        "From which platform does the train to {town} go?",
        "Where do I board for {town}?",
        "Which track has the train to {town}?",
        "On what platform is the {town} train?",
        town=_TOWNS,
    ),
    intent(
        "Where does the train from {town} arrive?",
        "On which platform do I meet somebody from {town}?",
        "Which track is for arrivals out of {town}?",
        town=_TOWNS,
    ),
    intent(
        "How do I get to platform {number}?",
        "Where is platform {number}?",
        "What is the way to platform {number}?",
        number=("2", "9", "11"),
    ),
    intent(
        "Is there a lift to platform {number}?",
        "Can I reach platform {number} without stairs?",
        "How does a wheelchair user get to platform {number}?",
        number=("2", "9", "11"),
    ),
    intent(
        "Do I have to change trains on the way to {town}?",
        "Is there a direct connection to {town}?",
        "How many changes are there to {town}?",
        town=_TOWNS,
    ),
    intent(
        "May I take a {thing} on the train?",
        "Is a {thing} allowed on board?",
        "Do I need a ticket for my {thing}?",
        thing=("bicycle", "dog", "pram"),
    ),
    intent(
        "I left my {thing} on the train.",
        "Where is the lost property office for a {thing}?",
        "My {thing} is still in the carriage, what do I do?",
        thing=("bag", "phone", "jacket"),
    ),
    intent(
        "Somebody has left a {thing} on the train.",
        "I found a {thing} in the carriage, where do I hand it in?",
        "Whom do I give a {thing} that is not mine?",
        thing=("bag", "phone", "jacket"),
    ),
    intent(
        "What do I get if my train is {minutes} minutes late?",
        "How high is the compensation for a delay of {minutes} minutes?",
        "My train was {minutes} minutes behind time, do I get money back?",
        minutes=("30", "60", "120"),
    ),
    intent(
        "Can I return a ticket before the day of travel?",
        "How do I give back a ticket ahead of the journey?",
        "Is a refund possible before I leave?",
    ),
    intent(
        "Can I return a ticket after the day of travel?",
        "How do I give back a ticket once the journey is over?",
        "Is a refund possible after I have travelled?",
    ),
    intent(
        "Where can I buy a monthly pass?",
        "How do I subscribe to a season ticket?",
        "I would like a pass for each month.",
    ),
    intent(
        "How do I end my monthly pass?",
        "I would like to cancel my season ticket.",
        "How can I give notice for my pass?",
    ),
    intent(
        "Is there a discount for {who}?",
        "What do {who} pay?",
        "Do {who} travel at a lower price?",
        who=("students", "pensioners", "families"),
    ),
    intent(
        "What does a locker cost for {hours} hours?",
        "How much is it to store luggage for {hours} hours?",
        "Price for leaving my suitcase {hours} hours?",
        hours=("2", "6", "24"),
    ),
    intent(
        "Is there a train at night on {day}?",
        "How late do trains run on {day}?",
        "When is the last train on {day}?",
        day=("Friday", "Saturday", "Sunday"),
    ),
    intent(
        "Where may I smoke?",
        "Is there a smoking area?",
        "On which platform is smoking permitted?",
    ),
    intent(
        "Where may I not smoke?",
        "In which areas is smoking not permitted?",
        "Where is smoking forbidden?",
    ),
    intent(
        "Where is the waiting room?",
        "Can I sit somewhere until my train comes?",
        "Is there a warm room to wait in?",
    ),
    intent(
        "Where is the nearest taxi?",
        "How do I get a cab?",
        "Is there a taxi rank?",
    ),
)

_GUESTS = ("Clara Novak", "Carla Novak", "David Moreau")
_RIDES = ("from the hotel to the airport", "from the airport to the hotel")

HOTEL = (
    intent(
        "Which room does {guest} stay in?",
        "What is the room number of {guest}?",
        "Where does {guest} sleep?",
        "Can you tell me {guest}'s room?",
        guest=_GUESTS,
    ),
    intent(
        "Please leave a message for {guest}.",
        "I want {guest} to know that I called.",
        "Can you pass something on to {guest}?",
        guest=_GUESTS,
    ),
    intent(
        "Do I have a message from {guest}?",
        "Has {guest} left something for me?",
        "Did {guest} call for me?",
        guest=_GUESTS,
    ),
    intent(
        "When is breakfast on {day}?",
        "From what time can we have breakfast on {day}?",
        "What are the breakfast hours on {day}?",
        "How early do you serve breakfast on {day}?",
        day=("weekdays", "weekends", "Sunday"),
    ),
    intent(
        "When is dinner on {day}?",
        "From what time can we have dinner on {day}?",
        "What are the dinner hours on {day}?",
        "How late do you serve dinner on {day}?",
        day=("weekdays", "weekends", "Sunday"),
    ),
    intent(
        "What does a {kind} room cost for a night?",
        "How much is one night in a {kind} room?",
        "Rate for a {kind} room, please?",
        "What do you charge for a {kind} room?",
        kind=("single", "double", "family"),
    ),
    intent(
        "Do you have a {kind} room free?",
        "Is a {kind} room available?",
        "I need a {kind} room for tomorrow night.",
        "Could we get a {kind} room?",
        kind=("single", "double", "family"),
    ),
    intent(
        "I want to stay {nights} nights longer.",
        "Can we extend our stay by {nights} nights?",
        "Is our room free for another {nights} nights?",
        nights=("2", "3", "7"),
    ),
    intent(
        "I want to leave {nights} nights earlier.",
        "Can we shorten our stay by {nights} nights?",
        "Could we depart {nights} nights earlier?",
        nights=("2", "3", "7"),
    ),
    intent(
        "By when must we check out?",
        "Until what time can we keep the room?",
        "When do we have to leave the room?",
        "What is the latest check-out?",
    ),
    intent(
        "From when can we check in?",
        "At what time do we get the room?",
        "When is our room ready?",
        "What is the earliest check-in?",
    ),
    intent(
        "Can I have a room with a {thing}?",
        "I would like a room that has a {thing}.",
        "Are there rooms with a {thing}?",
        thing=("balcony", "bathtub", "kitchen"),
    ),
    intent(
        "Can I have a room without a {thing}?",
        "I would like a room that has no {thing}.",
        "Are there rooms without a {thing}?",
        thing=("balcony", "bathtub", "carpet"),
    ),
    intent(
        "The {device} in my room is broken.",
        "My {device} does not work.",
        "Somebody has to repair the {device} in our room.",
        "What do I do about a defective {device}?",
        device=("shower", "television", "heating"),
    ),
    intent(
        "How do I turn on the {device}?",
        "I cannot get the {device} to start.",
        "How does one switch the {device} on?",
        device=("heating", "television", "air conditioning"),
    ),
    intent(
        "How do I turn off the {device}?",
        "I cannot get the {device} to stop.",
        "How does one switch the {device} off?",
        device=("heating", "television", "air conditioning"),
    ),
    intent(
        "Could I get another {item}?",
        "We need one more {item} in our room.",
        "Please bring an extra {item}.",
        item=("pillow", "towel", "blanket"),
    ),
    intent(
        "How do I travel {way}?",
        "What is the best way {way}?",
        "How can we get {way}?",
        "I want to go {way}, how do I do that?",
        way=_RIDES,
    ),
    intent(
        "Wake me at {time}, please.",
        "I would like a wake-up call at {time}.",
        "Can you ring me up at {time}?",
        time=("6:30", "7:00", "7:30"),
    ),
    intent(
        "On which floor is the {place}?",
        "Where do I find the {place}?",
        "How do we get to the {place}?",
        "Which way is the {place}?",
        place=("sauna", "gym", "pool", "bar"),
    ),
    intent(
        "Until when is the {place} open?",
        "When does the {place} close?",
        "How late can we use the {place}?",
        place=("sauna", "gym", "pool", "bar"),
    ),
    intent(
        "From when is the {place} open?",
        "When does the {place} open?",
        "How early can we use the {place}?",
        place=("sauna", "gym", "pool", "bar"),
    ),
    intent(
        "Are children allowed in the {place}?",
        "May our kids come into the {place}?",
        "Can I bring children to the {place}?",
        place=("sauna", "gym", "pool", "bar"),
    ),
    intent(
        "I lost the key of my room.",
        "My key card is gone, what do I do?",
        "What happens if we cannot find our key?",
    ),
    intent(
        "I found a key in the corridor.",
        "Here is a key that somebody has lost.",
        "Where do I hand in a key that I found?",
    ),
    intent(
        "Can I pay the bill in {money}?",
        "Do you accept {money}?",
        "Is {money} fine for the bill?",
        money=("dollars", "euros", "cash"),
    ),
    intent(
        "Do I need a password for the Wi-Fi?",
        "How do I get on the internet from my room?",
        "What is the code of the wireless network?",
    ),
    intent(
        "Can you store our luggage after check-out?",
        "Where do we put our bags until our flight?",
        "May we leave suitcases with you for the afternoon?",
    ),
    intent(
        "May I smoke on the balcony?",
        "Is smoking allowed on the balcony?",
        "Is it permitted to smoke on the balcony?",
    ),
    intent(
        "What am I not allowed to do on the balcony?",
        "Which things are forbidden on the balcony?",
    ),
    intent(
        "Do you wash clothes for guests?",
        "Is there a laundry service?",
        "Where can I have a shirt cleaned?",
    ),
)

_CLERKS = ("Nina Vogel", "Nino Vogel", "Thomas Brandt")
_PAPERS = ("passport", "identity card", "driving licence")
_MOVES = ("from Elm Street to Oak Avenue", "from Oak Avenue to Elm Street")

TOWN_HALL = (
    intent(
        "How do I apply for a {paper}?",
        "I need a new {paper}.",
        "What must I do to get a {paper}?",
        "Where can I have a {paper} issued?",
        paper=_PAPERS,
    ),
    intent(
        "What does a {paper} cost?",
        "How much do I pay for a {paper}?",
        "How high is the fee for a {paper}?",
        "Price for issuing a {paper}?",
        paper=_PAPERS,
    ),
    intent(
        "How long does it take until my {paper} is ready?",
        "When can I collect my {paper}?",
        "How many weeks do I wait for a {paper}?",
        "Is my {paper} made quickly?",
        paper=_PAPERS,
    ),
    intent(
        "I lost my {paper}, what do I do?",
        "My {paper} is gone.",
        "Where do I report that my {paper} was lost?",
        "What happens if I no longer find my {paper}?",
        paper=_PAPERS,
    ),
    intent(
        "Which documents do I need to marry?",
        "What papers must we bring for a wedding?",
        "We want to get married, which documents do you want?",
        "What is needed to register a marriage?",
    ),
    intent(
        "Which documents do I not need to marry?",
        "What papers must we not bring for a wedding?",
        "We want to get married, which documents don't you want?",
    ),
    intent(
        "How do I register my {animal}?",
        "I have a {animal}, where do I enroll it?",
        "Must a {animal} be registered?",
        "Where can I sign up my {animal}?",
        animal=("dog", "horse"),
    ),
    intent(
        "What is the tax for {count} dogs?",
        "How much dog tax do I pay for {count} dogs?",
        "I have {count} dogs, what do they cost a year?",
        "Yearly tax on {count} dogs?",
        count=("2", "3", "4"),
    ),
    intent(
        "Where do I report that I moved {way}?",
        "I moved {way}, whom do I tell?",
        "How do I register a move {way}?",
        "We are moving {way}, what must we fill in?",
        way=_MOVES,
    ),
    intent(
        "How do I book a hall for a party?",
        "Can I rent a room of the town hall to celebrate?",
        "We want to hold a party in your hall, is that possible?",
        "Whom do I ask about renting the hall?",
    ),
    intent(
        "How do I cancel the hall that I booked?",
        "I no longer need the hall that I rented.",
        "Can I give back the room that I rented for a party?",
        "We don't hold our party in your hall any more.",
    ),
    intent(
        "In which room is {clerk}?",
        "Where do I find {clerk}?",
        "What is the office of {clerk}?",
        "I have to see {clerk}, where do I go?",
        clerk=_CLERKS,
    ),
    intent(
        "What is the phone number of {clerk}?",
        "How can I call {clerk}?",
        "Under which number do I reach {clerk}?",
        "I want to phone {clerk}.",
        clerk=_CLERKS,
    ),
    intent(
        "When is the waste of bin {bin} collected?",
        "On which day is bin {bin} emptied?",
        "What is the collection day of bin {bin}?",
        "When do I put bin {bin} on the street?",
        bin=("1", "2", "3"),
    ),
    intent(
        "What goes into bin {bin}?",
        "What may I throw into bin {bin}?",
        "Which waste belongs in bin {bin}?",
        "For what is bin {bin}?",
        bin=("1", "2", "3"),
    ),
    intent(
        "Where can I get rid of old furniture?",
        "Who takes my old sofa?",
        "How do I dispose of bulky waste?",
        "I have a broken wardrobe, where does it go?",
    ),
    intent(
        "How do I enter my child for {place}?",
        "Where can I sign up my child for {place}?",
        "I would like a spot in {place} for my child.",
        "What must I do so that my child gets into {place}?",
        place=("kindergarten", "primary school", "the music school"),
    ),
    intent(
        "How do I take my child out of {place}?",
        "Where do I sign my child off from {place}?",
        "My child leaves {place}, whom do I tell?",
        "I want to end my child's time at {place}.",
        place=("kindergarten", "the music school"),
    ),
    intent(
        "May I build a {thing} without a permit?",
        "Do I need permission for a {thing}?",
        "Is a building permit necessary for a {thing}?",
        "Must I ask before I build a {thing}?",
        thing=("garage", "fence", "garden shed"),
    ),
    intent(
        "How do I get a parking permit for zone {zone}?",
        "I live in zone {zone} and need a place for my car.",
        "Where do residents of zone {zone} apply for parking?",
        "Can I have a permit to park in zone {zone}?",
        zone=("A", "B", "C"),
    ),
    intent(
        "Where do I pay a parking fine?",
        "How can I settle a parking ticket?",
        "I got a fine for parking, how do I pay it?",
        "To which account does the money for a parking ticket go?",
    ),
    intent(
        "How do I object to a parking fine?",
        "I don't agree with a parking ticket.",
        "Can I appeal against a fine for parking?",
        "My parking ticket is wrong, what can I do?",
    ),
    intent(
        "Where do I vote?",
        "Which polling station is mine?",
        "Where is my polling station?",
        "In which building can I cast my vote?",
    ),
    intent(
        "How do I vote by post?",
        "Can I have a postal ballot?",
        "I am away on election day, how do I vote?",
        "Where do I ask for the papers to vote by mail?",
    ),
    intent(
        "How do I report a {damage}?",
        "There is a {damage} in my street.",
        "Whom do I tell about a {damage}?",
        "I saw a {damage}, who repairs it?",
        damage=("broken street lamp", "pothole", "fallen tree"),
    ),
    intent(
        "How do I get a certificate of {event}?",
        "I need a certificate of {event}.",
        "Can you send me a certificate of {event}?",
        "Where are certificates of {event} issued?",
        event=("birth", "death", "residence"),
    ),
    intent(
        "How do I register a business?",
        "I want to start a business, where do I sign up?",
        "What must I fill in to open a shop in town?",
        "Where do founders register their company?",
    ),
    intent(
        "How do I close down a business?",
        "I want to give up my business, where do I sign off?",
        "What must I fill in to shut my shop in town?",
        "Where do owners deregister their company?",
    ),
)

_LIBRARY_BEFORE = ("", "", "Good morning, ", "Hey there, ", "Quick question: ", "Could you help? ", "Hi, ", "Pardon, ")
_CLINIC_BEFORE = ("", "", "Good evening, ", "Hello there, ", "Just a question: ", "Can you help? ", "Hi, ", "Sorry, ")

FRESH = {
    "library": Domain(
        LIBRARY,
        _LIBRARY_BEFORE,
        ("", "", " Cheers!", " Please help.", " That would be great to know."),
        "You are at the desk of the public library. Answer the question in a few words.\n"
        "Loans: books 28 days, films 7 days, board games 14 days. At once: 20 books, 5 films, 2 board games.\n"
        "Renew loans, reserve books and cancel reservations online. Late: 20 cents a day. Lost or damaged: the price.\n"
        "Floor 1: children, films. Floor 2: novels, languages. Floor 4: science, reading room. A lift is in the hall.\n"
        "Study rooms 6, 8 and 16: book at the desk. Print, scan and copy on floor 1: 10 cents, colour 50 cents.\n"
        "No food in the reading room. Cards with a passport: students 5, families 30, pensioners 10 euros.\n"
        "Return box: back door. Closed on holidays. Reading groups: poetry Monday, history Tuesday, crime Friday.\n"
        "Books between branches: 3 days. Book sale in May. Gifts of books are welcome. Computers on floor 1.",
    ),
    "clinic": Domain(
        CLINIC,
        _CLINIC_BEFORE,
        ("", "", " Thank you so much!", " Many thanks.", " I am a bit worried."),
        "You are at the reception of a doctors' practice. Answer the question in a few words.\n"
        "Sarah Lang: Tuesday 8 to 12, Thursday 14 to 18. Paul Becker: Tuesday 14 to 18. Sara Long: Monday 8 to 12.\n"
        "Appointments and cancellations: phone 500. Emergencies: 112. At the weekend: phone 116.\n"
        "Ibuprofen: 3 a day, after meals. Paracetamol: 4 a day. Aspirin: 2 a day, after meals.\n"
        "Prescriptions, sick notes and referrals: at the desk. Vaccinations on Thursday: flu, measles, tetanus.\n"
        "Blood test: fasting, 5 minutes, results in 2 days. X-ray: 10 minutes. Ultrasound: 20 minutes.\n"
        "Children from 6 years. All insurances. Without insurance: 60 euros. New patients bring a passport.\n"
        "Home visits on Friday. Video visits on Monday. Fever above 39: come. No shuttle. Copies of files: 10 euros.",
    ),
    "station": Domain(
        STATION,
        ("", "", "Hi there, ", "Excuse me please, ", "A short question: ", "Hello, ", "I need help: ", "Pardon me, "),
        ("", "", " Thanks a million!", " I am in a hurry.", " Please."),
    ),
    "hotel": Domain(
        HOTEL,
        ("", "", "Good day, ", "Hello desk, ", "May I ask: ", "Hi, ", "One more thing: ", "Excuse me, "),
        ("", "", " Thanks in advance!", " It is urgent.", " Kind regards."),
    ),
    "town hall": Domain(
        TOWN_HALL,
        ("", "", "Hello, ", "Dear team, ", "A brief question: ", "Hi there, ", "I wonder: ", "Sorry, "),
        ("", "", " Thanks for your help!", " Best wishes.", " Please reply soon."),
    ),
}
"""The domains that were not looked at while the prior, the rules and their words were chosen.

With one exception: the library showed that the rule about order missed swapped names beside other words. The station
was written after that rule was fixed. The hotel was written before the boundary learned from several neighbours, the
town hall before the prior said that an entry was once a question.
"""
