"""The faults of the diagnosis matrix in supervised runs: the diagnosis of launcher and operator.

Here transom has more than logs: ranks send heartbeats, stacks of hung ranks are recorded, dead nodes are probed.
Collectives time out after ten minutes, as usual, so that transom must detect a hang.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from diagnosis_trainer import FAULTS
from harness import Bench, BenchError, LiveRun, wait_for

from transom_cli.core.incident import Diagnosis
from transom_cli.sandbox import faults

RANKS = 4
STEPS, AT = 400, (150, 250)  # of which it strikes at one: so many steps tell how long one takes
PATIENCE = 600.0  # seconds of a collective
SEEN = 180.0  # seconds within which a diagnosis is waited for
KINDS = (*FAULTS, "node_dead")
# A kill without a word of the kernel's tells no more than that; a node that is gone says nothing itself.
CAUSES = {"killed": ("process_crash", "host_oom"), "node_dead": ("slurm_node_fail",)}
NODE_DEAD = "node_dead"  # everything on a node is killed, its slurmd first
_TRAINER = Path(__file__).resolve().with_name("diagnosis_trainer.py")


class Supervised:
    def __init__(self, bench: Bench, seed: int) -> None:
        self._bench, self._random, self._number = bench, random.Random(f"supervised/{seed}"), 0

    def job(self, kind: str) -> tuple[int, str, Diagnosis | None, float, float]:
        """One run with that fault; "" is a healthy one: its rank, its node, what was made of it, when it struck, when
        it was told."""
        self._number += 1
        rank, at = self._random.randrange(RANKS), self._random.randrange(*AT)
        folder = self._bench.dir / f"supervised-{self._number}"
        folder.mkdir()
        fault = kind if kind in FAULTS else "outside" if kind else ""
        words = ["--folder", str(folder), "--timeout", str(PATIENCE), "--steps", str(STEPS)]
        words += ["--fault", fault, "--rank", str(rank), "--at", str(at)] if fault else []
        name = f"{(kind or 'healthy').replace('_', '-')}-{self._number}"
        run = self._bench.submit(name, [str(_TRAINER), *words], options=("-N", str(RANKS)))
        try:
            return rank, *self._watched(run, kind, rank, folder / "struck")
        finally:
            self._bench.heal()

    def _watched(self, run: LiveRun, kind: str, rank: int, mark: Path) -> tuple[str, Diagnosis | None, float, float]:
        began = time.time()
        if not kind:
            run.wait_over()
            told = run.state.incidents
            return "", told[0].diagnosis if told else None, began, time.time()
        wait_for(lambda: mark.exists() or run.view.exit_code is not None, 120.0, f"{kind}: the step before it", 0.05)
        node = run.state.job.nodes[rank]
        if kind == NODE_DEAD:
            faults.kill_node(self._bench.sandbox, node)
        wait_for(lambda: _told(run) is not None or run.view.exit_code is not None, SEEN, f"a diagnosis of {kind}", 0.1)
        told = _told(run)
        if told is None:
            raise BenchError(f"Run {run.name} was over without an incident")
        return node, told[1], float(mark.read_text()), told[0]


def _told(run: LiveRun) -> tuple[float, Diagnosis] | None:
    """When the first incident was diagnosed, and as what."""
    state = run.state
    for incident in (*state.incidents, *([state.incident] if state.incident else [])):
        at = next((mark.at for mark in incident.marks if mark.what == "diagnosed"), None)
        if at is not None and incident.diagnosis is not None:
            return at, incident.diagnosis
    return None
