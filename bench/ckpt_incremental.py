"""Measure incremental checkpoints (`full_every`): bytes written and seconds until durable, against full checkpoints.

    python bench/ckpt_incremental.py [--saves 5] [--directory DIR] [--json]

Three trainings of about 100 MiB, in one process:

- `moe`: 32 experts under Adam, of which 2 to 4 get tokens between two checkpoints.
- `ranked`: an embedding table under SparseAdam. Ids follow Zipf's law, and the frequent ones come first.
- `shuffled`: the same with ids in random order, as a hash gives them: the worst case.

Each is trained twice from the same seed: with full checkpoints, and with `full_every=10`. The bench prints medians over
the checkpoints after the first, and restores the last one into a fresh training: every bit must be equal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from transom_cli.ckpt.checkpointer import Checkpointer

MIB = 1 << 20
EXPERTS, WIDTH, HIDDEN = 32, 256, 512
ROWS, COLUMNS, BATCH, STEPS = 150_000, 64, 1024, 10  # STEPS: between two checkpoints


class Moe:
    def __init__(self) -> None:
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)) for _ in range(EXPERTS)
        )
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.optimizer = torch.optim.Adam([*self.experts.parameters(), *self.router.parameters()], lr=1e-3)
        self.state: dict[str, Any] = {"experts": self.experts, "router": self.router, "optim": self.optimizer}
        self._train(list(range(EXPERTS)))  # so that each parameter has its moments

    def train(self, number: int) -> None:
        count = 2 + number % 3
        self._train([(7 * number + k) % EXPERTS for k in range(count)])

    def _train(self, active: list[int]) -> None:
        self.optimizer.zero_grad(set_to_none=True)  # Adam leaves a parameter without a gradient alone
        x = torch.randn(16, WIDTH)
        weights = self.router(x).softmax(-1)
        sum((weights[:, k : k + 1] * self.experts[k](x)).pow(2).mean() for k in active).backward()  # type: ignore[union-attr]
        self.optimizer.step()


class Embedding:
    def __init__(self, *, shuffled: bool) -> None:
        self.table = nn.Embedding(ROWS, COLUMNS, sparse=True)
        self.optimizer = torch.optim.SparseAdam(self.table.parameters(), lr=1e-3)
        self.state: dict[str, Any] = {"table": self.table, "optim": self.optimizer}
        self._order = torch.randperm(ROWS) if shuffled else torch.arange(ROWS)
        self._odds = 1.0 / torch.arange(1, ROWS + 1, dtype=torch.float64) ** 1.2
        self._step()

    def train(self, number: int) -> None:
        for _ in range(STEPS):
            self._step()

    def _step(self) -> None:
        ids = self._order[torch.multinomial(self._odds, BATCH, replacement=True)]
        self.optimizer.zero_grad()
        self.table(ids).pow(2).mean().backward()
        self.optimizer.step()


TRAININGS: dict[str, Callable[[], Moe | Embedding]] = {
    "moe": Moe,
    "ranked": lambda: Embedding(shuffled=False),
    "shuffled": lambda: Embedding(shuffled=True),
}


@dataclass(frozen=True)
class Row:
    """written: MiB of a checkpoint. stall, durable, restore: seconds. exact: the restore gave every bit back."""

    training: str
    state: float
    full: bool
    written: float
    stall: float
    durable: float
    restore: float
    exact: bool


def measure(name: str, saves: int, full_every: int | None, directory: Path) -> Row:
    torch.manual_seed(0)
    training = TRAININGS[name]()
    checkpointer = Checkpointer(training.state, directory, every=1, keep=2, full_every=full_every)
    checkpointer.restore()
    written, stalls, durable = [], [], []
    for number in range(1, saves + 2):
        training.train(number)
        began = time.perf_counter()
        checkpointer.save(number)
        stalls.append(time.perf_counter() - began)
        checkpointer.wait(strict=True)
        durable.append(time.perf_counter() - began)
        files = (directory / f"step-{number}").iterdir()
        written.append(sum(path.stat().st_size for path in files if ".step-" not in path.name))
    checkpointer.close(strict=True)
    other = TRAININGS[name]()
    checkpointer = Checkpointer(other.state, directory, every=1)
    began = time.perf_counter()
    assert checkpointer.restore() == saves + 1
    restore = time.perf_counter() - began
    checkpointer.close()
    one, two = tensors(training), tensors(other)
    exact = one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)
    size = sum(tensor.nbytes for tensor in one.values())
    middle = [statistics.median(found[1:]) for found in (written, stalls, durable)]
    return Row(name, size / MIB, full_every is None, middle[0] / MIB, middle[1], middle[2], restore, exact)


def tensors(training: Moe | Embedding) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, part in training.state.items():
        values = part.state_dict()
        if name == "optim":
            values = {f"{n}.{key}": value for n, one in values["state"].items() for key, value in one.items()}
        found |= {f"{name}.{key}": torch.as_tensor(value) for key, value in values.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saves", type=int, default=5, help="checkpoints after the first")
    parser.add_argument("--directory", type=Path, help="where to write (default: a temporary directory)")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    if not asked.json:
        print("training     state  checkpoints     written  stall  durable  restore  exact")
    for name in TRAININGS:
        for full_every in (None, 10):
            with tempfile.TemporaryDirectory(dir=asked.directory) as folder:
                row = measure(name, asked.saves, full_every, Path(folder))
            rows.append(row)
            if not asked.json:
                kind = "full" if row.full else "incremental"
                print(
                    f"{row.training:9}{row.state:5.0f} MiB  {kind:11}{row.written:9.1f} MiB{row.stall:6.3f}s"
                    f"{row.durable:8.2f}s{row.restore:8.2f}s  {'yes' if row.exact else 'NO'}",
                    flush=True,
                )
        if not asked.json:
            print(f"{'':9}written: {rows[-1].written / rows[-2].written:.1%} of a full one", flush=True)
    if asked.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    if not all(row.exact for row in rows):
        raise SystemExit("a restore was not exact")


if __name__ == "__main__":
    main()
