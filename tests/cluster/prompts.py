"""What the demo asks."""

# What is asked where answers are compared. Two engines round differently, so greedy answers part at some token that is
# nearly as likely as another; those that do not are the ones to break.
NAMES = [
    "Robin",
    "Kim",
    "Ada",
    "Sam",
    "Max",
    "Eve",
    "Tom",
    "Ann",
    "Ben",
    "Mia",
    "Leo",
    "Zoe",
    "Ian",
    "Amy",
    "Jon",
    "Liz",
    "Ray",
    "Sue",
    "Dan",
    "Pam",
    "Ned",
    "Ivy",
    "Gus",
    "Fay",
]
CANDIDATES = [f"Hello, my name is {name}." for name in NAMES]
