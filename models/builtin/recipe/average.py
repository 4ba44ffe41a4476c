"""Replaces the averaged weights of a work folder with the mean of several checkpoints' averaged weights.

Each checkpoint is taken when the learning rate has fallen to zero. Each makes different mistakes, and their mean was
right more often than any one of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from .model import SHAPES


def average(name: str, work: Path, others: list[Path]) -> None:
    """Average the model `name` (target or draft) of a work folder with other checkpoints of the same shape."""
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
