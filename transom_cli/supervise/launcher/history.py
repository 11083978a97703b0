"""The attempts before this one, as a launcher knows them: their outcomes, and nodes that the operator isolated."""

import time
from dataclasses import replace

from transom_cli.core.diagnose import PREFLIGHT
from transom_cli.core.events import Taken
from transom_cli.core.launcher import AttemptStarted, without_progress
from transom_cli.core.node_hazard import PROBATION
from transom_cli.core.operator.isolation import on_probation
from transom_cli.errors import TransomError
from transom_cli.layout import AttemptDir, RunDir, parse_attempt
from transom_cli.supervise.attempt_files import newest_checkpoint, read_outcome
from transom_cli.supervise.handoff_record import attempt_numbers
from transom_cli.supervise.journal import fold
from transom_cli.supervise.launcher.plan import LaunchOptions
from transom_cli.supervise.lease import read_holder

OPERATOR_GONE = 30.0  # seconds without a renewed lease


def begun(options: LaunchOptions, attempt: AttemptDir, taken: tuple[Taken, ...] = ()) -> AttemptStarted:
    """Summarize the attempts before. Without an operator, the launcher applies their blame until it expires.

    Args:
        taken: what earlier job steps of this attempt decided, at times of the wall clock.
    """
    run, expiry = options.run, options.expiry
    before = earlier(run, attempt)
    outcomes = [read_outcome(a, 0.0) for a in before]
    of_step = [o for o in outcomes if o is None or o.job_step == options.job_step]  # the others say nothing of it
    known = [(a, o) for a, o in zip(before, outcomes, strict=True) if o is not None]
    isolated = {e for a, o in known if _age(a, attempt) < expiry for e in o.blamed}
    blamed = {e for a, o in known if _age(a, attempt) < PROBATION for e in o.blamed}
    alone = not operator_lives(run, attempt)
    if not alone:  # the operator has probed them itself
        isolated, blamed = set(), set()
    excluded, returned = excluded_nodes(run)
    isolated |= excluded
    durable = newest_checkpoint(options.checkpoints)
    return AttemptStarted(
        0.0,
        durable,
        step=max((o.step for o in of_step if o), default=-1),
        made=next((o.step for o in reversed(of_step) if o and o.since_start and o.step >= 0), -1),
        stuck=without_progress(of_step, durable),
        isolated=tuple(sorted(isolated)),
        insist=alone,
        probation=tuple(sorted((blamed | returned) - isolated)),
        taken=(
            *(replace(t, at=t.at - _age(a, attempt)) for a, o in known for t in o.taken),
            *(replace(t, at=t.at - time.time()) for t in taken),
        ),
        lacked=bool(outcomes) and outcomes[-1] is not None and outcomes[-1].cause in ("isolated_nodes", PREFLIGHT),
    )


def earlier(run: RunDir, attempt: AttemptDir) -> list[AttemptDir]:
    """The run's attempts before this one, oldest first."""
    here = parse_attempt(attempt.name)
    return [run.attempt(*number) for number in sorted(attempt_numbers(run)) if number < here]


def operator_lives(run: RunDir, attempt: AttemptDir) -> bool:
    """Whether the lease was renewed shortly before this attempt began. Both times are the file server's."""
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


def excluded_nodes(run: RunDir) -> tuple[set[str], set[str]]:
    """Return the nodes that the operator excludes, and those on probation, as its journal says."""
    try:
        now, state = time.time(), fold(run.journal).state  # the operator's clock
    except (OSError, TransomError):
        return set(), set()
    active = {x.node for x in state.isolation.exclusions if x.until is None or x.until > now}
    return active, set(on_probation(state, now))
