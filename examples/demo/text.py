"""The text the model learns, and the loader that deals it out.

The text is made here from a small grammar, so the demo downloads nothing. The loader is the part
worth copying: its position is state, and it deals the same global batch whatever the world size.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

_SEASONS = {
    "spring": ("pale", "silt", "the snow melted"),
    "summer": ("green", "diatoms", "the light was long"),
    "autumn": ("brown", "leaf mould", "the storms came"),
    "winter": ("dark", "clay", "the ice closed"),
}
_PLACES = ("lake", "fjord", "lagoon", "tarn")


def make_text(years: int = 90, seed: int = 7) -> str:
    """Write a diary of varves: a line for each season of each year, the same for the same seed."""
    rng = random.Random(seed)
    lines = []
    for year in range(1200, 1200 + years):
        place = rng.choice(_PLACES)
        for season, (colour, sediment, event) in _SEASONS.items():
            depth = rng.randint(2, 9)
            layer = f"{depth} mm of {colour} {sediment}"
            lines.append(f"{year} {season}: {event} and the {place} laid {layer}.\n")
    return "".join(lines)


class Corpus:
    """The text as integers, one per character.

    tokens: int64, shape (characters,). characters: the alphabet, sorted; tokens index it.
    """

    def __init__(self, text: str) -> None:
        """Number the characters of `text`."""
        self.characters = sorted(set(text))
        index = {character: token for token, character in enumerate(self.characters)}
        self.tokens = torch.tensor([index[character] for character in text])


class Loader:
    """Deals shuffled windows of a corpus, one global batch per step; it can be saved (`Stateful`).

    Every rank holds an equal loader and takes its share of each batch, so the state is the same on
    all ranks and does not depend on how many there are. It is small: which epoch, how far into it,
    and the generator as it was before this epoch's shuffle, from which the order follows.
    """

    def __init__(
        self, corpus: Corpus, micro_batches: int, rows: int, context: int, seed: int
    ) -> None:
        """Deal `micro_batches` micro-batches a step, each of `rows` windows of `context` tokens."""
        self._tokens = corpus.tokens
        self._shape = (micro_batches, rows)
        self._context = context
        self._generator = torch.Generator().manual_seed(seed)
        self._window_count = (len(corpus.tokens) - 1) // context
        self._start_epoch(0)

    def _start_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._position = 0
        self._before_shuffle = self._generator.get_state()
        self._order = torch.randperm(self._window_count, generator=self._generator)

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, each int64 of shape (micro_batches, rows, context)."""
        take = self._shape[0] * self._shape[1]
        if self._position + take > self._window_count:
            self._start_epoch(self._epoch + 1)
        windows = self._order[self._position : self._position + take]
        self._position += take
        at = windows[:, None] * self._context + torch.arange(self._context + 1)
        rows = self._tokens[at].view(*self._shape, self._context + 1)
        return rows[..., :-1].contiguous(), rows[..., 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "before_shuffle": self._before_shuffle,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another loader over the same corpus stood."""
        self._generator.set_state(state["before_shuffle"])
        self._start_epoch(state["epoch"])
        self._position = state["position"]
