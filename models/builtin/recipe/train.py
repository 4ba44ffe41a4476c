"""Trains the target, or the draft with the target as its teacher. A run resumes from its last checkpoint.

The learning rate warms up, stays constant, and falls to zero at the end of `--steps`. So a stopped run can be finished
with another number of steps. The run also keeps an average of the weights, which can be exported at any time.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from .batches import Batch, BatchPlan, batches
from .corpus import FOCUS
from .model import SHAPES, Llama, causal_mask

Trunk = Callable[[Tensor, Tensor, Tensor], Tensor]

SEED = "edgeagent-mini-1"
WARMUP_STEPS = 60
DECAY_SHARE = 0.3
EMA = 0.996


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to train, on which data, and how fast.

    `rate` is a factor for the usual learning rates. If `is_taught`, the target's distribution is the teacher.
    """

    steps: int
    batches: BatchPlan
    rate: float
    is_compiled: bool
    is_taught: bool


class Muon(torch.optim.Optimizer):
    """The Muon optimizer (Jordan et al., 2024): momentum whose update is made orthogonal. It is for matrices only.

    Five Newton-Schulz steps make the update orthogonal.
    """

    def __init__(
        self, parameters: list[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.02
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # noqa: ARG002 (the base class names it)
        """Update every matrix. Matrices of the same shape are processed together."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for shape, members in shapes.items():
                updates = torch.stack([self._momentum(p, group["momentum"]) for p in members])
                updates = orthogonal(updates) * max(1.0, shape[0] / shape[1]) ** 0.5
                for parameter, update in zip(members, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        assert parameter.grad is not None
        state = self.state[parameter]
        buffer = state.setdefault("momentum", torch.zeros_like(parameter))
        buffer.lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(buffer, momentum)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return an approximation of U·Vᵀ for each matrix in a stack, with the coefficients of the Muon paper."""
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if tall else x).float()


def learning_rate(step: int, steps: int) -> float:
    """Return the share of the full learning rate: warm-up, plateau, linear fall."""
    fall = int(steps * (1 - DECAY_SHARE))
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    return 1.0 if step < fall else max(0.0, (steps - step) / (steps - fall))


def loss_of(model: Llama, trunk: Trunk, batch: Batch, teacher: Llama | None) -> Tensor:
    """Return the weighted cross-entropy. A draft's loss is mostly the cross-entropy with the teacher's distribution.

    `trunk` is the model's own `trunk`, compiled or not. Logits are computed only for tokens with a nonzero weight.
    """
    mask = causal_mask(batch.documents, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        weights, targets = batch.weights.flatten(), batch.targets.flatten()
        chosen = weights.nonzero().squeeze(1)
        weights, targets = weights[chosen], targets[chosen]
        logits = model.logits(trunk(batch.ids, batch.positions, mask).flatten(0, 1)[chosen]).float()
        each = functional.cross_entropy(logits, targets, reduction="none")
        if teacher is not None:
            with torch.no_grad():
                seen = teacher.trunk(batch.ids, batch.positions, mask).flatten(0, 1)[chosen]
                wanted = teacher.logits(seen).float().softmax(-1)
            each = 0.3 * each + 0.7 * functional.cross_entropy(logits, wanted, reduction="none")
    return (each * weights).sum() / weights.sum()


class Run:
    """One training run: the model, its average, the optimisers, and the checkpoint file that stores them."""

    def __init__(self, name: str, work: Path, rate: float) -> None:
        torch.manual_seed(20)
        self.path = work / f"{name}.pt"
        self.model = Llama(SHAPES[name])
        matrices = [p for p in self.model.blk.parameters() if p.ndim == 2]
        rest = [p for p in self.model.parameters() if p.ndim < 2] + [self.model.token_embd.weight]
        self.optimisers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=0.02 * rate),
            torch.optim.AdamW(rest, lr=2e-3 * rate, betas=(0.9, 0.97), weight_decay=0.0),
        ]
        self.full = [group["lr"] for o in self.optimisers for group in o.param_groups]
        self.average = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.step = 0
        if self.path.exists():
            self._load()

    def _load(self) -> None:
        saved = torch.load(self.path, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.average, self.step = saved["average"], saved["step"]
        for optimiser, state in zip(self.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)

    def save(self) -> None:
        """Write the checkpoint atomically."""
        states = [o.state_dict() for o in self.optimisers]
        torch.save(
            {"model": self.model.state_dict(), "average": self.average, "step": self.step, "optimisers": states},
            self.path.with_suffix(".tmp"),
        )
        self.path.with_suffix(".tmp").replace(self.path)

    def update(self, loss: Tensor, steps: int) -> None:
        """Take one optimizer step with this loss. `steps` is the planned number of steps of the run."""
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        share = learning_rate(self.step, steps)
        groups = [group for o in self.optimisers for group in o.param_groups]
        for group, full in zip(groups, self.full, strict=True):
            group["lr"] = full * share
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        keep = min(EMA, self.step / (self.step + 20))
        with torch.no_grad():
            for key, value in self.model.state_dict().items():
                self.average[key].lerp_(value, 1 - keep)


def load_average(name: str, work: Path) -> Llama:
    """Load the averaged weights of a run's last checkpoint."""
    model = Llama(SHAPES[name])
    model.load_state_dict(torch.load(work / f"{name}.pt", weights_only=True)["average"])
    model.eval()
    return model


def train(name: str, work: Path, plan: Plan) -> None:
    """Train until `steps` or a SIGTERM. Save a checkpoint every few minutes and at the end."""
    run = Run(name, work, plan.rate)
    teacher = load_average("target", work) if plan.is_taught else None
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    trunk: Trunk = torch.compile(run.model.trunk, dynamic=False) if plan.is_compiled else run.model.trunk
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    started = saved = time.monotonic()
    tokens, losses = 0, dict[str, list[float]]()
    for batch in batches(tokenizer, f"{SEED}:{name}", run.step, plan.batches):
        if run.step >= plan.steps or stopping:
            break
        loss = loss_of(run.model, trunk, batch, teacher)
        run.update(loss, plan.steps)
        tokens += batch.ids.numel()
        losses.setdefault(batch.kind, []).append(loss.item())
        if run.step % 20 == 0:
            now = time.monotonic()
            means = {kind: round(sum(each) / len(each), 4) for kind, each in losses.items()}
            print(
                json.dumps(
                    {
                        "step": run.step,
                        "loss": means,
                        "tokens_per_s": round(tokens / (now - started)),
                        "minutes": round((now - started) / 60, 1),
                    }
                ),
                flush=True,
            )
            losses.clear()
            if now - saved > 120:
                run.save()
                saved = now
    run.save()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(SHAPES))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--copying-steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=1.0, help="share of the usual learning rate")
    parser.add_argument("--prompt-weight", type=float, default=0.0, help="what a token of a prompt counts")
    parser.add_argument(
        "--focus",
        nargs="*",
        default=(),
        choices=[*sorted(FOCUS), "drill", "spelling", "mixture"],
        help="make nine of ten batches of these",
    )
    parser.add_argument("--rows", type=int, default=8, help="rows of 512 tokens in a batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--teacher", action="store_true", help="learn from the target's distribution (the draft)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    mixed = BatchPlan(arguments.copying_steps, arguments.prompt_weight, tuple(arguments.focus), arguments.rows)
    plan = Plan(arguments.steps, mixed, arguments.rate, arguments.compile, arguments.teacher)
    train(arguments.model, arguments.work, plan)


if __name__ == "__main__":
    main()
