"""The prompts of the demo."""

# The prompts for answers that are compared. Two engines round differently, so greedy answers differ from some token
# that is almost as likely as another; only prompts whose answers agree are used for the steps that break something.
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
