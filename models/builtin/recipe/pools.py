"""The words that the corpus is written with: names, places, things, and makers of random values."""

from __future__ import annotations

import random
import string

from .samples import Draw, words

NAMES = words("""Anna, Ben, Clara, David, Emma, Felix, Greta, Hugo, Ida, Jonas, Karin, Leo, Mia, Noah, Olga, Paul,
Rita, Sam, Tina, Uwe, Vera, Walter, Yara, Zoe, Alice, Bruno, Carmen, Dario, Elena, Frank, Gina,
Harold, Irene, Jack, Kofi, Lucia, Mateo, Nadia, Omar, Priya, Quentin, Rosa, Stefan, Tariq, Ursula,
Victor, Wendy, Ximena, Yusuf, Zeynep, Arthur, Bianca, Cedric, Diana, Edgar, Farah, Gustav, Helen,
Igor, Jasmin, Kenji, Laura, Marco, Nina, Oscar, Petra, Ravi, Sofia, Tomas, Valerie, Wanda, Andre,
Beth, Cora, Dennis, Eva, Fiona, George, Hannah, Ivan, Julia, Keith, Linda, Martin, Nora""")
CITIES = words("""Oslo, Paris, London, Berlin, Madrid, Rome, Vienna, Prague, Dublin, Lisbon, Athens, Helsinki, Warsaw,
Zurich, Geneva, Hamburg, Munich, Lyon, Milan, Turin, Porto, Seville, Bergen, Malmo, Ghent, Bruges,
Boston, Chicago, Denver, Seattle, Austin, Dallas, Toronto, Montreal, Tokyo, Osaka, Seoul, Delhi,
Mumbai, Cairo, Nairobi, Lagos, Lima, Quito, Sydney, Perth, Auckland, Manila, Jakarta, Hanoi, New
York, San Diego, Cape Town, Hong Kong, Basel, Leeds""")
ROOMS = words("""kitchen, bedroom, living room, bathroom, hallway, =office, garage, dining room, =nursery, attic,
cellar, garden, balcony, study, guest room, laundry room, basement, =porch, library, workshop,
lobby, terrace, playroom, ~conservatory, ~sunroom, ~pantry, ~loft, ~boat house""")
COLOURS = words("""red, blue, green, yellow, orange, =purple, pink, white, warm white, turquoise, violet, amber, cyan,
=magenta, gold, ~crimson, ~teal, ~lavender, ~beige""")
ITEMS = words("""milk, =bread, butter, eggs, cheese, apples, bananas, coffee, tea, =sugar, flour, rice, pasta,
tomatoes, onions, potatoes, carrots, salt, pepper, olive oil, yoghurt, honey, jam, oats, =soap,
shampoo, toothpaste, paper towels, batteries, light bulbs, dog food, cat litter, orange juice,
mineral water, chicken, fish, lettuce, cucumbers, lemons, garlic, mushrooms, beans, lentils,
chocolate, biscuits, ice cream, napkins, candles, dish soap, bin bags, peanut butter, spinach,
grapes, pears, cream, ham, noodles, vinegar, mustard, =ketchup, almonds, raisins, crackers, sponges,
nappies, ~couscous, ~marmalade, ~radishes, ~tofu""")
ARTISTS = words("""Mozart, Bach, Beethoven, Vivaldi, Chopin, Queen, Abba, Adele, Miles Davis, Nina Simone, Bob Marley,
Elvis, Daft Punk, Radiohead, Coldplay, Madonna, Prince, Bowie, Dylan, Verdi, Handel, Brahms, Ella
Fitzgerald, Sting, jazz, rock, classical music, folk songs, lullabies, piano music, rain sounds, pop
hits, blues, soul, country, techno""")
MENU = words("""latte, espresso, =cappuccino, flat white, hot chocolate, green tea, =lemonade, orange juice, muffin,
=croissant, bagel, =cheesecake, brownie, carrot cake, apple pie, sandwich, toast, soup, salad,
burger, pizza, omelette, pancake, waffle, scone, smoothie, milkshake, iced tea, cookie, pretzel,
wrap, quiche, baguette, mocha, =day ticket, family ticket, postcard, umbrella, map, towel, audio
guide, poster, key ring, water bottle, locker, deck chair, ~tiramisu, ~panini, ~macaron, ~strudel,
~chai""")
PLACES = words("""the Harbour Hotel, the City Museum, Cafe Linden, the Corner Bakery, the Grand Library, Pine Lodge,
the Town Hall, Bluebird Cafe, the Sports Centre, Green Park Hostel, the Art Gallery, Sunrise Clinic,
the Maple Inn, the Central Station, Rose Cottage, the Science Centre, Hill House, the Swimming Pool,
Oak Street School, the Garden Centre, the Ferry Terminal, Lakeside Camping, the Film House, Miller's
Farm, the Old Mill, the Community Centre, the Zoo""")
BOT_NAMES = words("""Milo, Pip, Luna, Nova, Robin, Sage, Echo, Iris, Otto, Ruby, Finn, Hazel, Juno, Kiki, Bolt, Dot,
Jarvis, Poppy, Rex, Tilly, Momo, Basil, Clover, Ziggy, Pepper, Olive, Theo, Wren, Ada, Alfie, Coco,
Max""")
SPOTS = words("""on the ground floor next to the lift, on the second floor by the stairs, behind the reception, to
the left of the entrance, to the right of the cafe, at the end of the corridor, in the basement,
opposite the main door, next to the car park, across the street, in the east wing, in the west wing,
beside the fountain, under the stairs, near gate four, past the gift shop, on the roof, in the
courtyard, between the shop and the cafe, at the back of the hall, on the first floor, by the
window, in room 12, down the hall on the left, down the hall on the right, outside by the bikes, in
the blue cupboard, under the flower pot, on the top shelf, in the drawer by the door, behind the
garage""")
FACILITIES = words("""toilets, lift, reception, car park, gift shop, cloakroom, lockers, =cash machine, first aid room,
cafe, restaurant, swimming pool, gym, sauna, bus stop, taxi stand, meeting room, printer, lost
property desk, information desk, prayer room, baby changing room, =smoking area, bike racks, fire
exit, ticket office, drinking fountain, =laundry, ice machine, conference hall, playground, terrace,
charging station, luggage room, vending machine, ~chapel, ~box office, ~kids club, ~tea kitchen,
~helipad""")
KEY_HEADS = words("""code, number, password, name, =address, ~keeper, ~batch, time, price, day, date, fee, owner, limit,
size, colour, brand, =model, contact, deadline, address, level, =room, deposit, schedule, pin,
~serial, ~tariff""")
KEY_NOUNS = words("""door, gate, garage, locker, alarm, safe, =parking, breakfast, lunch, dinner, checkout, check-in,
bus, shuttle, taxi, plumber, doctor, vet, school, teacher, manager, cleaner, gardener, boiler,
heating, =printer, router, television, bike, boat, tent, =pool, gym, spa, tour, guide, ticket,
meeting, training, delivery, parcel, rubbish, paper bin, recycling, water meter, gas meter, =fridge,
oven, washing machine, =dog, cat, hamster, neighbour, landlord, tenant, caretaker, night desk, front
desk, book club, choir, market, library card, membership, season pass, emergency, helpline, laundry,
minibar, roof, cellar, storage, guest, staff, visitor, kitchen, studio, workshop, stage, projector,
camera, ~ferry, ~greenhouse, ~piano, ~tractor""")
PREFERENCES = words("""colour, food, animal, season, number, drink, song, book, film, sport, city, flower, game, dish,
fruit, band, day, month, hobby, pet""")
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
WEATHER = words("""sunny, cloudy, rainy, windy, foggy, snowy, stormy, clear, light rain, heavy rain, overcast, drizzle,
hail, partly cloudy, thunder""")

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
    """Make a pronounceable word that no dictionary has, and that is no offence."""
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
    """Draw a value of any open class."""
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
    """Draw the name of a fact, such as 'gate code'; a third of them hold a made-up word."""
    head = draw.pick(KEY_HEADS)
    if draw.chance(0.35):
        return f"{draw.open(pseudo_word)} {head}"
    return f"{draw.pick(KEY_NOUNS)} {head}"
