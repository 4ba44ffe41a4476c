"""Puts the mean of several checkpoints' averaged weights in the place of a work folder's own.

Checkpoints of one run, each at the end of a fall of the learning rate, are wrong in different places; their mean was
right more often than any of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from .model import SHAPES


def average(name: str, work: Path, others: list[Path]) -> None:
    """Average the model `name` (target or draft) of a work folder with other checkpoints of it, all alike."""
    path = work / f"{name}.pt"
    saved = torch.load(path, weights_only=True)
    all_weights = [saved["average"]] + [torch.load(other, weights_only=True)["average"] for other in others]
    saved["average"] = {
        key: torch.stack([weights[key].float() for weights in all_weights]).mean(0) for key in saved["average"]
    }
    torch.save(saved, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def main() -> None:
    """Average one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(SHAPES))
    parser.add_argument("others", nargs="+", type=Path, help="more checkpoints of the same model")
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    average(arguments.model, arguments.work, arguments.others)


if __name__ == "__main__":
    main()
