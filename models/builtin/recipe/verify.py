"""Checks that an exported GGUF equals the trained model: the same tokens and, up to rounding, the same logits.

Logits are compared only at the assistant's tokens. The model is not trained on prompts, so rounding changes the logits
there more.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from llama_cpp import Llama as LlamaCpp
from tokenizers import Tokenizer

from .batches import Encoder
from .chat import render
from .corpus import stream
from .export import NAMES
from .model import SHAPES, causal_logits
from .train import load_average

TEXTS = (
    "Hello world",
    "  two  spaces\n\n\nand lines \n",
    "Zürich, Ærø, 東京 and Привет мир 🙂🇳🇴",
    "tabs\tand\r\nreturns",
    "it's we'll I'M",
    "1234567890 ½ ٣",
    '{"a": [1, 2.5, null]}',
    "naïve café\u0301",
    "\u200bzero\u00a0width",
    "don't_snake camelCase",
    "<|im_end|>x<tool_call>",
)


def verify(name: str, work: Path, out: Path, num_samples: int = 40) -> dict[str, float | bool]:
    """Compare tokens and logits. Return the figures; raise AssertionError if the models differ."""
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    shipped = LlamaCpp(str(out / NAMES[name][1]), n_ctx=1024, logits_all=True, verbose=False)
    model = load_average(name, work)
    encoder = Encoder(tokenizer, prompt_weight=0.0)
    samples = [sample for sample, _ in zip(stream("verify", "eval"), range(num_samples), strict=False)]
    texts = [render(s.messages, s.tools) for s in samples]
    for text in (*TEXTS, *texts):
        ours, theirs = tokenizer.encode(text).ids, shipped.tokenize(text.encode(), add_bos=True, special=True)
        assert ours == theirs, f"tokens differ on {text!r}: {ours} {theirs}"
        plain = text if "<|" not in text else "x"
        assert shipped.detokenize(shipped.tokenize(plain.encode(), add_bos=False)).decode() == plain
    cosines, agreed, total = [], 0, 0
    for sample in samples:
        ids, weights = encoder.encode(sample, sort_keys=False)
        ids, weights = ids[:1000], weights[:1000]
        shipped.reset()
        shipped.eval(ids)
        learnt = np.flatnonzero(weights[1:])
        theirs_np = np.array(shipped.scores[: len(ids)])[learnt]
        with torch.no_grad():
            ours_np = causal_logits(model, torch.tensor(ids)).numpy()[learnt]
        norms = np.linalg.norm(ours_np, axis=1) * np.linalg.norm(theirs_np, axis=1)
        cosines.append(float(((ours_np * theirs_np).sum(1) / norms).min()))
        agreed += int((ours_np.argmax(1) == theirs_np.argmax(1)).sum())
        total += len(learnt)
    found = {"tokens_equal": True, "lowest_cosine": round(min(cosines), 5), "argmax_equal": round(agreed / total, 4)}
    assert found["lowest_cosine"] > 0.99 and found["argmax_equal"] > 0.98, found
    return found


def main() -> None:
    """Verify one or both models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=sorted(SHAPES))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1])
    arguments = parser.parse_args()
    for name in arguments.models:
        print(json.dumps({"model": name, **verify(name, arguments.work, arguments.out)}))


if __name__ == "__main__":
    main()
