"""A loaded embedding or ranking model inside the worker: weights, encoder and tokenizer wired together."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Sequence

from msgspec import structs

from edgeagent.engine.context_room import longer_context
from edgeagent.engine.cpu_threads import ThreadGovernor
from edgeagent.engine.first_steps import FIRST_STEPS, TOKENIZER
from edgeagent.engine.llama.cores import num_usable_cores
from edgeagent.engine.llama.embedder import Rows, truncated
from edgeagent.engine.llama.encoder import Encoder
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import DecodeCancelled
from edgeagent.errors import ContextLengthExceeded, EdgeAgentError, InvalidRequest, ModelLoadFailed, NotSupported
from edgeagent.text.template.rendered import Marker, Rendered, control_pattern, tokenize_rendered
from edgeagent.text.vocabulary import LongTextVocabulary, special_texts
from edgeagent.types import (
    Embed,
    Embedding,
    Finished,
    FinishReason,
    QueryAnswer,
    Rerank,
    Score,
    TextQuery,
    Timings,
    Usage,
    WorkerStatus,
)
from edgeagent.worker.child.frame_writer import Frames
from edgeagent.worker.child.job_loop import JobLoop, TextJob, TextJobs
from edgeagent.worker.child.opening import Opened
from edgeagent.worker.child.prompt import TextReader, answer_text_query
from edgeagent.worker.protocol import (
    FULL_POWER,
    AnswerPart,
    Ask,
    Cancel,
    Load,
    StepItem,
    StepResult,
    Stop,
    Submit,
    failed_message,
)

_TEMPLATE_KEY = "tokenizer.chat_template.rerank"
_GAP = re.compile(r"\{(query|document)\}")


class PairReader:
    """Tokenizes pairs of a query and a document; any thread may use it.

    If a model has its own template for pairs, the template is filled in. Otherwise the pair is built as in
    llama-server: BOS query EOS SEP document EOS, without the special tokens that the vocabulary lacks.
    """

    def __init__(
        self, model: Model, vocabulary: LongTextVocabulary, control_texts: Collection[str], max_tokens: int
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._control = control_pattern(control_texts)
        self._max_tokens = max_tokens
        self._template = model.metadata(_TEMPLATE_KEY)

    def read(self, query: Rerank) -> list[list[int]]:
        """Return the tokens of each pair, in the order of the documents.

        Raise ContextLengthExceeded for a pair that is too long, and InvalidRequest for a pair without tokens.
        """
        pairs = self._filled(query) if self._template is not None else self._joined(query)
        for index, tokens in enumerate(pairs):
            self._check_length(len(tokens), index)
        return pairs

    def _filled(self, query: Rerank) -> list[list[int]]:
        assert self._template is not None
        return [self._fill(self._template, query.query, document) for document in query.documents]

    def _fill(self, template: str, query: str, document: str) -> list[int]:
        """Return the tokens of a filled-in template. Client text that spells a control token stays plain text."""
        marker = Marker(self._control, (query, document))
        texts = {"query": marker.mark(query), "document": marker.mark(document)}
        text = _GAP.sub(lambda gap: texts[gap[1]], template)
        return tokenize_rendered(Rendered(text, marker.split(text)), self._vocabulary)

    def _joined(self, query: Rerank) -> list[list[int]]:
        model = self._model
        head = [] if model.bos_token is None else [model.bos_token]
        end = [] if model.eos_token is None else [model.eos_token]
        between = end if model.separator_token is None else [*end, model.separator_token]
        asked = self._tokens(query.query)
        return [[*head, *asked, *between, *self._tokens(document), *end] for document in query.documents]

    def _tokens(self, text: str) -> Sequence[int]:
        return self._vocabulary.tokenize(text, parse_special=False)

    def _check_length(self, num_tokens: int, index: int) -> None:
        if num_tokens == 0:
            raise InvalidRequest(
                f"documents[{index}] and the query have no tokens; one must have some", param=f"documents[{index}]"
            )
        if num_tokens > self._max_tokens:
            raise ContextLengthExceeded(
                f"documents[{index}] has {num_tokens} tokens with the query, but at most {self._max_tokens} can be "
                "ranked at once. Shorten or split it, or "
                f"{longer_context(num_tokens, self._model.context_length_trained)}.",
                param=f"documents[{index}]",
                served_by="local",
            )


def relevance(classes: Rows) -> float:
    """Return how relevant a document is, from 0 to 1.

    `classes` is the model's output for a pair of query and document: one value for each class. If there
    is one class, its value is a logit, which the logistic function maps to a score. If there are several classes, their
    values are probabilities, and the first one is that of "relevant" ("yes" in Qwen3-Reranker).
    """
    first = float(classes[0])
    if len(classes) > 1:
        return first
    # Choose the form of the logistic function that cannot overflow.
    return 1 / (1 + math.exp(-first)) if first >= 0 else math.exp(first) / (1 + math.exp(first))


class EncoderHost:
    """One model, ready to embed or to rank. One thread calls `encode`. Others may call `read_texts` meanwhile."""

    def __init__(
        self,
        load: Load,
        opened: Opened,
        sandbox: tuple[str, ...] = (),
        on_part: Callable[[str], None] = lambda _: None,
        started_s: float | None = None,
    ) -> None:
        """Warm the model up; raise ModelLoadFailed if it cannot compute.

        Before a part of a file is tried, `on_part` gets the part's description: a damaged file may crash the process.
        `started_s` is the value of time.monotonic() when the load began; None means now.
        """
        started_s = time.monotonic() if started_s is None else started_s
        config, model = opened.config, opened.model
        self.model = model
        self.encoder = Encoder(model, config)
        self.notes, self.warnings = opened.notes, ()
        self._threads = ThreadGovernor(config.threads or num_usable_cores())
        self.power = FULL_POWER
        """How much of the machine the worker may use; another thread may replace it."""
        on_part(f"{TOKENIZER} of {model.path}")
        special = special_texts(model)
        self._vocabulary = LongTextVocabulary(model, special)
        self._texts = TextReader(model, self._vocabulary, self.encoder.max_tokens, self._embedding_length)
        self._pairs = PairReader(model, self._vocabulary, special.control, self.encoder.max_tokens)
        on_part(f"{FIRST_STEPS} of {model.path}")
        self._warm_up()
        load_ms = (time.monotonic() - started_s) * 1000
        self.info = structs.replace(
            opened.describe(load, sandbox, self.encoder.max_tokens, load_ms),
            embedding_length=self._embedding_length,
            can_generate=False,
            can_rank=self.encoder.is_ranking,
        )

    @property
    def num_threads(self) -> int:
        """How many CPU threads batches use: at most `max_threads`, one for each core that other programs leave idle.

        Reading this property measures the load of the CPUs, at most twice a second.
        """
        self._threads.limit(self.power.thread_share)
        self._threads.update(time.monotonic())
        return self._threads.num_threads

    @property
    def max_threads(self) -> int:
        """How many CPU threads batches use while no other program uses the CPUs."""
        return self._threads.max_threads

    def encode(self, texts: Sequence[Sequence[int]]) -> Rows:
        return self.encoder.encode(texts, self.num_threads)

    def read_texts(self, query: Embed | Rerank) -> list[list[int]]:
        """Return the tokens of each text of a query; any thread may call this method.

        Raise InvalidRequest or ContextLengthExceeded. Raise NotSupported if the query asks an embedding model to rank,
        or a ranking model to embed.
        """
        if isinstance(query, Embed):
            return self._texts.read(query)
        if not self.encoder.is_ranking:
            raise NotSupported(
                "This model embeds texts and ranks none. Serve a reranker, or compare embeddings.", param="model"
            )
        return self._pairs.read(query)

    def answer(self, query: TextQuery) -> QueryAnswer:
        """Return the answer to a query about text. One thread may call this method while the other threads run."""
        return answer_text_query(self.model, self._vocabulary, query)

    def disk_cache(self) -> None:
        """Return None: an encoder caches nothing on disk."""

    def close(self) -> None:
        """Free the encoder's memory. No method may be called after this."""
        self.encoder.close()

    @property
    def _embedding_length(self) -> int:
        return 0 if self.encoder.is_ranking else self.encoder.length

    def _warm_up(self) -> None:
        try:
            self.encoder.warm_up(self.num_threads)
        except EdgeAgentError as error:
            raise ModelLoadFailed(f"{self.model.path} cannot compute a text: {error.message}") from error


class EncoderJobs(TextJobs):
    """Computes the open queries in batches. The queries take turns: each gets one batch at a time."""

    def __init__(self, host: EncoderHost, frames: Frames, clock: Callable[[], float]) -> None:
        super().__init__(host.encoder, clock)
        self._host = host
        self._encoder = host.encoder
        self._frames = frames
        self.num_batches = 0
        self.num_tokens = 0
        self.expected_s = 0.0

    def step(self) -> None:
        """Compute a batch, if there is a tokenized text."""
        ask_id = self._next()
        if ask_id is None:
            return
        job = self._jobs[ask_id]
        assert job.texts
        num = self._encoder.batch_length(list(job.texts))
        texts = [job.texts[index] for index in range(num)]
        num_tokens = sum(map(len, texts))
        self.expected_s = self._encoder.expected_s(num_tokens)
        try:
            rows = self._host.encode(texts)
        except DecodeCancelled:
            return  # the batch is computed again, unless its question was dropped
        except EdgeAgentError as error:
            self.drop(ask_id)
            self._frames.put(failed_message(ask_id, error))
            return
        finally:
            self.expected_s = 0.0
            self._used_at_s = self._clock()
            self.num_batches += 1
        self.num_tokens += num_tokens
        for _ in texts:
            job.texts.popleft()
        self._answer(ask_id, job, texts, rows)

    def _answer(self, ask_id: str, job: TextJob, texts: list[list[int]], rows: Rows) -> None:
        is_last = not self._end_turn(ask_id, job)
        if isinstance(job.query, Rerank):
            job.scores += [Score(relevance(row), len(text)) for text, row in zip(texts, rows, strict=True)]
            if is_last:
                self._frames.put(AnswerPart(ask_id, QueryAnswer(scores=tuple(job.scores)), is_last=True))
            return
        for index, (text, row) in enumerate(zip(texts, rows, strict=True)):
            vector = truncated(row, job.query.dimensions).astype("<f4").tobytes()
            part = QueryAnswer(embeddings=(Embedding(vector, len(text)),))
            self._frames.put(AnswerPart(ask_id, part, is_last=is_last and index == len(texts) - 1))


class EncoderLoop(JobLoop):
    """The loop of a model that has only whole texts to compute, and no requests."""

    _jobs: EncoderJobs

    def __init__(self, host: EncoderHost, frames: Frames, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(EncoderJobs(host, frames, clock), host.encoder, frames)
        self._host = host

    def submit(self, message: Submit) -> None:
        """Refuse a request to generate text.

        A request with `prefill_only` that does not write to the cache succeeds: its only purpose is to load the model.
        """
        request = message.request
        if request.prefill_only and not request.cache.write:
            ended = Finished(FinishReason.STOP, Usage(), Timings(load_ms=message.load_ms))
            self._frames.put(StepResult(time.monotonic(), (StepItem(request.id, (ended,)),)))
            return
        purpose = "ranks documents" if self._host.encoder.is_ranking else "embeds texts"
        refusal = NotSupported(
            f"{self._host.info.name} generates no text: it {purpose}. Choose another model.", param="model"
        )
        self._frames.put(failed_message(request.id, refusal))

    def interrupt(self, command: Cancel | Ask | Stop) -> None:
        """Queue a command and, unless it is an Ask, interrupt the running batch.

        If the batch belongs to another query than the cancelled one, it is computed again.
        """
        self.commands.put(command)
        if not isinstance(command, Ask):
            self._runner.request_abort()

    @property
    def status(self) -> WorkerStatus:
        num_open = len(self._jobs)
        return WorkerStatus(
            num_steps=self._jobs.num_batches,
            step_expected_s=self._jobs.expected_s,
            num_running=min(1, num_open),
            num_waiting=max(0, num_open - 1),
            num_prompt_tokens_total=self._jobs.num_tokens,
            num_threads=self._host.num_threads,
            max_threads=self._host.max_threads,
        )

    @property
    def planned_bytes(self) -> int:
        """0: the encoder's context has its full size from the beginning."""
        return 0

    def _read(self, query: Embed | Rerank) -> list[list[int]]:
        return self._host.read_texts(query)

    def _step(self) -> None:
        self.step_started_at_s = time.monotonic()
        self._jobs.step()
        self.step_started_at_s = 0.0

    def _carry_out(self, command: object) -> None:
        """Answer a PurgeCache. There are no requests and no cached prompts."""
        if isinstance(command, Ask):
            self._frames.put(AnswerPart(command.id, QueryAnswer("0"), is_last=True))
