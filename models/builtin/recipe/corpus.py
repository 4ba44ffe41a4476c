"""Mixes the kinds of conversation into a stream, and checks that training text contains no evaluation prompt."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator

from . import facts, memory, sessions, structured, sums, talk, tools
from .chat import render
from .samples import Draw, Sample, Split, normal
from .sealed import check_sealed, sealed_wordings

Maker = Callable[[Draw], Sample]

MIXTURE: tuple[tuple[Maker, float], ...] = (
    (talk.small_talk, 18),
    (talk.foreign, 18),
    (facts.foreign_beside, 3),
    (sums.simple_sum, 3),
    (sums.conversion, 2.5),
    (sums.sum_follow_up, 7),
    (facts.known, 11),
    (facts.quiz, 6),
    (facts.absent, 14),
    (facts.follow_up, 7),
    (memory.greeting_by_name, 3),
    (memory.recall_name, 3),
    (memory.note_taken, 1.5),
    (memory.note_recalled, 4),
    (memory.repeated, 3),
    (tools.single_call, 34),
    (tools.unseen_call, 2),
    (tools.errands, 2),
    (tools.busy, 8),
    (tools.parallel_calls, 20),
    (tools.told_result, 3),
    (tools.told_results, 3),
    (tools.amended_call, 10),
    (tools.asked_back, 2),
    (tools.tool_missing, 12),
    (tools.tool_not_needed, 7),
    (sessions.session, 2),
    (structured.structured, 16),
    (structured.declined, 4),
)

# Conversations that fill most of the context.
LONG: tuple[tuple[Maker, float], ...] = ((sessions.long_session, 5), (facts.crowded, 5))

# Skills that the model hardly learns in mixed batches, so each has its own batches. In this order: whether an offered
# tool fits, whether a fact is stated, tools with new names, calls for two requests at once, values in made-up words,
# when to decline, and JSON in the form of a schema.
FOCUS: dict[str, tuple[tuple[Maker, float], ...]] = {
    "matching": ((tools.matching, 1),),
    "presence": ((facts.absent, 1), (facts.known, 1)),
    "unseen": ((tools.unseen_call, 1),),
    "pairs": ((tools.parallel_calls, 1),),
    "values": ((tools.single_call, 4), (tools.parallel_calls, 2), (tools.amended_call, 2), (tools.told_result, 1)),
    "foreign": (
        (talk.foreign, 4),
        (tools.foreign_beside, 4),
        (facts.foreign_beside, 1),
        (talk.small_talk, 2),
        (tools.matching, 4),
        (facts.known, 1),
        (facts.absent, 1),
        (memory.repeated, 1),
        (memory.note_taken, 1),
        (sums.simple_sum, 1),
    ),
    "structured": ((structured.structured, 15), (structured.declined, 1)),
}

# The first stage of training, copying: most replies repeat a value from the prompt.
COPYING: tuple[tuple[Maker, float], ...] = (
    (facts.known, 30),
    (memory.repeated, 25),
    (memory.note_recalled, 12),
    (memory.note_taken, 6),
    (tools.single_call, 12),
    (tools.told_result, 8),
    (facts.follow_up, 4),
    (memory.recall_name, 3),
)

# The evaluation sets by the names that users see, and the split that each draws from. The development set was read
# while the corpus was written; the test set judges the result.
SETS: dict[str, Split] = {"development": "eval", "test": "test"}

# The number of prompts of each kind in an evaluation set; in-domain ones sum to more than 300.
EVALUATION: tuple[tuple[Maker, int], ...] = (
    (talk.small_talk, 60),
    (sums.simple_sum, 50),
    (sums.conversion, 30),
    (sums.sum_follow_up, 20),
    (facts.known, 80),
    (facts.absent, 30),
    (facts.follow_up, 40),
    (memory.greeting_by_name, 10),
    (memory.recall_name, 20),
    (memory.note_recalled, 20),
    (memory.repeated, 10),
    (tools.single_call, 100),
    (tools.unseen_call, 30),
    (tools.parallel_calls, 30),
    (tools.amended_call, 20),
    (tools.told_result, 40),
    (tools.told_results, 15),
    (tools.asked_back, 15),
    (tools.tool_missing, 30),
    (tools.tool_not_needed, 30),
    (talk.foreign, 90),
    (facts.foreign_beside, 20),
    (facts.crowded, 20),
    (structured.structured, 160),
    (structured.declined, 30),
)


def stream(seed: int | str, split: Split, mixture: tuple[tuple[Maker, float], ...] = MIXTURE) -> Iterator[Sample]:
    """Yield an endless stream of samples."""
    draw = Draw(seed, split)
    makers, weights = zip(*mixture, strict=True)
    while True:
        yield draw.random.choices(makers, weights)[0](draw)


def prompt_key(sample: Sample) -> str:
    """Return a key that is equal for equal prompts. It ignores case, spacing and the expected reply."""
    return " ".join(render(sample.messages[:-1], sample.tools, prompt=True, sort_keys=True).lower().split())


def question_key(sample: Sample) -> str:
    """Return a key for a prompt's last user message. It ignores case and punctuation at the end."""
    asked = next(m["content"] for m in reversed(sample.messages[:-1]) if m["role"] == "user")
    return normal(asked)


def evaluation_set(seed: int = 20, split: Split = "eval") -> list[Sample]:
    """Return the held-out prompts, without duplicates.

    Each uses only wordings and values that belong to `split`, so that training has not seen them.
    """
    samples, seen = [], set()
    draw = Draw(seed, split, sealed_wordings() if split == "test" else None)
    for maker, count in EVALUATION:
        made = tries = 0
        while made < count and tries < 60 * count:
            tries += 1
            sample = maker(draw)
            key = prompt_key(sample)
            if key not in seen:
                seen.add(key)
                samples.append(sample)
                made += 1
    return samples


def check_disjoint(count: int = 60_000, seed: int = 20) -> dict[str, int]:
    """Assert that `count` training samples have no evaluation prompt or question. Return each set's prompt count."""
    check_sealed()
    held_out = {name: evaluation_set(seed, split) for name, split in SETS.items()}
    prompts = {prompt_key(s): name for name, samples in held_out.items() for s in samples}
    questions = {question_key(s): name for name, samples in held_out.items() for s in samples}
    for sample, _ in zip(stream("disjoint", "train"), range(count), strict=False):
        for key, asked in ((prompt_key(sample), prompts), (question_key(sample), questions)):
            assert key not in asked, f"a prompt of the {asked[key]} set is in the training text: {key}"
    return {name: len({prompt_key(s) for s in samples}) for name, samples in held_out.items()}


def main() -> None:
    """Print samples, or check that training shares nothing with the evaluation sets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", type=int, default=5, help="how many samples to print")
    parser.add_argument("--split", choices=("train", "eval"), default="train")
    parser.add_argument("--check", action="store_true", help="check that no evaluation prompt is in training text")
    arguments = parser.parse_args()
    if arguments.check:
        print(json.dumps({"prompts": check_disjoint(), "disjoint": True}))
        return
    for sample, _ in zip(stream(0, arguments.split), range(arguments.show), strict=False):
        print(f"--- {sample.category}\n{render(sample.messages, sample.tools)}")


if __name__ == "__main__":
    main()
