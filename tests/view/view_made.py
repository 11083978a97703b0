"""Run directories as they lie on disk at a moment of a run's life, read as `transom status` reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from unittest import mock

from transom_cli.ckpt.progress import Part
from transom_cli.ckpt.schedule import NextSaves
from transom_cli.ckpt.snapshot.account import Account, Held, Step
from transom_cli.core import events as ev
from transom_cli.core.codec import plain
from transom_cli.core.operator.state import Policy
from transom_cli.health.check import About, Tier
from transom_cli.health.gpu.monitor import GpuMonitor, summarize
from transom_cli.health.gpu.reading import Ecc, Gpu, GpuLimits, Heat, NvmlReading, Power, Rows
from transom_cli.health.gpu.status import encode as encode_gpus
from transom_cli.health.gpu.xid import EventHistory, GpuEvent, judge_event
from transom_cli.heartbeat.table import NodeTable, RankBeat, encode
from transom_cli.layout import RunDir
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.journal import Journal, write_header
from transom_cli.supervise.lease import Lease
from transom_cli.view.model import RunView
from transom_cli.view.read import read_view

NOW = 1_795_331_400.0  # Sunday, 22 November 2026, 07:10 UTC
JOB = 48213


def names(count: int) -> tuple[str, ...]:
    return tuple(f"gpu{i:03d}" for i in range(count))


class Made:
    """A run that was submitted an hour or more ago, by the clock whose NOW it is. Times are seconds before NOW."""

    def __init__(
        self, folder: Path, *, nodes: int = 4, spares: int = 0, fewest: int = 0, settings: str = "steps = 120000\n",
        **policy: object,
    ) -> None:  # fmt: skip
        self.run = RunDir(folder / "llama-70b-20261122-065825-c382")
        self.run.attempts.mkdir(parents=True)
        self.run.settings.write_text(settings)
        self.run.script.write_text("#!/bin/sh\ntransom attempt-launcher\n")
        SubmissionRecord().save(self.run)
        write_header(self.run.journal, Policy(**policy), nodes, spares, fewest)  # type: ignore[arg-type]
        self.nodes = names(nodes)
        self.lease: Lease | None = None

    def seen(self, *events: tuple[float, ev.Event]) -> Made:
        """Each event with how many seconds before NOW it was."""
        journal = Journal(self.run.journal, 1)
        for before, event in events:
            journal.append(type(event)(**{**vars(event), "at": NOW - before}))
        journal.close()
        return self

    def began(self, hours: float = 6.2, *, idle: Iterable[str] = ()) -> Made:
        start, idle = hours * 3600, tuple(idle)
        working = tuple(node for node in self.nodes if node not in idle)
        return self.seen(
            (start + 60, ev.Started(0, 1)),
            (start + 59, ev.Submitted(0, "submit", JOB, True)),
            (start + 30, ev.JobSeen(0, JOB, 0, "RUNNING", nodes=self.nodes, batch_host=self.nodes[0])),
            (start + 20, ev.LaunchSeen(0, f"{JOB}.0", 0, working, 8 * len(working), idle)),
            (start, ev.StepSeen(0, f"{JOB}.0", 1)),
        )

    def stepped(self, step: int = 18400, *, a_step: float = 2.31, before: float = 60.0) -> Made:
        """Its last half hour, a line a minute."""
        lines = [(before + 60.0 * i, step - round(60 * i / a_step)) for i in range(30)]
        return self.seen(*((at, ev.StepSeen(0, f"{JOB}.0", n)) for at, n in reversed(lines)))

    def saved(self, step: int = 18000, before: float = 1022.0) -> Made:
        return self.seen((before, ev.CheckpointSeen(0, step)))

    def operator(self, ago: float | None = 0.9, host: str = "login1") -> Made:
        """One that lives, or with `ago` None one that was killed nine minutes ago."""
        self.lease = self.lease or Lease.take(self.run)
        told = json.loads(self.run.lease.read_text())
        told |= {"host": host} | ({"pid": 2**22 + 7} if ago is None else {})
        self.run.lease.write_text(json.dumps(told))
        at = NOW - (548.0 if ago is None else ago)
        os.utime(self.run.lease, (at, at))
        os.utime(self.run.journal, (at, at))
        return self

    def beats(
        self,
        step: int = 18430,
        *,
        attempt: str = f"{JOB}.0",
        ago: float = 0.6,
        age: float = 1.1,
        late: Mapping[str, float] | None = None,
        loss: float | None = None,
        dead: Mapping[str, str] | None = None,
        only: Iterable[str] | None = None,
        ranks: int = 8,
        phase: str = "step",
    ) -> Made:
        """A table for each node. late: nodes whose table is so many seconds older. dead: /proc letters of a rank."""
        folder = self.run.attempts / attempt / "nodes"
        folder.mkdir(parents=True, exist_ok=True)
        for i, node in enumerate(self.nodes):
            if only is not None and node not in only:
                continue
            behind, letter = (late or {}).get(node, 0.0), (dead or {}).get(node, "R")
            beats = tuple(
                RankBeat(i * ranks + r, 0, step - (9 if behind else 0), max(0, step), age, loss, phase, 4000 + r, state)
                for r, state in enumerate(("R",) * (ranks - 1) + (letter,))
            )
            path = folder / f"{node}.beats"
            path.write_bytes(encode(NodeTable(node, attempt, 9, beats)))
            os.utime(path, (NOW - ago - behind, NOW - ago - behind))
        return self

    def gpus(
        self,
        odd: Mapping[str, Mapping[int, Mapping[str, object]]] | None = None,
        *,
        ago: Mapping[str, float] | None = None,
        events: Mapping[str, GpuEvent] | None = None,
        missing: Mapping[str, int] | None = None,
    ) -> Made:
        """Eight GPUs a node, as its agent leaves them. odd: of some nodes, what is other about some of their GPUs."""
        attempt, about, limits = self.run.attempt(JOB, 0), About(tier=Tier.WATCH, gpus=8), GpuLimits()
        attempt.nodes.mkdir(parents=True, exist_ok=True)
        for node in self.nodes:
            told = (odd or {}).get(node, {})
            count = 8 - (missing or {}).get(node, 0)
            reading = NvmlReading(NOW, 9.0, gpus=tuple(replace(_gpu(node, i), **told.get(i, {})) for i in range(count)))  # type: ignore[arg-type]
            heard = EventHistory()
            heard.set_listening(True, NOW - 6.2 * 3600)
            if node in (events or {}):
                heard.add(events[node], judge_event(node, events[node]))  # type: ignore[index]
            found = GpuMonitor(node, about, limits).judge(reading)
            path = attempt.gpus(node)
            path.write_text(encode_gpus(summarize(node, attempt.name, 30.0, reading, found, heard, about, limits)))
            written = NOW - (ago or {}).get(node, 12.0)
            os.utime(path, (written, written))
        return self

    def memory(
        self,
        step: int = 18420,
        ago: float = 23.0,
        rhythm: str = "",
        coming: NextSaves | None = None,
        parts: tuple[Part, ...] = (),
        restarts: int = 0,
    ) -> Made:
        """step -1: nothing is in it. parts: what each node is at."""
        attempt = self.run.attempt(JOB, restarts)
        attempt.nodes.mkdir(parents=True, exist_ok=True)
        created = f"2026-11-22T{_clock(NOW - ago)}+00:00"
        for i, node in enumerate(self.nodes):
            held = Step(step, created, attempt.name, len(self.nodes), 9, len(self.nodes), (Held(i, f"r{i}", 9),), ())
            steps = (held,) if step >= 0 else ()
            account = Account("/ckpt", steps, "copies:2", step, (), 0, 9, len(self.nodes), rhythm, coming, parts)
            attempt.memory(node).write_text(json.dumps({"schema": 1, "trainings": [plain(account)]}))
            os.utime(attempt.memory(node), (NOW - 1, NOW - 1))
        return self

    def found(self, node: str, kind: str, verdict: str, words: str, launch: int = 0) -> Made:
        record = {"schema": 1, "wall": NOW, "kind": kind, "verdict": verdict, "words": words}
        attempt = self.run.attempt(JOB, 0)
        attempt.nodes.mkdir(parents=True, exist_ok=True)
        with attempt.findings(node).open("a") as file:
            file.write(json.dumps({**record, "rank": None, "launch": launch}) + "\n")
        return self

    def report(self, what: str, words: str, *nodes: str) -> Made:
        attempt = self.run.attempt(JOB, 0)
        attempt.path.mkdir(parents=True, exist_ok=True)
        clue = {"source": "beats", "culprits": [{"node": node} for node in nodes]}
        told = json.loads(attempt.reports.read_text()) if attempt.reports.exists() else {"schema": 1, "standing": []}
        told["standing"].append({"what": what, "step": 9, "words": words, "clue": clue})
        attempt.reports.write_text(json.dumps(told))
        return self

    def view(self) -> RunView:
        with mock.patch("time.time", lambda: NOW):
            view = read_view(self.run)
        return _elsewhere(view, self.run)


def _elsewhere(view: RunView, run: RunDir) -> RunView:
    """A path that is the same in every test."""
    path = f"/shared/runs/{run.run_id}"
    return replace(view, path=path, checkpoints=view.checkpoints.replace(str(run.path), path))


def _gpu(node: str, index: int) -> Gpu:
    return Gpu(
        index,
        uuid=f"GPU-{node}-{index}",
        name="NVIDIA H100 80GB HBM3",
        ecc=Ecc(0, 0, 0, 0),
        rows=Rows(0, 0, pending=False, failed=False),
        reasons=0,
        busy=99 - index % 3,
        heat=Heat(58 + index, 87, 92),
        power=Power(640.0 + 7 * index, 700.0, 700.0),
        memory_used=61 << 30,
        memory_total=80 << 30,
    )


def _clock(at: float) -> str:
    seconds = int(at) % 86400
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
