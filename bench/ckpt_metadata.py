"""Measure what rank 0 computes in a save for the metadata of a large training, with the other ranks simulated.

    python bench/ckpt_metadata.py [--ranks 4096] [--tensors 3000] [--planned 64] [--rounds 8]

The real code of rank 0 (`save.commit`) runs with a group whose other members answer at once. Its own share is small, so
the time is that of the exchange, the manifest and the record. Not included: the network, and the node's daemon.

    plan       the first save, for --planned ranks: DCP's plan and metadata of all shares
    steady     a save in which no shape has changed, for --ranks ranks: median and maximum

The steady save of thousands of ranks needs torch's metadata only as bytes that stay as they are, so these are made up.
"""

from __future__ import annotations

import argparse
import os
import pickle
import statistics
import time
from types import SimpleNamespace
from typing import Any

import torch

from transom_cli.ckpt.options import parse_options
from transom_cli.ckpt.proof_save import _COUNT as COUNT
from transom_cli.ckpt.proof_save import Ledger, Totals
from transom_cli.ckpt.publish import check_keep
from transom_cli.ckpt.save.buffer import Buffer
from transom_cli.ckpt.save.commit import Committer
from transom_cli.ckpt.save.staging import Snapshot, Stager

METADATA = 64 << 20  # bytes
ELEMENTS = 4  # of each tensor


class Crowd:
    """Rank 0 of a group in which every other rank says what rank 0 says, and holds as many tensors."""

    rank, first, group = 0, True, None

    def __init__(self, size: int) -> None:
        self.size, self.sent, self.received = size, 0, 0

    def gather_bytes(self, data: bytes, what: str = "", patience: float | None = None) -> list[bytes]:
        joined = data * self.size
        self.received += len(joined)
        return [joined[at : at + len(data)] for at in range(0, len(joined), len(data))]

    def to_first(self, value: Any) -> list[Any]:
        data = pickle.dumps(value)
        self.received += len(data) * self.size
        return [pickle.loads(data) for _ in range(self.size)]

    def gather(self, value: Any) -> list[Any]:
        return self.to_first(value)

    def from_first(self, value: Any) -> Any:
        self.sent += len(pickle.dumps(value))
        return value

    def each_from_first(self, values: list[Any]) -> Any:
        return values[0]


class Together(Ledger):
    """Rank 0's part of the proof, and for the tensors that other ranks store their number of elements."""

    def total(self) -> tuple[str, Totals]:
        trouble, (table, roots) = super().total()
        table[COUNT, table[COUNT] == 0] = ELEMENTS
        return trouble, (table, roots)


def one_save(committer: Committer, stager: Stager, flat: dict[str, Any], step: int) -> tuple[Snapshot, float, float]:
    """Returns the snapshot, and the seconds and CPU seconds of the commit."""
    snapshot = stager.take(flat, {key: ("state", key) for key in flat})
    committer.ledger.sample(step, flat, snapshot, {})
    began, cpu = time.perf_counter(), time.thread_time()
    roll = committer.call_roll(step, snapshot, "", None)
    done = committer.commit(step, snapshot, agreed=roll.agreed, requested=False)
    if done.trouble:
        raise SystemExit(f"the save failed: {done.trouble}")
    took, used = time.perf_counter() - began, time.thread_time() - cpu
    committer.prepare_next(snapshot, done.share)
    return snapshot, took, used


def made(crowd: Crowd) -> tuple[Committer, Stager]:
    never = 1 << 40  # no save is made durable
    options = parse_options("unused", 1, check_keep(2, None), persist=never)
    ignore: Any = lambda *_, **__: None  # noqa: E731
    snapshots: Any = SimpleNamespace(hold=ignore, commit=ignore, ready=ignore, superseding=False)
    stager = Stager(lambda need, size: Buffer(size, hurry=True), first=True)
    ranks: Any = crowd
    committer = Committer(options, ranks, stager, snapshots)
    committer.ledger = Together(ranks)
    return committer, stager


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4096, help="[4096]")
    parser.add_argument("--tensors", type=int, default=3000, help="of each rank [3000]")
    parser.add_argument("--planned", type=int, default=64, help="ranks of the save that plans [64]")
    parser.add_argument("--rounds", type=int, default=8, help="[8]")
    args = parser.parse_args()
    flat: dict[str, Any] = {f"state.layer.{n}": torch.zeros(ELEMENTS) for n in range(args.tensors)}
    flat["state.random"] = list(range(600))
    crowd = Crowd(args.planned)
    committer, stager = made(crowd)
    _, took, used = one_save(committer, stager, flat, 1)
    print(f"plan    {args.planned} ranks x {args.tensors} tensors: {took:.2f} s, {used:.2f} s of CPU, "
          f"received {crowd.received / 1e6:.1f} MB, sent {crowd.sent / 1e6:.1f} MB")  # fmt: skip
    one_save(committer, stager, flat, 2)
    steady(committer, stager, flat, crowd, args.rounds, args.tensors)
    crowd.size = args.ranks
    shares: Any = getattr(committer, "_shares", None)
    if shares is None:
        return
    shares._places = [shares._last[0]] * args.ranks
    shares._sums = [shares._last[1]] * args.ranks
    shares._metadata = bytes(METADATA)
    one_save(committer, stager, flat, 2)  # the checksum of these bytes
    steady(committer, stager, flat, crowd, args.rounds, args.tensors)


def steady(
    committer: Committer, stager: Stager, flat: dict[str, Any], crowd: Crowd, rounds: int, tensors: int
) -> None:  # fmt: skip
    crowd.sent = crowd.received = 0
    times = []
    for step in range(3, 3 + rounds):
        flat["state.random"] = [value * 2654435761 % (1 << 32) for value in flat["state.random"]]
        times.append(one_save(committer, stager, flat, step)[1:])
    walls, cpus = zip(*times, strict=True)
    print(f"steady  {crowd.size} ranks x {tensors} tensors: {1e3 * statistics.median(walls):.1f} ms, "
          f"most {1e3 * max(walls):.1f}; CPU {1e3 * statistics.median(cpus):.1f} ms, most {1e3 * max(cpus):.1f}; "
          f"received {crowd.received / rounds / 1e6:.2f} MB, sent {crowd.sent / rounds / 1e6:.2f} MB; "
          f"n={rounds}, load {os.getloadavg()[0]:.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
