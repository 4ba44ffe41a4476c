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
# The endless model's answers to these have no two tokens that are almost equally likely, and their text, cut at any
# point, tokenizes to the tokens that were drawn.
CERTAIN = [
    "no",
    "no need",
    "no more",
    "yes",
    "coffee coffee coffee",
    "coffee coffee coffee coffee",
    "word word word",
    "word word word word",
]
CANDIDATES = [*CERTAIN, *(f"Hello, my name is {name}." for name in NAMES[:16])]
