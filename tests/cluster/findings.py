"""Summaries of the demo's answers in words, and the conditions that they must meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from edgeagent.egress import PROBE
from tests.cluster.client import Answer

_TWO_TOKENS_CHARS = 16


class StepFailed(Exception):
    """A step did not show what it should show."""


def say(text: str) -> None:
    """Print a line under the step."""
    print(f"   {text}", flush=True)


def whole(answer: Answer, num_tokens: int) -> Answer:
    """Return the answer if it ended as it should with all requested tokens; otherwise raise StepFailed."""
    expect(not answer.error, f"a request failed: {answer.error}")
    expect(answer.finish_reason == "length", f"an answer ended with {answer.finish_reason!r}")
    expect(answer.num_tokens == num_tokens, f"an answer counts {answer.num_tokens} tokens, not {num_tokens}")
    return answer


def expect(holds: bool, otherwise: str) -> None:
    """Raise StepFailed unless a condition holds."""
    if not holds:
        raise StepFailed(otherwise)


def sent_rows(told: dict[str, list[dict[str, object]]]) -> list[dict[str, object]]:
    """Return the rows that `edgeagent egress --json` prints, without those of probes, which send no prompt."""
    return [row for row in told["rows"] if row["reason"] != PROBE]


def is_same_but_its_end(text: str, undisturbed: str) -> bool:
    """Whether two texts of equally many tokens differ only in that the longer one has a token or two more.

    The same text can be split into tokens in two ways, so the token count at which an answer ends may be off by one.
    """
    shorter = min(len(text), len(undisturbed))
    return text[:shorter] == undisturbed[:shorter] and abs(len(text) - len(undisturbed)) <= _TWO_TOKENS_CHARS


def difference(answer: Answer, undisturbed: str) -> str:
    """Return where a text first differs from the undisturbed one, and where it moved to another place."""
    at = next((at for at, (one, other) in enumerate(zip(answer.text, undisturbed, strict=False)) if one != other), None)
    if at is None:
        return f"in its length: {len(answer.text)} and {len(undisturbed)} characters"
    seams = ", ".join(str(move["after_tokens"]) for move in answer.handovers)
    was, now = undisturbed[at - 20 : at + 20], answer.text[at - 20 : at + 20]
    moved = f"it changed its place after {seams} of {answer.num_tokens} tokens"
    return f"from character {at} on ({was!r} became {now!r}; {moved})"


def first_token(answers: Sequence[Answer]) -> str:
    """Return how long the first tokens of the successful answers took."""
    waits = [answer.first_token_s for answer in answers if not answer.error]
    return f"the first token took {percentile(waits, 0.5):.2f} s in the middle, {percentile(waits, 0.95):.2f} s at p95"


def moves(answers: Sequence[Answer]) -> str:
    """Return the routes that answers took, and how many answers took each."""
    ways = Counter(
        " -> ".join([answer.handovers[0]["from"], *(move["to"] for move in answer.handovers)])
        if answer.handovers
        else f"stayed at {answer.route}"
        for answer in answers
    )
    return ", ".join(f"{count} x {way}" for way, count in ways.most_common())


def gap_after(answers: Sequence[Answer], moment_s: float) -> float:
    """Return the longest silence of any stream at or after a moment, in seconds."""
    return max(silence(answer, moment_s) for answer in answers)


def silence(answer: Answer, moment_s: float) -> float:
    """Return the longest silence of a stream at or after a moment, in seconds."""
    pairs = zip(answer.came_s, answer.came_s[1:], strict=False)
    return max((after - before for before, after in pairs if after > moment_s), default=0.0)


def gaps(answers: Sequence[Answer], moment_s: float) -> str:
    """Return how long streams were silent after a moment."""
    waits = [silence(answer, moment_s) for answer in answers]
    return f"silent for {percentile(waits, 0.5):.2f} s in the middle, {percentile(waits, 0.95):.2f} s at p95"


def places(answers: Sequence[Answer]) -> str:
    """Return in a few words where answers were computed, and why there."""
    counts = Counter(f"{answer.route or 'nowhere'} ({answer.reason or answer.error})" for answer in answers)
    return ", ".join(f"{count} x {place}" for place, count in counts.most_common())


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
