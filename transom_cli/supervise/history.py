"""What a launcher knows of the attempts before its own: their outcomes, and what the operator has isolated."""

from __future__ import annotations

import os
from pathlib import Path

from transom_cli.core.events import OutcomeSeen
from transom_cli.core.ladder import Begun
from transom_cli.errors import TransomError
from transom_cli.layout import AttemptDir, RunDir, parse_attempt
from transom_cli.supervise.follow import newest_checkpoint, read_outcome
from transom_cli.supervise.journal import fold
from transom_cli.supervise.lease import read_holder

OPERATOR_GONE = 30.0  # seconds without a renewed lease


def begun(run: RunDir, attempt: AttemptDir, checkpoints: Path, expiry: float) -> Begun:
    """Blame stands for `expiry` seconds. Without a live operator it is the launcher that keeps those nodes out."""
    before = earlier(run, attempt)
    outcomes = [read_outcome(a, 0.0) for a in before]
    isolated = {e for a, o in zip(before, outcomes, strict=True) if o and _age(a, attempt) < expiry for e in o.blamed}
    alone = not operator_lives(run, attempt)
    if not alone:
        isolated = set()  # it has looked at them itself
    isolated |= _excluded(run)
    return Begun(
        0.0,
        newest_checkpoint(checkpoints),
        stuck=without_progress(outcomes),
        isolated=tuple(sorted(isolated)),
        insist=alone,
        lacked=bool(outcomes) and outcomes[-1] is not None and outcomes[-1].cause == "isolated_nodes",
    )


def earlier(run: RunDir, attempt: AttemptDir) -> list[AttemptDir]:
    """The run's attempts before this one, oldest first."""
    here = parse_attempt(attempt.name)
    found = []
    try:
        names = os.listdir(run.attempts)  # noqa: PTH208
    except OSError:
        return []
    for name in names:
        try:
            number = parse_attempt(name)
        except ValueError:
            continue
        if number < here:
            found.append((number, AttemptDir(run.attempts / name)))
    return [path for _, path in sorted(found, key=lambda pair: pair[0])]


def without_progress(outcomes: list[OutcomeSeen | None]) -> int:
    """How many of the newest attempts, in a row, came to no newer checkpoint than those before."""
    stuck, best = 0, -1
    for outcome in outcomes:
        durable = outcome.durable if outcome is not None else best
        stuck = 0 if durable > best else stuck + 1
        best = max(best, durable)
    return stuck


def operator_lives(run: RunDir, attempt: AttemptDir) -> bool:
    """Whether its lease was renewed not long before this attempt began: both by the file server's clock."""
    holder = read_holder(run)
    if holder is None or holder.released:
        return False
    try:
        return attempt.launcher_journal.stat().st_mtime - run.lease.stat().st_mtime < OPERATOR_GONE
    except OSError:
        return False


def _age(then: AttemptDir, now: AttemptDir) -> float:
    try:
        return now.launcher_journal.stat().st_mtime - then.outcome.stat().st_mtime
    except OSError:
        return 0.0


def _excluded(run: RunDir) -> set[str]:
    try:
        return set(fold(run.journal).state.excluded)
    except (OSError, TransomError):
        return set()
