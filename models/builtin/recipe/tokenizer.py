"""Trains the byte-level BPE tokenizer that both models share.

A value gets the same tokens in prose, after a quote and in JSON, so a small model can copy it token by token. For this,
tokens are learned without leading spaces, and a space is joined only to a word that is a single token. The regular
expression that llama.cpp calls `qwen2` splits the text first, so every digit is a token of its own.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from .chat import render
from .corpus import LONG, MIXTURE, stream

PRE = "qwen2"
VOCAB_SIZE = 2048
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")
END, START, STOP = CONTROL

_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPACELESS = _CONTRACTIONS + r"|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"


def _splitter(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _texts(count: int) -> list[str]:
    """Return training text, cut at the marks of the chat template. The marks themselves are left out."""
    found = []
    for sample, _ in zip(stream("tokenizer", "train", MIXTURE + LONG), range(count), strict=False):
        text = render(sample.messages, sample.tools)
        for mark in CONTROL + MARKS:
            text = text.replace(mark, "\0")
        found += [piece for piece in text.split("\0") if piece]
    return found


def _learn_pieces(texts: list[str], size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _splitter(_SPACELESS)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        special_tokens=[],
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def _spaced_words(texts: list[str], vocab: dict[str, int]) -> list[str]:
    """Return the tokens of the vocabulary that follow a space, the most frequent first."""
    splitter = _splitter(_QWEN2)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in splitter.pre_tokenize_str(text))
    space = "Ġ"
    return [word[1:] for word, _ in counts.most_common() if word[0] == space and len(word) > 1 and word[1:] in vocab]


def train(num_samples: int = 30_000, pieces: int = 1520) -> Tokenizer:
    """Train the tokenizer; the same corpus gives the same tokenizer."""
    texts = _texts(num_samples)
    vocab, merges = _learn_pieces(texts, pieces)
    room = VOCAB_SIZE - len(CONTROL) - len(MARKS) - len(vocab)
    for word in _spaced_words(texts, vocab)[:room]:
        vocab["Ġ" + word] = len(vocab)
        merges.append(("Ġ", word))
    spare = [f"<|spare_{i}|>" for i in range(VOCAB_SIZE - len(CONTROL) - len(MARKS) - len(vocab))]
    return assemble([*sorted(vocab, key=vocab.__getitem__), *CONTROL, *spare, *MARKS], merges)


def assemble(tokens: Sequence[str], merges: Sequence[tuple[str, str]]) -> Tokenizer:
    """Return the tokenizer of these tokens in the order of their ids, and merges.

    The last tokens are those that the text marks: CONTROL and the spare ones, then MARKS.
    """
    plain = {token: i for i, token in enumerate(tokens) if token not in MARKS and not _is_control(token)}
    tokenizer = Tokenizer(models.BPE(vocab=plain, merges=list(merges)))
    tokenizer.pre_tokenizer = _splitter(_QWEN2)
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token in tokens if _is_control(token)]
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in control])
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return tokenizer


def _is_control(token: str) -> bool:
    return token in CONTROL or token.startswith("<|spare_")


def main() -> None:
    """Train and save the tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for everything that training makes")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    tokenizer = train()
    tokenizer.save(str(arguments.work / "tokenizer.json"))
    print(json.dumps({"vocab_size": tokenizer.get_vocab_size()}))


if __name__ == "__main__":
    main()
