"""Turns a prompt into tokens, and answers queries about text, without the engine and without threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, takewhile

from msgspec import structs

from edgeagent.engine.context_room import longer_context
from edgeagent.engine.llama.model import InfillTokens, Model
from edgeagent.engine.media import MediaSpan
from edgeagent.engine.runner import CUTTABLE
from edgeagent.errors import (
    ContextLengthExceeded,
    EdgeAgentError,
    InternalError,
    InvalidRequest,
    NotSupported,
    TokenBudgetExceeded,
)
from edgeagent.text.partition_cache import PartitionCache
from edgeagent.text.template.conversation import cut_before, cut_places, num_items, text_of
from edgeagent.text.template.rendered import Rendered, tokenize_around_media, tokenize_rendered
from edgeagent.text.tool_format import KNOWN_MARKERS, ReasoningMarkers
from edgeagent.text.vocabulary import LongTextVocabulary, SpecialTexts
from edgeagent.types import (
    ChatPrompt,
    Detokenize,
    Embed,
    GenerateRequest,
    MemoryKind,
    Message,
    Prompt,
    PurgeCache,
    QueryAnswer,
    RenderPrompt,
    Rerank,
    TextPrompt,
    TextQuery,
    Tokenize,
    TokenPrompt,
    replace,
)
from edgeagent.worker.child.generator.media import MediaReader
from edgeagent.worker.protocol import Load
from edgeagent.worker.render.protocol import Open
from edgeagent.worker.render.renderer import MakeTemplate, Renderer, Template

_OTHER = "\u2042"  # real messages do not begin with it
_QUESTION = Message("user", _OTHER)
_SPACES = " \t\n"
# The most characters that count as the last word, for texts without spaces. Measured with SmolLM2's vocabulary: more
# text changed only tokens in the last 13 bytes of an English text, and none in Japanese, Chinese or Thai.
_LONGEST_WORD = 16

Piece = Callable[[int], bytes]
"""A function that returns the bytes of a token."""


def find_system_end(
    template: Template, prompt: ChatPrompt, text: str, tokens: Sequence[int], piece: Piece
) -> int | None:
    """Return how many leading tokens hold the instructions and tools; None if the template cannot render them alone.

    If the prompt has no instructions and no tools, count the tokens that the template writes before the first message.
    `text` is the rendered prompt, and `tokens` are its tokens.
    """
    system = tuple(takewhile(lambda message: message.role == "system", prompt.messages))
    return _num_shared(template, structs.replace(prompt, messages=(*system, _QUESTION)), text, tokens, piece)


def find_next_turn(
    template: Template, prompt: ChatPrompt, text: str, tokens: Sequence[int], piece: Piece
) -> int | None:
    """Return how many leading tokens this prompt shares with the prompt of the next turn; None if that is unknown.

    It is unknown if the template refuses a next turn. Some templates write a past turn differently from the latest one.
    Then only a part of this prompt is shared. `text` is this rendered prompt, and `tokens` are its tokens.
    """
    next_turn = structs.replace(prompt, messages=(*prompt.messages, Message("assistant", _OTHER), _QUESTION))
    return _num_shared(template, next_turn, text, tokens, piece)


def find_open_end(template: Template, prompt: ChatPrompt, text: str, tokens: Sequence[int], piece: Piece) -> int | None:
    """Return how many leading tokens stay the same if the last message, a user's, grows; None if it is no user's.

    They end before its last word: speech recognition revises that word most often, and a tokenizer may join it with
    what follows. `text` is the rendered prompt, and `tokens` are its tokens.
    """
    if not prompt.messages or prompt.messages[-1].role != "user":
        return None
    *earlier, last = prompt.messages
    longer = structs.replace(prompt, messages=(*earlier, structs.replace(last, content=last.content + _OTHER)))
    try:
        rendered = template.render(longer).text
    except EdgeAgentError:
        return None
    closed = text[: _num_equal(text, rendered)].rstrip()
    last_word = len(closed) - max(map(closed.rfind, _SPACES))
    num_kept = len(closed) - min(last_word, len(last.content), _LONGEST_WORD)
    num_bytes = len(closed[:num_kept].encode())
    return max(1, _num_tokens_within(num_bytes, tokens, piece))


def _num_shared(template: Template, other: ChatPrompt, text: str, tokens: Sequence[int], piece: Piece) -> int | None:
    """Return how many of the leading `tokens` the prompt `other` has too; None if the template refuses `other`.

    `text` is the text of `tokens`. The last of `tokens` is never counted.
    """
    try:
        rendered = template.render(other).text
    except EdgeAgentError:
        return None  # a template may refuse these made-up messages
    num_bytes = len(text[: _num_equal(text, rendered)].encode())
    return min(_num_tokens_within(num_bytes, tokens, piece), len(tokens) - 1)


def _num_equal(text: str, other: str) -> int:
    """Return how many leading characters the two texts share."""
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _num_tokens_within(num_bytes: int, tokens: Sequence[int], piece: Piece) -> int:
    """Return how many leading tokens fit into `num_bytes` bytes of text."""
    for index, token in enumerate(tokens):
        num_bytes -= len(piece(token))
        if num_bytes < 0:
            return index
    return len(tokens)


# The names of the repository and of the file with the gap, which the request does not have; those of llama-server.
_REPOSITORY, _OPEN_FILE = "myproject", "filename"
_USUAL_PIECE = 8  # a text with at most this many characters per cell of the context may fit, and is tokenized fast
_MOST_BYTES = 16  # bytes per token, on average; a conversation with more cannot fit and is not even rendered
_ROUGHLY_BYTES = 4  # bytes per token, if a conversation is too long to count its tokens
MAX_COUNTED_CHARS = 1 << 20
"""Conversations of this length are counted with every context."""
_TURN_TOKENS = 8  # about how many tokens a turn's role and punctuation add
_MAX_SIZES = 8192
_MAX_SYSTEMS = 64
# Turns of a conversation are dropped in steps of context / _STEP tokens, or of budget / _STEP if its budget is less.
# Larger steps drop more than is needed. Smaller steps are more frequent, and after each step the rest of the
# conversation is computed again.
_STEP = 2
# Truncation leaves context / _USUAL_ANSWER for an answer without a limit, and context / _LONGEST_ANSWER at most.
_USUAL_ANSWER = 8
_LONGEST_ANSWER = 4


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt's tokens, and what is known about them.

    - `text`: the prompt as text; None for a prompt of token ids and for infill.
    - `num_added`: how many leading tokens the tokenizer added (BOS).
    - `open_reasoning`: if the rendered prompt ends inside a reasoning section, the markers of that section.
    - `num_system`: how many leading tokens are instructions and tools.
    - `boundaries`: positions where other prompts may diverge from this one; empty if the memory kind needs none, and
      the message cannot grow.
    - `num_dropped_items`: how many items of the conversation were dropped because they did not fit.
    - `media`: the parts of `tokens` that stand for images and sounds.
    """

    tokens: list[int]
    text: str | None = None
    num_added: int = 0
    open_reasoning: ReasoningMarkers | None = None
    num_system: int = 0
    boundaries: tuple[int, ...] = ()
    num_dropped_items: int = 0
    media: tuple[MediaSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class _Written:
    """A conversation that the template has rendered, and its tokens.

    `media`: the parts of `tokens` that stand for images and sounds. `marks`: the ranges of `tokens` that a mark of a
    medium in the rendered text became.
    """

    prompt: ChatPrompt
    rendered: Rendered
    tokens: list[int]
    media: tuple[MediaSpan, ...] = ()
    marks: tuple[range, ...] = ()

    def place(self, template: Template, piece: Piece) -> tuple[Template, ChatPrompt, str, Sequence[int], Piece]:
        """Return what `find_system_end` and the other functions need. `piece`: the bytes of a token."""
        if not self.marks:
            return template, self.prompt, self.rendered.text, self.tokens, piece
        pieces = dict.fromkeys(chain.from_iterable(self.marks), b"")
        pieces |= {mark.start: _MARK for mark in self.marks if mark}

        def piece_at(index: int) -> bytes:
            return pieces[index] if index in pieces else piece(self.tokens[index])

        return template, self.prompt, self.rendered.text, range(len(self.tokens)), piece_at


_MARK = b"\xf3\xb0\x80\x80"  # as many bytes as a mark has in the rendered text


def make_template(model: Model, special: SpecialTexts, make: MakeTemplate) -> Renderer:
    """Open the model's chat template.

    Raise TemplateTooSlow if opening the template takes too much time or memory.
    """
    source = model.chat_template
    markers = special.markers(f"{source}{KNOWN_MARKERS}")
    architecture = model.metadata("general.architecture") or ""
    opening = Open(source, model.bos_text, model.eos_text, architecture, tuple(special.control), tuple(markers))
    return make(opening)


class PromptReader:
    """Renders and tokenizes prompts for a context of `context_length` tokens."""

    def __init__(
        self,
        model: Model,
        vocabulary: LongTextVocabulary,
        template: Renderer,
        context_length: int,
        *,
        media: MediaReader | None = None,
        why_no_media: str = "",
    ) -> None:
        """`media` reads images and sounds. If None, `why_no_media` is the message of the error for them."""
        self._model = model
        self._vocabulary = vocabulary
        self._template = template
        self._context_length = context_length
        self._media = media
        self._why_no_media = why_no_media
        self._sizes: PartitionCache[bytes, int] = PartitionCache(_MAX_SIZES)
        # The number of the tokens of instructions, and a hash of these tokens: a purge must leave no text.
        self._systems: PartitionCache[int, tuple[int, int]] = PartitionCache(_MAX_SYSTEMS)

    def read(
        self,
        prompt: Prompt,
        max_tokens: int | None = None,
        *,
        partition: str = "",
        max_prompt: int | None = None,
        is_open: bool = False,
    ) -> ReadPrompt:
        """Return a prompt's tokens. Raise InvalidRequest or NotSupported if the prompt cannot be used.

        Raise ContextLengthExceeded if a text is too long for its tokens to fit. The engine checks the
        number of tokens.

        `max_tokens` is the limit of the answer; None means as many tokens as fit. A conversation with `truncate` is
        shortened to leave room for an answer, and to at most `max_prompt` tokens if that is possible. `partition`: the
        client, see CachePolicy. `is_open`: the last message may grow. If it is a user's, there is a boundary behind
        the tokens that this does not change (see `find_open_end`). If the memory cannot be cut there later, return only
        these tokens.
        """
        match prompt:
            case ChatPrompt():
                if self._media is None:
                    check_media(prompt, self._why_no_media)
                elif prompt.media:
                    prompt = self._media.with_notes(prompt, partition)
                self._template.renew()
                if prompt.truncate:
                    written = self._write_shortened(prompt, max_tokens, partition, max_prompt)
                else:
                    written = self._write(prompt, partition)
                num_dropped = num_items(prompt.messages) - num_items(written.prompt.messages)
                return self._read_chat(written, num_dropped, partition, is_open=is_open)
            case TextPrompt(text=text, suffix=suffix, parse_special=parse_special, files=files):
                self._check_length("".join((text, suffix or "", *(part for file in files for part in file))))
                if suffix is not None:
                    return ReadPrompt(self._infill_tokens(text, suffix, files))
                return self._read_text(text, parse_special=parse_special)
            case TokenPrompt(tokens=tokens):
                check_tokens(self._model, tokens, "prompt")
                return ReadPrompt(list(tokens))

    def _write(self, prompt: ChatPrompt, partition: str) -> _Written:
        rendered = self._template.render(prompt)
        self._check_length(rendered.text)
        if not rendered.media_marks:
            return _Written(prompt, rendered, tokenize_rendered(rendered, self._vocabulary))
        assert self._media is not None
        indices = [place.index for message in prompt.messages for place in message.media]
        tokens, media, marks = list[int](), list[MediaSpan](), list[range]()
        for run in tokenize_around_media(rendered, self._vocabulary):
            if isinstance(run, list):
                tokens += run
                continue
            if not 0 <= indices[run] < len(prompt.media):
                raise InvalidRequest(f"the conversation has no medium {indices[run]}", param="input")
            medium = self._media.read(prompt.media[indices[run]], partition)
            media += medium.at(len(tokens))
            marks.append(range(len(tokens), len(tokens) + len(medium.tokens)))
            tokens += medium.tokens
        if media and media[-1].end >= len(tokens):
            raise InvalidRequest("the model's chat template writes nothing behind a medium", param="input")
        return _Written(prompt, rendered, tokens, tuple(media), tuple(marks))

    def _write_shortened(
        self, prompt: ChatPrompt, max_tokens: int | None, partition: str, max_prompt: int | None
    ) -> _Written:
        """Render a conversation. If it would not leave room for an answer, or is over its limit, drop its oldest turns.

        If even the shortest version is too long, return that version.
        """
        context = self._context_length
        most = context - min(max_tokens or context // _USUAL_ANSWER, context // _LONGEST_ANSWER)
        limit = context if max_prompt is None else min(context, max_prompt)
        most = min(most, limit)
        written = self._write_fitting(prompt, most, partition)
        places = [] if written is not None else self._places(prompt, partition, limit)
        low, high = 0, len(places) - 1
        while low <= high:
            middle = (low + high) // 2
            fitting = self._write_fitting(_cut(prompt, places[middle]), most, partition)
            written = fitting or written
            low, high = (low, middle - 1) if fitting is not None else (middle + 1, high)
        if written is not None:
            return written
        return self._write(_cut(prompt, places[-1]) if places else prompt, partition)

    def _places(self, prompt: ChatPrompt, partition: str, limit: int) -> list[int]:
        """Return the indices of the messages before which a conversation can be cut; see `cut_places`.

        `limit`: the longest prompt, in tokens. The sizes of messages are cached, because the next request of the
        conversation has the same messages.
        """
        messages = prompt.messages
        texts = {id(message): text_of(message) for message in messages}
        is_countable = sum(map(len, texts.values())) <= _USUAL_PIECE * _MOST_BYTES * self._context_length

        def size(message: Message) -> int:
            text = texts[id(message)].encode()
            num_added = _TURN_TOKENS + self._num_media_tokens(prompt, message, partition)
            if not is_countable:
                return num_added + len(text) // _ROUGHLY_BYTES
            key = blake2b(text, digest_size=16).digest()
            num_tokens = self._sizes.get(partition, key)
            if num_tokens is None:
                num_tokens = len(self._vocabulary.tokenize(texts[id(message)], parse_special=False))
                self._sizes.put(partition, key, num_tokens)
            return num_added + num_tokens

        return cut_places(messages, max(1, limit // _STEP), size)

    def _num_media_tokens(self, prompt: ChatPrompt, message: Message, partition: str) -> int:
        if self._media is None:
            return 0
        return sum(len(self._media.read(prompt.media[place.index], partition).tokens) for place in message.media)

    def _write_fitting(self, prompt: ChatPrompt, most: int, partition: str) -> _Written | None:
        """Render a conversation; return None if it has more than `most` tokens."""
        if sum(len(text_of(message).encode()) for message in prompt.messages) > _MOST_BYTES * most:
            return None
        try:
            written = self._write(prompt, partition)
        except ContextLengthExceeded:
            return None
        return written if len(written.tokens) <= most else None

    def _read_chat(self, written: _Written, num_dropped: int, partition: str, *, is_open: bool) -> ReadPrompt:
        prompt, rendered, tokens = written.prompt, written.rendered, written.tokens
        place = written.place(self._template, self._model.piece)
        has_instructions = bool(prompt.tools) or any(message.role == "system" for message in prompt.messages[:1])
        # A memory that can be truncated at any position needs no boundaries.
        has_boundaries = self._model.memory_kind is not MemoryKind.FULL_ATTENTION
        system_end = self._find_system_end(written, partition) if has_instructions or has_boundaries else None
        open_end = find_open_end(*place) if is_open and not written.media else None
        next_turn = find_next_turn(*place) if has_boundaries and open_end is None else None
        if open_end is not None and self._model.memory_kind not in CUTTABLE:
            # The engine's memory stays at the end of these tokens, so they need no boundary there.
            tokens, system_end, open_end = tokens[:open_end], min(system_end or 0, open_end), None
        # Another question about the same image has the same tokens up to the image's end.
        boundaries = (system_end, next_turn, *(mark.stop for mark in written.marks)) if has_boundaries else ()
        return ReadPrompt(
            tokens,
            rendered.text,
            open_reasoning=rendered.open_reasoning,
            num_system=(system_end or 0) if has_instructions else 0,
            boundaries=tuple(sorted({end for end in (*boundaries, open_end) if end})),
            num_dropped_items=num_dropped,
            media=written.media,
        )

    def _find_system_end(self, written: _Written, partition: str) -> int | None:
        """Return what `find_system_end` does, from an earlier prompt of the client if that had the same instructions.

        To render them alone takes 1.2 ms, for which the first token of each turn would wait.
        """
        prompt, tokens = written.prompt, written.tokens
        system = tuple(takewhile(lambda message: message.role == "system", prompt.messages))
        # Some templates write the instructions before the latest question, so later turns share less.
        is_first = len(prompt.messages) == len(system) + 1
        key = hash((structs.replace(prompt, messages=system, media=()), is_first))
        num, beginning = self._systems.get(partition, key) or (len(tokens), 0)
        if num < len(tokens) and hash(tuple(tokens[:num])) == beginning:  # a template may write the time
            return num
        num_system = find_system_end(*written.place(self._template, self._model.piece))
        if num_system is not None:
            self._systems.put(partition, key, (num_system, hash(tuple(tokens[:num_system]))))
        return num_system

    def _read_text(self, text: str, *, parse_special: bool) -> ReadPrompt:
        bos = self._model.bos_text
        # A client that writes the BOS token itself must not get it twice.
        add_bos = not (parse_special and bos and text.startswith(bos))
        tokens = self._vocabulary.tokenize(text, parse_special=parse_special, add_bos=add_bos)
        return ReadPrompt(tokens, text, int(add_bos and self._model.bos_token is not None))

    def _infill_tokens(self, prefix: str, suffix: str, files: Sequence[tuple[str, str]]) -> list[int]:
        """Return the tokens of prefix and suffix with the model's infill marks, in prefix-suffix-middle (PSM) order.

        The files come first, as the model's repository if it has marks for that.
        """
        marks = self._model.infill_tokens
        if marks is None:
            raise NotSupported(
                "This model cannot fill in the middle: its file names no tokens for that. Ask for a completion without "
                "a suffix, or serve a model for code.",
                param="suffix",
            )
        bos = self._model.bos_token
        head, tail = map(self._plain_tokens, (prefix, suffix))
        before = self._file_tokens(marks, files) if files else []
        return [*([] if bos is None else [bos]), *before, marks.prefix, *head, marks.suffix, *tail, marks.middle]

    def _file_tokens(self, marks: InfillTokens, files: Sequence[tuple[str, str]]) -> list[int]:
        """Return the tokens of the files that stand before the file with the gap."""
        if marks.file < 0:
            return self._plain_tokens("".join(f"{name}\n{text}\n\n" for name, text in files))
        tokens: list[int] = []
        if marks.repository >= 0:
            tokens = [marks.repository, *self._plain_tokens(f"{_REPOSITORY}\n")]
        for name, text in files:
            tokens += [marks.file, *self._plain_tokens(f"{name}\n{text}")]
        return [*tokens, marks.file, *self._plain_tokens(f"{_OPEN_FILE}\n")]

    def _plain_tokens(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text, parse_special=False)

    def _check_length(self, text: str) -> None:
        """Raise ContextLengthExceeded for a text that cannot fit.

        Tokenizing such a text would delay other requests by seconds.
        """
        context = self._context_length
        if len(text) <= _USUAL_PIECE * context or self._model.max_piece_bytes is None:
            return
        fewest = len(text) // self._model.max_piece_bytes
        if fewest > context:
            raise ContextLengthExceeded(
                f"The prompt has {len(text)} characters, at least {fewest} tokens, but the context holds {context}. "
                f"Shorten the prompt, or {longer_context(fewest + 1, self._model.context_length_trained)}.",
                param="input",
                served_by="local",
            )


NO_TOKEN = -1
"""Stands among the tokens of a RenderPrompt's answer for a part of an image or a sound."""
MEDIA_MARKER = "<__media__>"
"""Stands in its text for an image or a sound, as in llama-server."""


def check_media(prompt: ChatPrompt, why_none: str) -> None:
    """Raise NotSupported with the message `why_none` if a conversation has images or sounds."""
    if any(message.media for message in prompt.messages):
        raise NotSupported(why_none, param="input", served_by="local")


def describe_no_media(load: Load) -> str:
    """Return the message of the error for images and sounds that a model cannot read."""
    missing = "it has no projector (a file mmproj-*.gguf), which reads them"
    return " ".join(filter(None, (f"{load.name} takes no images and no sounds: {missing}.", load.why_no_projector)))


def _cut(prompt: ChatPrompt, place: int) -> ChatPrompt:
    return replace(prompt, messages=cut_before(prompt.messages, place))


def check_budget(request: GenerateRequest, num_tokens: int) -> None:
    """Raise TokenBudgetExceeded if a request's prompt of `num_tokens` tokens is longer than `longest_prompt`."""
    most = request.longest_prompt
    if most is None or num_tokens <= most:
        return
    is_own = most == request.need.max_prompt_tokens
    whose = "the request's own limit" if is_own else f"the budget of the tier {request.tier.value}"
    advice = "raise edgeagent.max_prompt_tokens" if is_own else "send it in a tier with a larger budget"
    may_cut = isinstance(request.prompt, ChatPrompt) and not request.prompt.truncate
    raise TokenBudgetExceeded(
        f"The prompt has {num_tokens} tokens, but {whose} is {most} (max_prompt_tokens). Shorten the prompt, "
        f"{'let it be shortened (truncation: auto), ' if may_cut else ''}or {advice}.",
        param="input",
        served_by="local",
    )


def answer_query(
    model: Model,
    vocabulary: LongTextVocabulary,
    template: Renderer,
    query: TextQuery,
    media: MediaReader | None = None,
    why_no_media: str = "",
    context_length: int = 0,
) -> QueryAnswer:
    """Return the answer to a Tokenize, Detokenize or RenderPrompt. `media` reads images and sounds.

    Raise InvalidRequest for unknown token ids, or for a conversation that the template refuses, and
    ContextLengthExceeded for a conversation that is too long for a context of `context_length` tokens, and too long to
    be counted. Without `media`, raise NotSupported with the message `why_no_media` for one with images or sounds.
    """
    if not isinstance(query, RenderPrompt):
        return answer_text_query(model, vocabulary, query)
    if media is None:
        check_media(query.prompt, why_no_media)
    _check_countable(sum(len(text_of(message)) for message in query.prompt.messages), context_length)
    template.renew()
    rendered = template.render(query.prompt)
    _check_countable(len(rendered.text), context_length)
    if media is None or not rendered.media_marks:
        return QueryAnswer(rendered.text, tuple(tokenize_rendered(rendered, vocabulary)))
    shown = [query.prompt.media[place.index] for message in query.prompt.messages for place in message.media]
    tokens: list[int] = []
    for run in tokenize_around_media(rendered, vocabulary):
        tokens += run if isinstance(run, list) else [NO_TOKEN] * media.num_tokens(shown[run])
    text = rendered.text.translate(dict.fromkeys(map(ord, rendered.media_marks), MEDIA_MARKER))
    return QueryAnswer(text, tuple(tokens))


def _check_countable(num_chars: int, context_length: int) -> None:
    """Raise ContextLengthExceeded for a conversation whose tokens would be counted for seconds, and that is too long.

    With more than _MOST_BYTES characters per token of the context, it is taken not to fit, as in a generation.

    Questions are answered one after another, so the next ones would wait for it.
    """
    most = max(MAX_COUNTED_CHARS, _MOST_BYTES * context_length)
    if num_chars > most:
        raise ContextLengthExceeded(
            f"The conversation has {num_chars} characters, and at most {most} are counted: more are taken not to fit "
            f"into the context of {context_length} tokens. Shorten the conversation.",
            param="input",
            served_by="local",
        )


def answer_text_query(model: Model, vocabulary: LongTextVocabulary, query: TextQuery) -> QueryAnswer:
    """Return the answer to a Tokenize or Detokenize.

    Raise InvalidRequest for unknown token ids, and NotSupported for a RenderPrompt.
    """
    match query:
        case Tokenize(text, add_bos, parse_special, with_pieces):
            tokens = tuple(vocabulary.tokenize(text, parse_special=parse_special, add_bos=add_bos))
            return QueryAnswer(tokens=tokens, pieces=tuple(map(model.piece, tokens)) if with_pieces else ())
        case Detokenize(tokens):
            check_tokens(model, tokens, "tokens")
            return QueryAnswer(b"".join(map(model.piece, tokens)).decode("utf-8", "replace"))
        case RenderPrompt():
            raise NotSupported("This model has no conversations: it only embeds or ranks texts.", param="model")
        case PurgeCache() | Embed() | Rerank():
            raise InternalError("the engine must answer this question, not the tokenizer")


def check_tokens(model: Model, tokens: tuple[int, ...], param: str) -> None:
    """Raise InvalidRequest, naming `param`, if a token id is not in the model's vocabulary."""
    bad = next((token for token in tokens if not 0 <= token < model.num_tokens), None)
    if bad is not None:
        raise InvalidRequest(f"Token {bad} is not in the vocabulary of {model.num_tokens} tokens.", param=param)


class TextReader:
    """Tokenizes an Embed's texts; any thread may use it."""

    def __init__(self, model: Model, vocabulary: LongTextVocabulary, max_tokens: int, length: int) -> None:
        """`max_tokens` limits each text.

        `length` is the number of dimensions of the model's embeddings; 0 if it has none.
        """
        self._model = model
        self._vocabulary = vocabulary
        self._max_tokens = max_tokens
        self._length = length

    def read(self, query: Embed) -> list[list[int]]:
        """Return the tokens of each text; raise InvalidRequest, ContextLengthExceeded or NotSupported."""
        if self._length == 0:
            raise NotSupported(
                "This model gives no embeddings: it ranks documents, for /v1/rerank. Choose another model.",
                param="model",
            )
        if query.dimensions is not None and query.dimensions > self._length:
            raise InvalidRequest(
                f"dimensions is {query.dimensions}, but this model's embeddings have {self._length}; ask for no more",
                param="dimensions",
            )
        is_alone = len(query.inputs) == 1
        return [
            self._read(text, "input" if is_alone else f"input[{index}]", truncate=query.truncate)
            for index, text in enumerate(query.inputs)
        ]

    def _read(self, prompt: TextPrompt | TokenPrompt, name: str, *, truncate: bool) -> list[int]:
        """Return a text's tokens, with the tokens that the model expects at the beginning and at the end.

        Text that spells a control token becomes that token, as in llama-server and Ollama. If the prompt has token ids,
        nothing is added to them.
        """
        head: list[int] = []
        tail: list[int] = []
        match prompt:
            case TokenPrompt(tokens):
                check_tokens(self._model, tokens, name)
                body = list(tokens)
            case TextPrompt(text):
                head, tail = self._model.frame_tokens
                body = self._vocabulary.tokenize(text, parse_special=True)
                # A client that writes these tokens itself must not get them twice.
                head = [] if body[: len(head)] == head else head
                tail = [] if tail and body[-len(tail) :] == tail else tail
        if not head and not body and not tail:
            raise InvalidRequest(f"{name} is empty; it must have at least one token.", param=name)
        num_tokens = len(head) + len(body) + len(tail)
        if num_tokens > self._max_tokens and not truncate:
            raise ContextLengthExceeded(
                f"{name} has {num_tokens} tokens, but at most {self._max_tokens} can be embedded at once. Shorten or "
                f"split it, or {longer_context(num_tokens, self._model.context_length_trained)}.",
                param=name,
                served_by="local",
            )
        return [*head, *body[: self._max_tokens - len(head) - len(tail)], *tail]
