"""Faults of a bench's run: which, where, when; and how the run recovered."""

from __future__ import annotations

import itertools
import json
import random
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import BenchError, LiveRun, Training

from transom_cli.core.incident import Incident
from transom_cli.core.operator.state import State
from transom_cli.layout import RunDir
from transom_cli.sandbox import faults

KINDS = ("node-kill", "rank-kill", "rank-stop")
_START_UP = re.compile(r"start-up: import ([\d.]+) s, join ([\d.]+) s, build ([\d.]+) s, restore ([\d.]+) s")


@dataclass(frozen=True)
class Fault:
    """`at`: Unix time just before the fault was made. `step`: the last one that every rank was seen to have done."""

    kind: str
    target: str
    batch_host: bool  # a node that the batch script ran on: the launcher died with it
    step: int
    at: float


@dataclass(frozen=True)
class Recovery:
    """Seconds. `total`: from the fault to the first step of the new launch, as the operator saw it; those up to
    `resume` add up to it. `start_up`: how long the ranks say they took from their first line to a restored state, by
    part. `beyond`: `total` less what every start of this trainer takes (import, join), fault or not."""

    total: float
    detect: float  # fault to first sign
    decide: float  # to the diagnosis
    isolate: float
    requeue: float  # until the job waits without the node, free to start
    start: float  # until the launcher has started the ranks
    resume: float  # until the first new step: the ranks' own start, restore and step
    beyond: float
    start_up: dict[str, float]
    incidents: int
    cause: str
    resumed_from: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


PHASES = ("detect", "decide", "isolate", "requeue", "start", "resume")


def random_step(rng: random.Random, training: Training) -> int:
    """Between two checkpoints, after the second one, early enough that the run does not end before the fault."""
    first, last = 2, training.steps // training.every - 2
    if last <= first:
        raise BenchError(f"{training.steps} steps are too few for a fault in the middle")
    return rng.randrange(first, last) * training.every + rng.randrange(1, training.every)


def injure(run: LiveRun, kind: str, rng: random.Random, step: int, batch_host: bool | None = None) -> Fault:
    """Wait for the step, then make the fault, on a random training node or rank of the job.

    `batch_host` chooses the node on which the batch script runs, or (False) another one.
    """
    seen = run.wait_step(step)
    state = run.state
    sandbox = run.bench.sandbox
    nodes = training_nodes(launcher_records(run)) or state.job.nodes
    fitting = [n for n, node in enumerate(nodes) if batch_host in (None, node == state.job.batch_host)]
    rank = rng.choice(fitting)
    node = nodes[rank]
    at = time.time()
    if kind == "node-kill":
        faults.kill_node(sandbox, node)
        return Fault(kind, node, node == state.job.batch_host, seen, at)
    if kind == "rank-kill":
        faults.kill_rank(sandbox, state.job.id, rank)
    elif kind == "rank-stop":
        faults.stop_rank(sandbox, state.job.id, rank)
    else:
        raise BenchError(f"There is no fault {kind!r}", f"known: {', '.join(KINDS)}")
    return Fault(kind, f"rank {rank} on {node}", node == state.job.batch_host, seen, at)


def launcher_records(run: LiveRun) -> list[dict[str, Any]]:
    """Return what the newest launcher has written, without an incomplete last line."""
    state = run.state
    path = run.dir.attempt(state.job.id, state.job.restarts).launcher_journal
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def preflight(run: LiveRun) -> float:
    """Seconds from the start of the newest launcher to its first launch."""
    began = {record["type"]: record["wall"] for record in reversed(launcher_records(run))}
    return round(began["launch"] - began["attempt"], 2)


def training_nodes(records: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Of the newest launch, in the order of the ranks: a spare is not among them."""
    launches = [record["nodes"] for record in records if record["type"] == "launch"]
    return tuple(launches[-1]) if launches else ()


def seen_after(records: Sequence[Mapping[str, Any]], at: float) -> float | None:
    """Seconds from `at` (Unix time) to the launcher's first finding since then; None: it had none."""
    found = [record["wall"] for record in records if record["type"] == "recovery" and record["what"] == "seen"]
    return next((round(wall - at, 3) for wall in found if wall >= at), None)


def recovery(run: LiveRun, fault: Fault) -> Recovery:
    """What the marks of the incident tell. BenchError when the run did not recover from this fault."""
    state = run.state
    early = [i for i in state.incidents if i.began < fault.at]
    if early:
        raise BenchError(f"Run {run.name} had an incident before the fault", early[0].marks[0].words)
    after = _marks(state.incidents)
    if "first_step" not in after or state.incidents[-1].result != "recovered":
        results = ", ".join(i.result for i in state.incidents) or "no incident"
        raise BenchError(f"Run {run.name} did not recover from {fault.kind} of {fault.target}", results)
    began = state.incidents[0].began
    times = [fault.at, began]
    for what in ("diagnosed", "isolated", "requeued", "launched", "first_step"):
        times.append(max(after.get(what, times[-1]), times[-1]))
    detect, decide, isolate, requeue, start, resume = (round(b - a, 3) for a, b in itertools.pairwise(times))
    last = state.incidents[-1]
    total, parts = times[-1] - fault.at, start_up(run.dir, state)
    return Recovery(
        total=round(total, 3),
        detect=detect,
        decide=decide,
        isolate=isolate,
        requeue=requeue,
        start=start,
        resume=resume,
        beyond=beyond(total, parts),
        start_up=parts,
        incidents=len(state.incidents),
        cause=last.diagnosis.cause if last.diagnosis else "",
        resumed_from=_first_step(last) - 1,
    )


def beyond(total: float, start_up: Mapping[str, float]) -> float:
    """Seconds that a recovery took besides what every start of the trainer takes."""
    return round(total - start_up.get("import", 0.0) - start_up.get("join", 0.0), 3)


def _marks(incidents: Sequence[Incident]) -> dict[str, float]:
    """The last mark of each kind: where a fault took two restarts, the one that led to the new step."""
    return {mark.what: mark.at for incident in incidents for mark in incident.marks}


def _first_step(incident: Incident) -> int:
    words = next((m.words for m in incident.marks if m.what == "first_step"), "")
    found = re.search(r"\d+", words)
    return int(found[0]) if found else 0


def start_up(run: RunDir, state: State) -> dict[str, float]:
    """The start-up line of rank 0 in the newest attempt, in seconds by part; empty where there is none."""
    return read_start_up(
        sorted((run.attempt(state.job.id, state.job.restarts).path / "logs").glob("*/rank-0.log"))[-1:]
    )


def read_start_up(logs: Sequence[Path]) -> dict[str, float]:
    text = "\n".join(log.read_text(errors="replace") for log in logs)
    found = _START_UP.findall(text)
    return dict(zip(("import", "join", "build", "restore"), map(float, found[-1]), strict=True)) if found else {}


def summary(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"median": round(statistics.median(values), 2), "min": round(min(values), 2), "max": round(max(values), 2)}
