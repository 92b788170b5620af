"""Gradient sums that do not depend on the order of the terms, hence not on the world size.

Floating-point addition rounds, so a sum depends on its order, and in sharded training the order
follows from the number of ranks: the same job on 2 and on 4 ranks drifts apart in the last bits,
which soon are not the last. A demo that resumes on other world sizes and wants to show that the
*checkpoint* changed nothing has to take that drift away first. Here is how, in two steps:

1. Each micro-batch's gradient is rounded to a grid, multiples of 2**-40 (`on_grid`). This happens
   before anything is summed over micro-batches, and is the same wherever the micro-batch runs.
2. FSDP2 sums in float64 (`MixedPrecisionPolicy(reduce_dtype=torch.float64)`), the micro-batches of
   a rank as well as the ranks. A float64 has 53 bits, so sums of multiples of 2**-40 are exact
   while they stay below 2**13. FSDP2 also divides by the world size, a power of two: exact too.

Exact sums have one value in any order. It is rounded to float32 once, at the end, and the optimiser
sees the same gradient on 1, 2 or 4 ranks. AdamW itself works element by element, so it does not
mind how a tensor is sharded. (Clipping by the norm of all gradients would need the same care.)

The price is bandwidth: float64 gradients are twice as long. Real jobs would rather accept the
drift, which is small here: with ordinary float32 sums the final weights on 1 and on 4 ranks were
up to 5e-7 apart, all 22 tensors touched.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GRID = 2.0**-40
"""Far below Adam's epsilon of 1e-8, so that the rounding does not hurt training."""

LARGEST = 2.0**9
"""With the grid above, up to 16 terms of this size have an exact sum in float64."""


class _OnGrid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if not gradient.abs().amax() < LARGEST:
            raise OverflowError(f"a gradient of {LARGEST} or more: its sums would not be exact")
        # Scaling by a power of two is exact, and so is the product: only round() rounds.
        return torch.round(gradient / GRID) * GRID


def on_grid(weight: Tensor) -> Tensor:
    """Return `weight` unchanged; the gradient that comes back through it is rounded to `GRID`."""
    return _OnGrid.apply(weight)


class Linear(nn.Linear):
    """`nn.Linear` without bias, its gradient on the grid."""

    def __init__(self, in_features: int, out_features: int) -> None:
        """Make a map from `in_features` to `out_features`."""
        super().__init__(in_features, out_features, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """Apply the map to the last dimension of `input`."""
        return F.linear(input, on_grid(self.weight))


class Embedding(nn.Embedding):
    """`nn.Embedding`, its gradient on the grid."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the row of each index in `input`."""
        return F.embedding(input, on_grid(self.weight))


class RMSNorm(nn.RMSNorm):
    """`nn.RMSNorm`, its gradient on the grid."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of `x`."""
        return F.rms_norm(x, self.normalized_shape, on_grid(self.weight), self.eps)
