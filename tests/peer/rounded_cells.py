"""Measures what `--cache-type q8_0` changes in a model's answers: `python -m tests.peer.rounded_cells [MODEL.gguf]`.

A model computes each text twice: after a prefix whose KV cells are as computed, and after the same prefix with cells
that were packed into a block and unpacked again. The script prints three figures: how far the distributions of the next
tokens differ, how often the most likely token differs, and how much smaller the blocks are.

The default model is the bundled one, with texts in its own format. Random weights would show nothing about answers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.cell_packing import CellPacker
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Logits, Slice

ROOT = Path(__file__).parents[2]
BEHIND = 48  # tokens whose distributions are compared
QUESTIONS = (
    "When do you open on Sundays, and what does a ticket cost for two adults and a child?",
    "Set a timer for twelve minutes and remind me to call the dentist tomorrow at nine.",
    "What is the difference between a lake and a sea? Answer in two sentences, please.",
    "Turn off the lamp in the kitchen, lock the front door and tell me the temperature in the bedroom.",
    "My name is Ada, I live in Bergen and I like to hike. What is my name, and where do I live?",
    "Write a short, friendly message to my neighbour who looked after the cat while I was away.",
    "How many minutes are there in three and a half hours, and how many seconds is that?",
    "Play something quiet in the living room, but not louder than thirty percent.",
)


def log_probabilities(logits: Logits) -> np.ndarray:
    """Return the logarithms of the probabilities of all tokens."""
    shifted = logits.astype(np.float64) - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def behind(runner: LlamaRunner, seq_id: int, start: int, tokens: list[int]) -> list[np.ndarray]:
    """Decode these tokens from position `start`. Return the log-probabilities of the next token after each of them."""
    runner.decode([Slice(seq_id, start, tokens, len(tokens))])
    return [log_probabilities(runner.logits(at)) for at in range(len(tokens))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=ROOT / "models" / "builtin" / "edgeagent-mini.gguf")
    options = parser.parse_args()
    config = EngineConfig(ctx=1024, flash_attention="on", kv_type_k="f16", kv_type_v="f16")
    model = Model(options.model, config)
    runner, packer = LlamaRunner(model, config), CellPacker()
    divergences: list[float] = []
    num_equal = num_bytes = num_packed = 0
    for at, question in enumerate(QUESTIONS):
        others = " ".join(QUESTIONS[:at] + QUESTIONS[at + 1 :])
        text = f"<|im_start|>system\n{others}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
        tokens = model.tokenize(text, parse_special=True)
        start = len(tokens) - min(BEHIND, len(tokens) // 2)
        runner.decode([Slice(0, 0, tokens[:start], 1)])
        payload = runner.save(0, 0, start)
        packed = packer.pack(payload)
        num_bytes, num_packed = num_bytes + len(payload), num_packed + len(packed)
        assert runner.restore(1, packer.unpack(packed), start)
        exact, rounded = (behind(runner, seq_id, start, tokens[start:]) for seq_id in (0, 1))
        for one, other in zip(exact, rounded, strict=True):
            divergences.append(float((np.exp(one) * (one - other)).sum()))
            num_equal += int(one.argmax() == other.argmax())
        runner.clear(0)
        runner.clear(1)
    print(f"{len(divergences)} distributions of {options.model.name}, {len(QUESTIONS)} prompts")
    print(f"Kullback-Leibler divergence: mean {np.mean(divergences):.2g}, largest {max(divergences):.2g} nats")
    print(f"the same most likely token: {num_equal / len(divergences):.1%}")
    print(f"bytes of a block: {num_packed / num_bytes:.2f} of those with exact cells")


if __name__ == "__main__":
    main()
