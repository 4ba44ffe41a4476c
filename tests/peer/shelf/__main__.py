"""Makes one model of the shelf: `python -m tests.peer.shelf qwen3-0.6b OUT.gguf --quant Q4_K_M`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tests.peer.shelf import QUANTS, SHAPES, make_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=list(SHAPES))
    parser.add_argument("out", type=Path)
    parser.add_argument("--quant", choices=QUANTS, default="Q4_0")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began_s = time.monotonic()
    path = make_model(arguments.out, SHAPES[arguments.shape], arguments.quant, seed=arguments.seed)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB in {time.monotonic() - began_s:.1f} s")


if __name__ == "__main__":
    main()
