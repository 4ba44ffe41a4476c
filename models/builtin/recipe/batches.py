"""Packs the endless stream of conversations into rows of tokens, with the targets and loss weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from queue import Queue
from threading import Thread

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from .chat import render
from .corpus import COPYING, FOCUS, LONG, MIXTURE, Maker, stream
from .respelling import Respelling
from .samples import Draw, Sample
from .structured import forced_spans
from .substitution import Substitution
from .sums import drill
from .tokenizer import START, STOP

# The weight of deciding tokens: the first ones of a reply, and the first one of a tool's name or value
DECISION_WEIGHT = 3.0
NUM_OPENING = 3
FORCED_WEIGHT = 0.1  # the weight of what a schema determines
TYPE_WEIGHT = 0.5  # the weight of a quote that a schema determines
SPLIT_SHARE = 0.2  # the share of such quotes that follow the space as a token of their own
DRILL_EVERY = 16  # one batch in 16 has arithmetic without conversations, and one has spelling lessons
LONG_EVERY = 16  # one batch in 16 has long rows, and one in 32 has random repeats


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How a run chooses what to train on. `copying_steps` is the number of first steps, which mostly train copying.

    `prompt_weight` is the loss weight of a prompt token. If `focus` names kinds of batch, most batches are of these
    kinds. `num_rows` is the number of rows of most batches.
    """

    copying_steps: int
    prompt_weight: float
    focus: tuple[str, ...] = ()
    num_rows: int = 8


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of tokens, all of one length. Each tensor has the shape (rows, length).

    `targets` are the next tokens, and `weights` their loss weights; 0 means that the token is not trained. `positions`
    count from 0 in each conversation. `documents` number the conversations of a row; -1 is padding.
    """

    ids: Tensor
    targets: Tensor
    weights: Tensor
    positions: Tensor
    documents: Tensor
    kind: str


class Encoder:
    """Encodes conversations as tokens with loss weights.

    The assistant's tokens have a weight of 1. The tokens that decide an answer have a higher weight: the first ones of
    a reply, and the first one of each quoted name or value. In a reply that follows a schema, the tokens that the
    schema determines have a lower weight. The brace that opens it has none, unless the prompt asks for JSON.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_weight: float) -> None:
        self.tokenizer = tokenizer
        self.prompt_weight = prompt_weight
        self.start = tokenizer.token_to_id(START)
        self.stop = tokenizer.encode(STOP).ids[0]
        self.opening = tokenizer.encode("assistant\n").ids
        self.quote = tokenizer.encode(' "').ids[0]
        self.apart = [tokenizer.encode(text).ids[0] for text in (" ", '"')]

    def encode(self, sample: Sample, sort_keys: bool) -> tuple[list[int], list[float]]:
        """Return the tokens, and the loss weight of each."""
        text = render(sample.messages, sample.tools, sort_keys=sort_keys)
        encoded = self.tokenizer.encode(text)
        ids, starts = encoded.ids, [start for start, _ in encoded.offsets]
        weights = [self.prompt_weight] * len(ids)
        at = 0
        while at < len(ids):
            first = at + 1 + len(self.opening)
            if ids[at] == self.start and ids[at + 1 : first] == self.opening:
                at = ids.index(self.stop, at)
                weights[first : at + 1] = self._reply_weights(ids[first - 1 : at + 1])
                if sample.format is not None:
                    told = text[starts[first] : starts[at]]
                    places = [start - starts[first] for start in starts[first : at + 1]]
                    weights[first : at + 1] = _structured_weights(sample, told, places)
                    for i in range(first, at + 1):
                        weights[i] = TYPE_WEIGHT if weights[i] == FORCED_WEIGHT and ids[i] == self.quote else weights[i]
            at += 1
        return ids, weights

    def split_quotes(
        self, pair: tuple[list[int], list[float]], rng: np.random.Generator
    ) -> tuple[list[int], list[float]]:
        """Write some quotes as the grammar may lead the model to: a space, then the quote as a token of its own."""
        ids: list[int] = []
        weights: list[float] = []
        for token, weight in zip(*pair, strict=True):
            is_split = weight == TYPE_WEIGHT and rng.random() < SPLIT_SHARE
            ids += self.apart if is_split else [token]
            weights += [0.0, weight] if is_split else [weight]
        return ids, weights

    def _reply_weights(self, ids: list[int]) -> list[float]:
        """Return the weights of a reply's tokens. The first of `ids` is the token before it."""
        return [
            DECISION_WEIGHT if at < NUM_OPENING or before == self.quote else 1.0 for at, before in enumerate(ids[:-1])
        ]


def _structured_weights(sample: Sample, told: str, places: list[int]) -> list[float]:
    """Return the weights of a JSON reply's tokens. `places`: where in the reply each of them begins."""
    assert sample.format is not None
    spans = list(forced_spans(told, sample.format)) if "properties" in sample.format else []
    forced = [any(first <= place < last for first, last in spans) for place in places]
    weights = [
        FORCED_WEIGHT if is_forced else DECISION_WEIGHT if after_forced else 1.0
        for is_forced, after_forced in zip(forced, [False, *forced], strict=False)
    ]
    if not any("json" in message["content"].lower() for message in sample.messages[:-1]):
        weights[0] = 0.0
    return weights


def _induction(rng: np.random.Generator, vocab: int, length: int) -> tuple[list[int], list[float]]:
    """Return random token sequences that are repeated later, and the loss weight of each token. They train copying."""
    alphabet = rng.integers(0, vocab - 10, int(rng.integers(60, 600)))
    ids: list[int] = []
    weights: list[float] = []
    spans: list[list[int]] = []
    while len(ids) < length:
        span = rng.choice(alphabet, int(rng.integers(4, 40))).tolist()
        spans.append(span)
        again = span if rng.random() < 0.5 else spans[int(rng.integers(len(spans)))]
        ids += span + again
        weights += [0.0] * (len(span) + 2) + [1.0] * (len(again) - 2)
    return ids[:length], weights[:length]


def _drill(draw: Draw, tokenizer: Tokenizer, length: int) -> tuple[list[int], list[float]]:
    """Return lines of arithmetic as tokens, and the loss weight of each token. Only the results are trained."""
    ids: list[int] = []
    weights: list[float] = []
    while len(ids) < length:
        given, result = (tokenizer.encode(part).ids for part in drill(draw))
        ids += given + result
        weights += [0.0] * len(given) + [1.0] * len(result)
    return ids[:length], weights[:length]


def _spelling(
    respelling: Respelling, rng: np.random.Generator, tokenizer: Tokenizer, length: int
) -> tuple[list[int], list[float]]:
    """Return spelling lessons as tokens, and the loss weight of each token. Only the words in quotes are trained."""
    ids: list[int] = []
    weights: list[float] = []
    while len(ids) < length:
        parts = respelling.drill(rng)
        encoded = tokenizer.encode("".join(parts))
        first, last = len(parts[0]), len(parts[0]) + len(parts[1])
        ids += encoded.ids
        weights += [1.0 if first <= start < last else 0.0 for start, _ in encoded.offsets]
    return ids[:length], weights[:length]


class Packer:
    """Fills rows with whole conversations. A conversation that does not fit into a row waits for a later one.

    Each gap gets the first waiting conversation that fits.
    """

    def __init__(self, tokenizer: Tokenizer, seed: str, prompt_weight: float) -> None:
        self.encoder = Encoder(tokenizer, prompt_weight)
        self.vocab = tokenizer.get_vocab_size()
        self.seed = seed
        self.rng = np.random.default_rng(int.from_bytes(seed.encode(), "little"))
        self.substitution = Substitution(tokenizer, stream(f"{seed}:frequent", "train"))
        self.respelling = Respelling(self.substitution.choices)
        self.draw = Draw(f"{seed}:drill", "train")
        self.waiting: dict[str, list[tuple[list[int], list[float]]]] = {}
        self.streams: dict[str, Iterator[Sample]] = {}

    def _next(self, name: str, mixture: tuple[tuple[Maker, float], ...], most: int) -> tuple[list[int], list[float]]:
        if name not in self.streams:
            self.streams[name] = stream(f"{self.seed}:{name}", "train", mixture)
        while True:
            sample = next(self.streams[name])
            if name == "values" or (name == "structured" and self.rng.random() < 0.5):
                sample = self.respelling.apply(sample, self.rng)
            encoded = self.encoder.encode(sample, bool(self.rng.random() < 0.6))
            encoded = self.substitution.apply(sample, self.encoder.split_quotes(encoded, self.rng), self.rng)
            if len(encoded[0]) <= most:
                return encoded

    def rows(self, kind: str, count: int, length: int) -> Batch:
        """Pack one batch of `count` rows of `length` tokens. `kind` is one that `batch_kind` returns."""
        mixture = {"copying": COPYING, "long": LONG, **FOCUS}.get(kind, MIXTURE)
        shape = (count, length + 1)
        ids, documents = np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
        weights, positions = np.zeros(shape, np.float32), np.zeros(shape, np.int64)
        waiting = self.waiting.setdefault(kind, [])
        for row in range(count):
            at, number = 0, 0
            piece: tuple[list[int], list[float]] | None
            while length + 1 - at > 24:
                if kind == "induction":
                    piece = _induction(self.rng, self.vocab, length + 1)
                elif kind == "drill":
                    piece = _drill(self.draw, self.encoder.tokenizer, min(256, length + 1 - at))
                elif kind == "spelling":
                    piece = _spelling(self.respelling, self.rng, self.encoder.tokenizer, length + 1)
                else:
                    piece = self._fit(waiting, length + 1 - at, kind, mixture, length + 1)
                    if piece is None:
                        break
                end = at + len(piece[0])
                ids[row, at:end], weights[row, at:end] = piece
                weights[row, at] = 0.0
                positions[row, at:end] = np.arange(end - at)
                documents[row, at:end] = number
                at, number = end, number + 1
        tensors = [torch.from_numpy(a) for a in (ids, weights, positions, documents)]
        return Batch(
            tensors[0][:, :-1], tensors[0][:, 1:], tensors[1][:, 1:], tensors[2][:, :-1], tensors[3][:, :-1], kind
        )

    def _fit(
        self,
        waiting: list[tuple[list[int], list[float]]],
        room: int,
        kind: str,
        mixture: tuple[tuple[Maker, float], ...],
        most: int,
    ) -> tuple[list[int], list[float]] | None:
        for index, piece in enumerate(waiting):
            if len(piece[0]) <= room:
                return waiting.pop(index)
        for _ in range(6):
            if len(waiting) > 200:
                return None
            piece = self._next(kind, mixture, most)
            if len(piece[0]) <= room:
                return piece
            waiting.append(piece)
        return None


def batch_kind(step: int, plan: BatchPlan) -> tuple[str, int, int]:
    """Return the kind of batch of a step, its number of rows, and the row length. It depends only on step and plan."""
    if plan.focus and step % 10 != 0:
        return plan.focus[step % 10 % len(plan.focus)], plan.num_rows, 512
    if step < plan.copying_steps and step % 4 != 0:
        return ("induction" if step % 4 == 1 else "copying" if step % 4 == 2 else "mixture"), plan.num_rows, 512
    # counts only the steps that reach this line, so that every kind is chosen
    turn = step // 10 if plan.focus else step
    if turn % DRILL_EVERY == 3:
        return "drill", plan.num_rows, 512
    if turn % DRILL_EVERY == 11:
        return "spelling", plan.num_rows, 512
    if turn % (2 * LONG_EVERY) == 1:
        return "induction", plan.num_rows, 512
    if turn % LONG_EVERY == 0:
        return "long", max(1, plan.num_rows // 4), 2048
    if turn % 8 == 2:
        return ("matching", "presence", "matching", "unseen")[turn // 8 % 4], plan.num_rows, 512
    if turn % 8 == 6:
        return ("values", "foreign")[turn // 8 % 2], plan.num_rows, 512
    if turn % 8 == 5:
        return "pairs", plan.num_rows, 512
    if turn % 8 == 7:
        return "structured", plan.num_rows, 512
    return "mixture", plan.num_rows, 512


def batches(tokenizer: Tokenizer, seed: str, first: int, plan: BatchPlan) -> Iterator[Batch]:
    """Yield the batches of all steps from `first`, without end. A thread prepares them ahead of time."""
    queue: Queue[Batch] = Queue(maxsize=4)

    def produce() -> None:
        packer = Packer(tokenizer, f"{seed}:{first}", plan.prompt_weight)
        step = first
        while True:
            queue.put(packer.rows(*batch_kind(step, plan)))
            step += 1

    Thread(target=produce, daemon=True).start()
    while True:
        yield queue.get()
