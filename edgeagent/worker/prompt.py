"""What a model's text tools make of a prompt, and of a question about text. It knows no engine and no thread."""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.engine.model import Model
from edgeagent.errors import ContextLengthExceeded, InternalError, InvalidRequest, NotSupported
from edgeagent.text.long_text import LongTextVocabulary
from edgeagent.text.template import ChatTemplate, tokenize_rendered
from edgeagent.text.tool_format import KNOWN_MARKERS, ReasoningMarkers
from edgeagent.text.vocabulary import SpecialTexts
from edgeagent.types import (
    ChatPrompt,
    Detokenize,
    Embed,
    MemoryKind,
    Prompt,
    PurgeCache,
    RenderPrompt,
    TextAnswer,
    TextPrompt,
    TextQuery,
    Tokenize,
    TokenPrompt,
)
from edgeagent.worker.boundaries import find_next_turn, find_system_end

_USUAL_PIECE = 8  # characters; a text with fewer for each cell may fit, and is quickly tokenized


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt's tokens, the first `num_added` of them ours.

    `text` is what the client wrote, None where that was no one text. `open_reasoning` is what the template left open.
    `num_system` tokens are instructions and tools; `boundaries` are positions where other prompts may part from this
    one, looked for where the memory needs it.
    """

    tokens: list[int]
    text: str | None = None
    num_added: int = 0
    open_reasoning: ReasoningMarkers | None = None
    num_system: int = 0
    boundaries: tuple[int, ...] = ()


def make_template(model: Model, special: SpecialTexts) -> ChatTemplate:
    """Return the model's chat template. One thread uses it; another one makes its own."""
    source = model.chat_template
    return ChatTemplate(
        source,
        bos_text=model.bos_text,
        eos_text=model.eos_text,
        architecture=model.metadata("general.architecture") or "",
        control_texts=special.control,
        marker_texts=special.markers(f"{source}{KNOWN_MARKERS}"),
    )


class PromptReader:
    """Reads prompts for a context of `context_length` tokens."""

    def __init__(
        self, model: Model, vocabulary: LongTextVocabulary, template: ChatTemplate, context_length: int
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._template = template
        self._context_length = context_length

    def read(self, prompt: Prompt) -> ReadPrompt:
        """Return a prompt's tokens; raise InvalidRequest, NotSupported, or ContextLengthExceeded where none can fit."""
        match prompt:
            case ChatPrompt():
                return self._read_chat(prompt)
            case TextPrompt(text=text, suffix=suffix, parse_special=parse_special):
                self._check_length(text + (suffix or ""))
                if suffix is not None:
                    return ReadPrompt(self._infill_tokens(text, suffix))
                return self._read_text(text, parse_special=parse_special)
            case TokenPrompt(tokens=tokens):
                check_tokens(self._model, tokens, "prompt")
                return ReadPrompt(list(tokens))

    def _read_chat(self, prompt: ChatPrompt) -> ReadPrompt:
        rendered = self._template.render(prompt)
        self._check_length(rendered.text)
        tokens = tokenize_rendered(rendered, self._vocabulary)
        place = (self._template, prompt, rendered.text, tokens, self._model.piece)
        has_instructions = bool(prompt.tools) or any(message.role == "system" for message in prompt.messages[:1])
        # A memory that can be cut anywhere needs no places to be cut at.
        has_boundaries = self._model.memory_kind is not MemoryKind.FULL_ATTENTION
        system_end = find_system_end(*place) if has_instructions or has_boundaries else None
        next_turn = find_next_turn(*place) if has_boundaries else None
        return ReadPrompt(
            tokens,
            rendered.text,
            open_reasoning=rendered.open_reasoning,
            num_system=(system_end or 0) if has_instructions else 0,
            boundaries=tuple(sorted({end for end in (system_end, next_turn) if end})) if has_boundaries else (),
        )

    def _read_text(self, text: str, *, parse_special: bool) -> ReadPrompt:
        bos = self._model.bos_text
        # A client that writes the beginning token itself does not want it twice.
        add_bos = not (parse_special and bos and text.startswith(bos))
        tokens = self._vocabulary.tokenize(text, parse_special=parse_special, add_bos=add_bos)
        return ReadPrompt(tokens, text, int(add_bos and self._model.bos_token is not None))

    def _infill_tokens(self, prefix: str, suffix: str) -> list[int]:
        """Return prefix, suffix and the place between them, as the model was trained to see them (PSM order)."""
        marks = self._model.infill_tokens
        if marks is None:
            raise NotSupported(
                "This model cannot fill in the middle: its file names no tokens for that. Leave out `suffix`, or serve "
                "a model for code.",
                param="suffix",
            )
        bos = self._model.bos_token
        head, tail = (self._vocabulary.tokenize(text, parse_special=False) for text in (prefix, suffix))
        return [*([] if bos is None else [bos]), marks.prefix, *head, marks.suffix, *tail, marks.middle]

    def _check_length(self, text: str) -> None:
        """Refuse a text that cannot fit, before a tokenizer spends seconds on it in which others wait."""
        context = self._context_length
        if len(text) <= _USUAL_PIECE * context or self._model.max_piece_bytes is None:
            return
        fewest = len(text) // self._model.max_piece_bytes
        if fewest > context:
            raise ContextLengthExceeded(
                f"The prompt has {len(text)} characters, at least {fewest} tokens, but the context holds {context}. "
                "Shorten the prompt, or start edgeagent with a larger --ctx.",
                param="input",
                served_by="local",
            )


def answer_query(model: Model, vocabulary: LongTextVocabulary, template: ChatTemplate, query: TextQuery) -> TextAnswer:
    """Answer a question about text; raise InvalidRequest where it names tokens that there are not."""
    match query:
        case Tokenize(text, add_bos, parse_special, with_pieces):
            tokens = tuple(vocabulary.tokenize(text, parse_special=parse_special, add_bos=add_bos))
            return TextAnswer(tokens=tokens, pieces=tuple(map(model.piece, tokens)) if with_pieces else ())
        case Detokenize(tokens):
            check_tokens(model, tokens, "tokens")
            return TextAnswer(b"".join(map(model.piece, tokens)).decode("utf-8", "replace"))
        case RenderPrompt(prompt):
            rendered = template.render(prompt)
            return TextAnswer(rendered.text, tuple(tokenize_rendered(rendered, vocabulary)))
        case PurgeCache() | Embed():
            raise InternalError("that is the engine's to answer, not the tokenizer's")


def check_tokens(model: Model, tokens: tuple[int, ...], param: str) -> None:
    """Raise InvalidRequest, with that param, where a token id is not in the model's vocabulary."""
    bad = next((token for token in tokens if not 0 <= token < model.num_tokens), None)
    if bad is not None:
        raise InvalidRequest(f"Token {bad} is not in the vocabulary of {model.num_tokens} tokens.", param=param)
