"""A live run directory of many nodes, written second by second, which operator and launcher follow in `scale.py`."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from status import JOB, make

from transom_cli.heartbeat import step_breakdown
from transom_cli.heartbeat.step_breakdown import NodeSteps, RankSteps
from transom_cli.heartbeat.table import NodeTable, RankBeat, encode

STEP = 26 * 360  # the first one: `make` has reported those before
SPENT_EVERY = 5  # seconds between two accounts of a node, as its agent writes them


class Cluster:
    """Beat tables by rename, each once a second, a step a second; accounts; findings of a node now and then; the log.

    again: of a run that has no attempt yet (a launcher makes its own); else the operator finds one that trains.
    """

    def __init__(self, folder: Path, nodes: int, ranks: int, *, again: bool = False) -> None:
        self.run = make(folder, nodes, ranks)
        self.run.lease.unlink()
        shutil.rmtree(self.run.epochs)  # the one that made it operates nothing
        self.attempt = self.run.attempt(JOB, 0)
        if again:
            shutil.rmtree(self.attempt.path)
            self.attempt.nodes.mkdir(parents=True)
        self.names = [f"gpu{i:04d}" for i in range(nodes)]
        self._ranks, self._step, self._waits = ranks, STEP, False
        self.silent: set[str] = set()
        self.last: dict[str, float] = {}
        self.second()

    def go_on(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.second()

    def fall_silent(self, *, all_wait: bool) -> str:
        """The node in the middle reports nothing from now on. all_wait: the other ranks make no step either."""
        self._waits = all_wait
        victim = self.names[len(self.names) // 2]
        self.silent.add(victim)
        return victim

    def second(self) -> None:
        """All tables once, spread over most of the second as agents that started at different times do."""
        began = time.monotonic()
        self._step += not self._waits
        for n, node in enumerate(self.names):
            if node in self.silent:
                continue
            self._table(n, node)
            if (n + int(began)) % SPENT_EVERY == 0:
                self._account(n, node, began)
            behind = began + 0.9 * n / len(self.names) - time.monotonic()
            if behind > 0.005:
                time.sleep(behind)
        finding = {"schema": 1, "wall": time.time(), "kind": "host:clock", "verdict": "monitor", "words": "no NTP runs"}
        with self.attempt.findings(self.names[self._step % len(self.names)]).open("a") as file:
            file.write(json.dumps(finding) + "\n")
        with self.run.job_log(JOB).open("a") as file:
            file.write(f"step {self._step} loss 1.83\n")
        time.sleep(max(0.0, began + 1.0 - time.monotonic()))

    def _table(self, n: int, node: str) -> None:
        beats = tuple(
            RankBeat(n * self._ranks + r, 0, self._step, self._step, 0.3, 1.83, "step", 4000 + r, "R")
            for r in range(self._ranks)
        )
        seq = 99 + int(time.monotonic() * 10)
        _replace(self.attempt.nodes / f"{node}.beats", encode(NodeTable(node, self.attempt.name, seq, beats)))
        self.last[node] = time.time()

    def _account(self, n: int, node: str, now: float) -> None:
        done = self._step - STEP
        seconds = {"data": 0.02 * done, "forward": 0.3 * done, "backward": 0.6 * done, "optimizer": 0.05 * done}
        ranks = tuple(
            RankSteps(n * self._ranks + r, 0, self._step, now, 1.0, seconds, self._step, 1.83, 0.7)
            for r in range(self._ranks)
        )
        _replace(self.attempt.spent(node), step_breakdown.encode(NodeSteps(node, self.attempt.name, ranks)).encode())


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    fresh.replace(path)
