"""A small GPT: causal attention over characters, pre-norm blocks, dropout, no biases."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from exact import Embedding, Linear, RMSNorm
from torch import Tensor, nn


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a model.

    vocabulary: number of different tokens. context: the longest sequence. width: features per
    token, a multiple of `heads`.
    """

    vocabulary: int
    context: int = 64
    width: int = 256
    heads: int = 4
    layers: int = 3
    dropout: float = 0.05


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to the residual stream."""

    def __init__(self, config: GPTConfig) -> None:
        """Make one layer of a GPT."""
        super().__init__()
        self.heads = config.heads
        self.attention_norm = RMSNorm(config.width)
        self.qkv = Linear(config.width, 3 * config.width)
        self.out = Linear(config.width, config.width)
        self.feed_norm = RMSNorm(config.width)
        self.up = Linear(config.width, 4 * config.width)
        self.down = Linear(4 * config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        batch, time, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, time, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, time, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.feed_norm(x)))))


class GPT(nn.Module):
    """Predicts the next token at every place of a sequence."""

    def __init__(self, config: GPTConfig) -> None:
        """Make a model with random weights, drawn from torch's default generator."""
        super().__init__()
        self.tokens = Embedding(config.vocabulary, config.width)
        self.places = Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        self.head = Linear(config.width, config.vocabulary)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * config.layers) ** (0.5 if residual else 0))

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of `targets`; both are int64 of shape (batch, time)."""
        places = torch.arange(inputs.shape[1])
        x = self.tokens(inputs) + self.places(places)
        for block in self.blocks:
            x = block(x)
        loss: Tensor = F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())
        return loss
