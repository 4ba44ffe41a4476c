"""Turns one request's tokens into deltas in three stages: detokenization, channels, stop strings.

It keeps log probabilities together with the text of their tokens. It recognizes stop strings, but no other reason for
the end of an answer. A channel is content, reasoning or tool calls.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from edgeagent.text.output.channels import ChannelParser, Content, Part, new_call_id
from edgeagent.text.tool_format import ReasoningMarkers, ToolFormat, markers
from edgeagent.text.vocabulary import Vocabulary, control_tokens
from edgeagent.types import Delta, ReasoningDelta, TextDelta, TokenLogprob, ToolCallDelta, replace


class DeliveredPrefix:
    """Removes the delivered part from the deltas of an answer that is repeated from its start.

    `text` and `reasoning` of the constructor are the delivered part. White space at the beginning of the text, and at
    both ends of the reasoning, is not compared.
    """

    def __init__(self, text: str, reasoning: str) -> None:
        self._text = text
        self._reasoning = reasoning.lstrip()
        self._has_text = False

    def rest(self, delta: Delta) -> Delta | None:
        """Return the new part of a delta; None if nothing is new."""
        match delta:
            case ReasoningDelta(text):
                new, self._reasoning = _undelivered(text, self._reasoning)
                return ReasoningDelta(new) if new else None
            case TextDelta(text):
                if not self._has_text and not text[:1].isspace():
                    self._text = self._text.lstrip()
                self._has_text, self._reasoning = True, ""
                new, self._text = _undelivered(text, self._text)
                return replace(delta, text=new) if new else None
            case _:
                self._text = self._reasoning = ""
                return delta


def _undelivered(text: str, delivered: str) -> tuple[str, str]:
    """Return the part of `text` that was not delivered, and the part of `delivered` that is still to be compared."""
    if delivered.startswith(text):
        return "", delivered[len(text) :]
    pairs = enumerate(zip(text, delivered, strict=False))
    num_same = next((index for index, (one, other) in pairs if one != other), min(len(text), len(delivered)))
    return text[num_same:], ""


_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns one stream of tokens into text.

    Control tokens and tokens that end generation have no text, except those in `visible_control` (markers that a later
    stage parses).
    """

    def __init__(self, vocabulary: Vocabulary, visible_control: frozenset[int] = frozenset()) -> None:
        self._vocabulary = vocabulary
        self._visible_control = visible_control
        self._decoder = _utf8(errors="replace")

    def feed(self, tokens: Iterable[int]) -> str:
        """Return the text that these tokens complete. A character is never split."""
        return self._decoder.decode(b"".join(self._piece(token) for token in tokens))

    def flush(self) -> str:
        """Return a replacement character for an incomplete character at the end; usually empty."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text

    def _piece(self, token: int) -> bytes:
        if token not in self._visible_control and (
            self._vocabulary.is_control(token) or self._vocabulary.is_end(token)
        ):
            return b""
        return self._vocabulary.piece(token)


class StopMatcher:
    """Returns the text that it gets, up to the first complete stop string.

    The stop string that is complete first ends the text. If several end at the same character, it is the longest of
    them. So the result does not depend on how the text is split into parts.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._first_characters = frozenset(stop[0] for stop in self._stops)
        self._beginnings = frozenset(stop[:length] for stop in self._stops for length in range(1, len(stop)))
        self._max_held = max((len(stop) - 1 for stop in self._stops), default=0)
        self._held = ""

    @property
    def num_held(self) -> int:
        return len(self._held)

    def feed(self, text: str) -> tuple[str, str | None]:
        """Return the text that can be shown, and the stop string after it, which is None until one is complete.

        Text at the end that could begin a stop string is held back until more text shows that it does not. After a
        match, feed nothing more.
        """
        if not self._stops:
            return text, None
        text = self._held + text
        if (match := self._first_match(text)) is not None:
            start, stop = match
            self._held = ""
            return text[:start], stop
        cut = self._safe_length(text)
        self._held = text[cut:]
        return text[:cut], None

    def flush(self) -> str:
        """End the input and return the text that was held back."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _safe_length(self, text: str) -> int:
        for start in range(max(0, len(text) - self._max_held), len(text)):
            if text[start] in self._first_characters and text[start:] in self._beginnings:
                return start
        return len(text)


@dataclass(frozen=True, slots=True)
class _Span:
    """A token's range in the generated text, in characters. It is empty if the token completes no character."""

    logprob: TokenLogprob
    start: int
    end: int


class OutputStream:
    """Makes the deltas of one request. Stop strings apply only to content. For the other options see ChannelParser."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        stops: Sequence[str] = (),
        tool_format: ToolFormat | None = None,
        tool_names: Collection[str] = (),
        reasoning: Sequence[ReasoningMarkers] = (),
        open_reasoning: ReasoningMarkers | None = None,
        new_call_id: Callable[[], str] = new_call_id,
    ) -> None:
        pairs = (*reasoning, *([] if open_reasoning is None else [open_reasoning]))
        texts = [text for pair in pairs for text in (pair.open, pair.close)]
        if tool_format is not None and tool_names:
            texts += markers(tool_format)
        self._detokenizer = Detokenizer(vocabulary, control_tokens(vocabulary, texts))
        self._channels = ChannelParser(
            tool_format=tool_format,
            tool_names=tool_names,
            reasoning=reasoning,
            open_reasoning=open_reasoning,
            new_call_id=new_call_id,
        )
        self._stops = StopMatcher(stops)
        self._position = 0
        self._spans: deque[_Span] = deque()
        # Log probabilities whose text has reached the stop matcher, by the position of that text in the content.
        self._placed: deque[tuple[int, TokenLogprob]] = deque()
        # The tokens whose text is held back, at least in part: where it begins and ends, and their log probabilities.
        self._held: deque[tuple[int, int, TokenLogprob | None]] = deque()
        self._num_returned_chars = 0
        self._num_content = 0
        self._num_shown = 0
        self._deltas: list[Delta] = []
        self._delivered_prefix: DeliveredPrefix | None = None
        self.stopped: str | None = None
        self.num_tokens = 0
        self.num_reasoning_tokens = 0

    @property
    def has_tool_calls(self) -> bool:
        return self._channels.num_calls > 0

    @property
    def num_shown(self) -> int:
        return self._num_shown

    @property
    def held_logprobs(self) -> tuple[TokenLogprob, ...]:
        """The log probabilities of the last tokens: those whose text has not been returned yet, not even in part."""
        held = (logprob for start, _, logprob in self._held if start >= self._num_returned_chars)
        return tuple(logprob for logprob in held if logprob is not None)

    @property
    def num_returned(self) -> int:
        """How many tokens have all their text in the deltas so far, or are followed by text and have none to show."""
        return self.num_tokens - len(self._held)

    def feed(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob | None] = ()) -> tuple[Delta, ...]:
        """Return the deltas of these tokens.

        `logprobs` is empty or has one item for each token; None for a token whose log probabilities were sent before.
        If `stopped` is set afterwards, it is the stop string that ended the answer. Then `num_tokens` is the number of
        tokens up to that string, and no more tokens should be fed.
        """
        for token, logprob in zip_longest(tokens, logprobs):
            if self.stopped is not None:
                break
            self._feed_token(token, logprob)
        return self._take_deltas()

    def resume(self, tokens: Sequence[int], text: str, reasoning: str) -> bool:
        """Feed the first tokens of an answer. The client already has their `text` and `reasoning`.

        Return True if the tokens give nothing else. Return False if they give a call or more text, or if they complete
        a stop string.
        """
        self._delivered_prefix = DeliveredPrefix(text, reasoning)
        return not self.feed(tokens) and self.stopped is None

    def cut(self) -> tuple[Delta, ...]:
        """End the input of an answer that was cut off, and return the text that was held back.

        A call that has its marker but no name yet is dropped.
        """
        if self.stopped is None:
            self._channels.drop_opening()
        return self.finish()

    def finish(self) -> tuple[Delta, ...]:
        """End the input and return the deltas that were held back."""
        if self.stopped is None:
            self._feed_text(self._detokenizer.flush())
            self._add_parts(self._channels.finish())
        if self.stopped is None:
            self._show(self._stops.flush())
        return self._take_deltas()

    def _feed_token(self, token: int, logprob: TokenLogprob | None) -> None:
        text = self._detokenizer.feed((token,))
        was_reasoning = self._channels.in_reasoning
        if logprob is not None:
            self._spans.append(_Span(logprob, self._position, self._position + len(text)))
        self._held.append((self._position, self._position + len(text), logprob))
        self._feed_text(text)
        self.num_tokens += 1
        self.num_reasoning_tokens += was_reasoning or self._channels.in_reasoning

    def _feed_text(self, text: str) -> None:
        self._position += len(text)
        self._add_parts(self._channels.feed(text))

    def _add_parts(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if self.stopped is not None:
                return
            if isinstance(part, Content):
                self._add_content(part)
            else:
                self._show(self._stops.flush())
                self._add_delta(part)

    def _add_content(self, part: Content) -> None:
        end = part.start + len(part.text)
        while self._spans and self._spans[0].start < end:
            span = self._spans.popleft()
            if span.end > part.start or span.start >= part.start:
                self._placed.append((self._num_content + max(0, span.start - part.start), span.logprob))
        self._num_content += len(part.text)
        shown, self.stopped = self._stops.feed(part.text)
        self._show(shown)

    def _show(self, text: str) -> None:
        if not text:
            return
        self._num_shown += len(text)
        logprobs: list[TokenLogprob] = []
        while self._placed and self._placed[0][0] < self._num_shown:
            start, logprob = self._placed.popleft()
            logprobs.append(replace(logprob, start=start))
        self._add_delta(TextDelta(text, tuple(logprobs)))

    def _add_delta(self, delta: Delta) -> None:
        """Add a delta. Join it to the previous one if both are of the same kind."""
        if self._delivered_prefix is not None:
            new = self._delivered_prefix.rest(delta)
            if new is None:
                return
            delta = new
        last = self._deltas[-1] if self._deltas else None
        match last, delta:
            case TextDelta(), TextDelta():
                self._deltas[-1] = TextDelta(last.text + delta.text, last.logprobs + delta.logprobs)
            case ReasoningDelta(), ReasoningDelta():
                self._deltas[-1] = ReasoningDelta(last.text + delta.text)
            case ToolCallDelta(), ToolCallDelta() if last.index == delta.index:
                self._deltas[-1] = ToolCallDelta(last.index, last.arguments + delta.arguments)
            case _:
                self._deltas.append(delta)

    def _take_deltas(self) -> tuple[Delta, ...]:
        self._num_returned_chars = self._position - self._channels.num_held - self._stops.num_held
        while self._held and self._held[0][0] < self._num_returned_chars >= self._held[0][1]:
            self._held.popleft()
        deltas, self._deltas = tuple(self._deltas), []
        return deltas
