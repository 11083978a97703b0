"""Reads a run directory into a view: the journal played through the core, the beat tables, the lease, what the nodes
show of their memory; and what a launcher did while there was no operator."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from transom_cli.beats.table import RankBeat
from transom_cli.core.job import held_words
from transom_cli.core.state import Phase, State
from transom_cli.layout import RunDir, parse_attempt
from transom_cli.supervise.handed import Handed, newest_handed
from transom_cli.supervise.journal import Folded, Folding
from transom_cli.supervise.lease import STALE, highest_epoch, operator_alive, read_holder
from transom_cli.supervise.reported import read_reports
from transom_cli.ui.ahead import ahead
from transom_cli.ui.asked import Asked, operator_job, read_asked
from transom_cli.ui.nodestate import NodeSight, NodeViews
from transom_cli.ui.readmemory import Memory, read_memory
from transom_cli.ui.readnodes import NodeReader
from transom_cli.ui.saving import at_it
from transom_cli.ui.told import step_time, told
from transom_cli.ui.view import RunView, view_of

MANY = 128  # nodes
SELDOM = 10.0  # seconds between two looks at the memory of so many


def read_view(run: RunDir, patience: float = 0.0) -> RunView:
    """`patience`: seconds to watch the lease of an operator on another host, where its file alone does not tell."""
    return Reader(run, patience).look()


class Reader:
    """For whoever looks again and again: of the journal only what is new is read; of a thousand nodes' tables in one
    look only as many as `budget` seconds allow."""

    def __init__(self, run: RunDir, patience: float = 0.0, budget: float = float("inf")) -> None:
        self._run, self._patience, self._budget = run, patience, budget
        self._journal, self._nodes = Folding(run.journal), NodeReader(budget)
        self._asked, self._views = read_asked(run), NodeViews()
        self._memory_at, self._memory_of, self._memory = float("-inf"), "", Memory()

    def look(self, played: Folded | None = None) -> RunView:
        """played: the journal, of whoever has just read it."""
        run, asked = self._run, self._asked
        folded = played or self._journal.more()
        state = folded.state
        alive = _operator_lives(run, self._patience)
        sights, newest = self._nodes.read(run.attempt(state.job_id, state.restarts)) if state.job_id else ({}, None)
        tables = {node: sight.table for node, sight in sights.items() if sight.table is not None}
        view = view_of(run.run_id, state, tables, time.time(), operator=alive)
        if state.phase.over:  # its last step and loss stand in there, and nothing else that holds now
            sights, newest = {}, None
        view = replace(view, path=str(run.path), checkpoints=str(asked.checkpoints), steps=asked.steps, nodes_at=newest)
        view = replace(view, cluster=asked.cluster, wants=asked.wants)
        view = _with_history(_with_operator(run, view), folded, sights, asked)
        if not view.over:
            view = self._with_nodes(self._with_memory(view, state, sights), state, sights)
        held = None if alive or view.over else _held_since(run, state)
        return held_view(view, held) if held is not None else view

    def _with_memory(self, view: RunView, state: State, sights: Mapping[str, NodeSight]) -> RunView:
        """Each node has a file for it: a reader with a budget does not read a thousand of them all the time."""
        now = time.monotonic()
        rare = self._budget < float("inf") and len(state.nodes) > MANY and self._memory_of == state.attempt
        if not rare or now - self._memory_at >= SELDOM:
            self._memory, self._memory_at, self._memory_of = (
                read_memory(self._run, state, view.now),
                now,
                state.attempt,
            )
        last = _last_step(view, sights)
        view = self._memory.shown_in(view, last[0] if last is not None else None)
        busy = None if view.under_way else at_it(_ranks(sights))
        return view if busy is None else replace(view, under_way=(busy,))

    def _with_nodes(self, view: RunView, state: State, sights: Mapping[str, NodeSight]) -> RunView:
        """With each node, and what the launcher of the present attempt finds odd."""
        said = read_reports(self._run.attempt(state.job_id, state.restarts)) if state.job_id else {}
        standing, phases, lines = said.get("standing"), said.get("phases"), said.get("lines")
        reports = [one for one in standing if isinstance(one, dict)] if isinstance(standing, list) else []
        slow = {node: str(one.get("words", "")) for one in reversed(reports) for node in _culprits(one)}
        return replace(
            view,
            node_views=self._views.of(state, sights, slow, self._asked.node_silent),
            reports=tuple(str(one.get("words", "")) for one in reports),
            phases=phases if isinstance(phases, dict) else None,
            phase_lines=tuple(str(line) for line in lines) if isinstance(lines, list) else (),
        )


def _operator_lives(run: RunDir, patience: float) -> bool:
    """An operator on another host that has just renewed its lease need not be watched while it does so again."""
    holder = read_holder(run)
    if holder is not None and patience and not holder.released and not holder.here():
        age = time.time() - (_written(run.lease) or 0.0)
        if 0.0 <= age < STALE and holder.epoch == highest_epoch(run):
            return True
    return operator_alive(run, patience=patience) is not None


def _written(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _with_operator(run: RunDir, view: RunView) -> RunView:
    """With the newest sign of life of an operator: its lease, or the last line of its journal."""
    holder = read_holder(run)
    signs = [at for at in (_written(run.lease), _written(run.journal) if holder else None) if at is not None]
    host, job = holder.host if holder else "", operator_job(run)
    return replace(view, operator_host=host, operator_at=max(signs, default=None), operator_job=job)


def _with_history(view: RunView, folded: Folded, sights: Mapping[str, NodeSight], asked: Asked) -> RunView:
    """With when things were, how long a step takes, and what comes next."""
    state, past = folded.state, told(folded.events, folded.state)
    last = _last_step(view, sights) if len(past.steps) == 1 else None
    runs = past.running is not None and state.slurm_state == "RUNNING"
    limit = past.running + asked.limit if runs and past.running is not None and asked.limit else None
    hung = past.launched + asked.first_step if past.launched is not None else None
    return replace(
        view,
        submitted=past.submitted,
        step_time=step_time(past.steps, last),
        durable_age=max(0.0, view.now - past.durable) if past.durable is not None else None,
        ahead=ahead(state, limit, warned=asked.warned, hung_at=hung, operator=view.operator, launcher=asked.launcher),
    )


def _ranks(sights: Mapping[str, NodeSight]) -> list[RankBeat]:
    """That live, of the newest launch."""
    told = [r for sight in sights.values() if sight.table is not None for r in sight.table.ranks]
    launch = max((r.launch for r in told), default=0)
    return [r for r in told if r.launch == launch and r.proc not in "XZ"]


def _last_step(view: RunView, sights: Mapping[str, NodeSight]) -> tuple[float, int] | None:
    """When the newest step of all was done, by the clock of the file system, and which."""
    moved = [s.behind + r.age for s in sights.values() if s.table is not None for r in s.table.ranks if r.count]
    return (view.nodes_at - min(moved), view.step) if moved and view.nodes_at is not None else None


def _culprits(report: Mapping[str, object]) -> list[str]:
    """The nodes that a report names: those of slowness do."""
    clue = report.get("clue")
    culprits = clue.get("culprits") if isinstance(clue, dict) else None
    named = [c.get("node") for c in culprits if isinstance(c, dict)] if isinstance(culprits, list) else []
    return [node for node in named if isinstance(node, str) and node]


def _held_since(run: RunDir, state: State) -> Handed | None:
    """The hold of a launcher that no operator has seen: the operator's account ends before it."""
    handed = newest_handed(run)
    if handed is None or handed.how != "held":
        return None
    return handed if parse_attempt(handed.attempt) >= (state.job_id, state.restarts) else None


def held_view(view: RunView, handed: Handed) -> RunView:
    """Slurm has not been asked, so nothing is said of what it shows."""
    view = replace(view, job_id=handed.job_id, restarts=handed.restarts, slurm_state="", slurm_reason="")
    return replace(view, phase=Phase.HELD.value, since=handed.wall, verdict=held_words(handed.why), ahead=())
