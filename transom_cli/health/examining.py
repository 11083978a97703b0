"""An examination inside a job: by one Slurm step over its nodes, without those on which Slurm cannot start anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from transom_cli.health.crew import Crew
from transom_cli.health.crew_srun import SrunCrew
from transom_cli.health.exam import Exam, Wishes
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.judging import ANSWER
from transom_cli.health.node.asked import Asked
from transom_cli.health.node.run_dir import forget
from transom_cli.health.report import Report

TRIES = 4  # steps; a node that two of them could not be started on is left out of the next
FORGOTTEN = 5.0  # seconds for removing what was written; a file system that hangs holds nobody up
LEAST = 5.0  # seconds that a further try is worth


def examine_job(job_id: int, nodes: Sequence[str], wishes: Wishes, more: Sequence[str] = ()) -> Report:
    """Never longer than the budget by more than a few seconds; `more`: further words for srun."""
    left, refused, deadline = tuple(nodes), [], time.monotonic() + wishes.budget
    before: set[str] = set()  # what a busy controller or network may do once speaks against nobody
    for _ in range(TRIES):
        crew = SrunCrew(job_id, left, more)
        report = examine(crew, replace(wishes, budget=max(1.0, deadline - time.monotonic())))
        bad = crew.not_started()
        if set(report.silent) != set(left) or not bad or set(bad) == set(left) or time.monotonic() > deadline - LEAST:
            break
        again = [n for n in bad if n in before]
        before.update(bad)
        refused += [(n, _why(crew, n)) for n in again]
        left = tuple(n for n in left if n not in again)
    return _with_refused(report, tuple(nodes), refused, tuple(crew.words) if report.silent else ())


def examine(crew: Crew, wishes: Wishes, now: Callable[[], float] = time.monotonic) -> Report:
    """By whatever crew; it is closed, and the nodes' own files beside the token are removed."""
    try:
        return Exam(crew, wishes, now).run()
    finally:
        crew.close()
        Asked(lambda: forget(wishes.about, crew.nodes)).answer(FORGOTTEN)


def _why(crew: SrunCrew, node: str) -> str:
    return next((line for line in reversed(tuple(crew.words)) if node in line), "srun could not start its task")


def _with_refused(
    report: Report, nodes: tuple[str, ...], refused: list[tuple[str, str]], words: tuple[str, ...]
) -> Report:
    """Slurm's own word that a node does not start a task, while others do."""
    found = tuple(
        Finding(ANSWER, Verdict.SUSPECT, n, f"Slurm starts no task on it: {w}", Remedy.AVOID) for n, w in refused
    )
    notes = (*report.notes, *(f"srun: {line}" for line in words[-3:]))
    return replace(report, nodes=nodes, findings=(*found, *report.findings), notes=notes)
