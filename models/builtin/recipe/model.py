"""The Llama architecture in PyTorch: RMS norms, rotary positions, SwiGLU, tied embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model. Every row width is a multiple of 32, as Q8_0 requires."""

    width: int
    layers: int
    heads: int
    hidden: int
    vocab: int = 2048
    context: int = 2048
    rope_base: float = 10_000.0
    epsilon: float = 1e-5

    @property
    def head_width(self) -> int:
        """Return the width of one attention head."""
        return self.width // self.heads


SHAPES = {
    "target": Shape(width=256, layers=6, heads=4, hidden=704),
    "draft": Shape(width=128, layers=4, heads=2, hidden=352),
}


def rotation(shape: Shape) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of every position, for rotary embeddings that pair the two halves of a head."""
    half = shape.head_width // 2
    rates = shape.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float64), rates)
    angles = torch.cat((angles, angles), dim=1)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embeddings to `x`.

    Each value of the first half of a head forms a pair with one of the second half. Each pair is rotated by the angle
    of its position.
    """
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Norm(nn.Module):
    """Scales a row to unit mean square."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with the last dimension normalised."""
        scaled = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.epsilon)
        return scaled.to(x.dtype) * self.weight.to(x.dtype)


class Block(nn.Module):
    """One layer: attention, then the gated feed-forward network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.attn_norm = Norm(shape.width, shape.epsilon)
        self.attn_q = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_k = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_v = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_output = nn.Linear(shape.width, shape.width, bias=False)
        self.ffn_norm = Norm(shape.width, shape.epsilon)
        self.ffn_gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.ffn_down = nn.Linear(shape.hidden, shape.width, bias=False)

    def _heads(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        return x.view(rows, length, self.shape.heads, self.shape.head_width).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Map (rows, length, width) to the same shape; `mask` is added to the attention scores."""
        normed = self.attn_norm(x)
        q = rotate(self._heads(self.attn_q(normed)), cos, sin)
        k = rotate(self._heads(self.attn_k(normed)), cos, sin)
        seen = functional.scaled_dot_product_attention(q, k, self._heads(self.attn_v(normed)), attn_mask=mask)
        x = x + self.attn_output(seen.transpose(1, 2).flatten(2))
        normed = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(normed)) * self.ffn_up(normed))


class Llama(nn.Module):
    """The whole model. The output matrix is the embedding matrix."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocab, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = Norm(shape.width, shape.epsilon)
        self.cos: Tensor
        self.sin: Tensor
        cos, sin = rotation(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        nn.init.normal_(self.token_embd.weight, std=0.05)
        for name, parameter in self.blk.named_parameters():
            if parameter.ndim == 2:
                depth = (
                    (2 * self.shape.layers) ** -0.5 if name.endswith(("attn_output.weight", "ffn_down.weight")) else 1.0
                )
                nn.init.normal_(parameter, std=depth * parameter.shape[1] ** -0.5)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Map token ids (rows, length) to logits."""
        return self.logits(self.trunk(ids, positions, mask))

    def trunk(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Map token ids to the output of the last layer. Positions restart at 0 in each packed conversation."""
        x = self.token_embd(ids)
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        x = x.to(mask.dtype)
        cos, sin = cos.to(mask.dtype), sin.to(mask.dtype)
        for block in self.blk:
            x = block(x, cos, sin, mask)
        return self.output_norm(x)

    def logits(self, x: Tensor) -> Tensor:
        """Map outputs of the last layer to logits."""
        return functional.linear(x, self.token_embd.weight.to(x.dtype))


def causal_mask(documents: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the additive mask (rows, 1, length, length).

    With it, a token attends to itself and to earlier tokens of its own conversation.
    """
    length = documents.shape[1]
    same = documents.unsqueeze(2) == documents.unsqueeze(1)
    seen = same & torch.ones(length, length, dtype=torch.bool).tril()
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf")).unsqueeze(1)


def causal_logits(model: Llama, ids: Tensor) -> Tensor:
    """Return the logits of one sequence, computed in full precision."""
    rows = ids.unsqueeze(0)
    mask = causal_mask(torch.zeros_like(rows), torch.float32)
    return model(rows, torch.arange(len(ids)).unsqueeze(0), mask)[0]
