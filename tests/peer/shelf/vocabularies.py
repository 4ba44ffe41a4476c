"""Vocabularies of any size that tokenize English words sensibly, with the metadata of each family of models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from gguf import GGUFWriter, TokenType

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
SPM_SPACE = "\u2581"
CHAT_ML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA_3 = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' "
    "+ message.content + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else "
    "'user') + '\\n' + message.content + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Family:
    """The tokenizer metadata of a family. `pre` is llama.cpp's name of the text splitting; "" means by scores."""

    pre: str
    controls: tuple[str, ...]
    bos: str
    eos: str
    template: str
    adds_bos: bool = True


FAMILIES = {
    "qwen2": Family(
        "qwen2", ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "<|endoftext|>", "<|im_end|>", CHAT_ML, adds_bos=False
    ),
    "qwen35": Family(
        "qwen35",
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        "<|endoftext|>",
        "<|im_end|>",
        CHAT_ML,
        adds_bos=False,
    ),
    "llama-bpe": Family(
        "llama-bpe",
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|begin_of_text|>",
        "<|eot_id|>",
        LLAMA_3,
    ),
    "lfm2": Family(
        "lfm2",
        (
            *("<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"),
            *("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),  # llama-server reads no image without them
        ),
        "<|startoftext|>",
        "<|im_end|>",
        "{{ bos_token }}" + CHAT_ML,
    ),
    "gemma": Family(
        "", ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"), "<bos>", "<eos>", GEMMA
    ),
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The pieces of a vocabulary; `controls` are markup. Merges or scores define how words are built."""

    family: Family
    pieces: Sequence[str]
    controls: range
    merges: Sequence[str] = ()
    bytes: range = range(0)

    def write(self, writer: GGUFWriter) -> None:
        """Write the vocabulary's metadata to a model's file."""
        kinds = [TokenType.NORMAL] * len(self.pieces)
        for ids, kind in ((self.controls, TokenType.CONTROL), (self.bytes, TokenType.BYTE)):
            kinds[ids.start : ids.stop] = [kind] * len(ids)
        writer.add_tokenizer_model("gpt2" if self.family.pre else "llama")
        writer.add_tokenizer_pre(self.family.pre or "default")
        writer.add_token_list(self.pieces)
        writer.add_token_types(kinds)
        if self.merges:
            writer.add_token_merges(self.merges)
        else:
            # Pieces with higher scores are merged earlier.
            writer.add_token_scores([-float(token) for token in range(len(self.pieces))])
            writer.add_add_space_prefix(False)
            writer.add_unk_token_id(self.pieces.index("<unk>"))
        writer.add_bos_token_id(self.pieces.index(self.family.bos))
        writer.add_eos_token_id(self.pieces.index(self.family.eos))
        writer.add_add_bos_token(self.family.adds_bos)
        writer.add_chat_template(self.family.template)


@cache
def vocabulary(family: str, num_vocab: int) -> Vocabulary:
    """Return a family's vocabulary of `num_vocab` distinct pieces: bytes, then words of 2, 3 and 4 letters."""
    chosen = FAMILIES[family]
    return _by_merges(chosen, num_vocab) if chosen.pre else _by_scores(chosen, num_vocab)


def _by_merges(family: Family, num_vocab: int) -> Vocabulary:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    pieces = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
    merges = []
    num_normal = num_vocab - len(family.controls)
    for start, end in _words(pieces[ord(" ")]):
        if len(pieces) == num_normal:
            break
        pieces.append(start + end)
        merges.append(f"{start} {end}")
    pieces += family.controls
    return Vocabulary(family, pieces, range(num_normal, len(pieces)), merges)


def _by_scores(family: Family, num_vocab: int) -> Vocabulary:
    pieces = [*family.controls, *(f"<0x{byte:02X}>" for byte in range(256))]
    controls, numbers = range(len(family.controls)), range(len(family.controls), len(pieces))
    pieces += ["\n", SPM_SPACE, *(chr(code) for code in range(0x21, 0x7F))]
    for start, end in _words(SPM_SPACE):
        if len(pieces) == num_vocab:
            break
        pieces.append(start + end)
    return Vocabulary(family, pieces, controls, bytes=numbers)


def _words(space: str) -> Iterator[tuple[str, str]]:
    """Yield words as (all letters but the last, last letter), shorter ones first, each with and without a space."""
    for letter in ALPHABET:
        yield space, letter
    for length in (2, 3, 4):
        for *start, end in product(ALPHABET, repeat=length):
            yield "".join(start), end
            if length < 4:
                yield space + "".join(start), end
