"""A corpus that every machine has (the source code of the Python standard library), and a sampler that can resume."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from pathlib import Path

import torch
from torch import Tensor


def read_corpus(limit: int = 4_000_000, root: Path | None = None) -> Tensor:
    """Return the first `limit` bytes of the standard library's `.py` files in sorted order: uint8 (at most limit,)."""
    top = root or Path(sysconfig.get_path("stdlib"))
    text = bytearray()
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(set(folders) - {"__pycache__", "site-packages", "dist-packages"})
        for name in sorted(files):
            if name.endswith(".py"):
                text += (Path(folder) / name).read_bytes()
                if len(text) >= limit:
                    return torch.frombuffer(text, dtype=torch.uint8)[:limit]
    return torch.frombuffer(text, dtype=torch.uint8)


class Sampler:
    """Windows of the corpus in an order given by the seed, each used once per epoch.

    The position is one number for the whole run: the windows that all ranks have taken
    since the start. Each rank derives its share of the next step from it.
    """

    def __init__(self, corpus: Tensor, *, context: int, batch: int, seed: int, rank: int = 0, world: int = 1) -> None:
        self.windows = (len(corpus) - 1) // context
        if self.windows < batch * world:
            raise ValueError(f"{len(corpus)} bytes of text hold {self.windows} windows; a step needs {batch * world}")
        self.corpus = corpus
        self.context = context
        self.batch = batch
        self.seed = seed
        self.rank = rank
        self.world = world
        self.position = 0
        self._digest = hashlib.sha256(corpus.numpy().data).hexdigest()[:16]
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return this rank's tokens and targets for the next step, int64 (batch, context)."""
        first = self.position + self.rank * self.batch
        rows = [self._window(first + row) for row in range(self.batch)]
        self.position += self.batch * self.world
        windows = torch.stack(rows).long()
        return windows[:, :-1], windows[:, 1:]

    def _window(self, number: int) -> Tensor:
        epoch, place = divmod(number, self.windows)
        if epoch != self._epoch:
            order = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._order, self._epoch = torch.randperm(self.windows, generator=order), epoch
        start = int(self._order[place]) * self.context
        return self.corpus[start : start + self.context + 1]

    def state_dict(self) -> dict[str, int | str]:
        return {"position": self.position, "seed": self.seed, "corpus": self._digest}

    def load_state_dict(self, state: dict[str, int | str]) -> None:
        """Raise ValueError if the state is of another corpus (another Python version) or seed."""
        for key, mine in (("corpus", self._digest), ("seed", self.seed)):
            if state[key] != mine:
                raise ValueError(f"the saved data position is of {key} {state[key]}, this run has {mine}")
        self.position = int(state["position"])
