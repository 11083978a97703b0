"""The invariants of every chaos run. Pure: from readings to violations, each with its evidence."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from chaos_plan import CAP, DISK

BUDGET = 3  # restarts without progress: transom's default


@dataclass(frozen=True)
class Made:
    """A fault that was made, `at` seconds after the submission. `node`: the machine that it took; else empty."""

    kind: str
    target: str
    at: float
    node: str = ""
    story: str = ""


@dataclass(frozen=True)
class Resumed:
    """A launch: the newest good checkpoint seen before it began, and the step from which it says that it trains."""

    launch: str
    durable: int
    step: int


@dataclass(frozen=True)
class Said:
    """An entry of a launcher's journal, `at` seconds after the submission."""

    at: float
    what: str
    words: str


@dataclass(frozen=True)
class Readings:
    """What was seen of one run. Seconds. `exit_code` None: it was not over when `bound` had passed.

    newest: steps of the newest good checkpoint, as they were seen one after the other; damaged: what is wrong with
    the last of them at the end. left: processes of its jobs on living nodes, after Slurm had said that they ended.
    """

    made: tuple[Made, ...]
    took: float
    bound: float
    phase: str
    exit_code: int | None
    verdict: str
    wanted: str  # the uninterrupted run's sha256
    sha256: str = ""
    newest: tuple[int, ...] = ()
    damaged: str = ""
    resumed: tuple[Resumed, ...] = ()
    drained: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    unended: tuple[str, ...] = ()  # jobs that Slurm still has as pending or running at the end
    operators: tuple[str, ...] = ()  # alive after the end
    operator_lost: str = ""  # its last words, when it ended and nobody had killed it
    unexplained: tuple[str, ...] = ()  # launches that started ranks from scratch, and nothing says why
    together: tuple[str, ...] = ()  # jobs that were seen to run at the same moment
    said: tuple[Said, ...] = ()  # by launchers, about recoveries


@dataclass(frozen=True)
class Violation:
    invariant: str
    words: str


def judge(seen: Readings) -> tuple[Violation, ...]:
    """Empty: all is as it must be."""
    found: list[Violation] = []
    for name, check in _INVARIANTS.items():
        found += [Violation(name, words) for words in check(seen)]
    return tuple(found)


def _ends(seen: Readings) -> list[str]:
    if seen.operator_lost:
        return [f"the operator ended by itself: {seen.operator_lost}"]
    if seen.exit_code is None:
        return [f"not over after {seen.bound:.0f} s: {seen.phase}"]
    return []


def _result(seen: Readings) -> list[str]:
    if seen.exit_code != 0:
        return []
    if not seen.sha256:
        return ["done, but without a final state"]
    if seen.sha256 != seen.wanted:
        return [f"the final state is {seen.sha256[:16]}, the uninterrupted run's is {seen.wanted[:16]}"]
    return []


def _truthful(seen: Readings) -> list[str]:
    """A run may stop short of its end only for a reason that its faults explain."""
    if seen.exit_code in (None, 0):
        return []
    why = f"{seen.phase} (exit code {seen.exit_code}): {seen.verdict or 'no reason given'}"
    if any(re.search(pattern, seen.verdict) and explains(seen) for pattern, explains in _REASONS.items()):
        return []
    return [f"{why}; nothing that was done to it explains that"]


def _explained(seen: Readings) -> list[str]:
    return [f"nothing says why ranks started from scratch in launch {launch}" for launch in seen.unexplained]


def lost_nodes(seen: Readings) -> set[str]:
    return {made.node for made in seen.made if made.node}


def _disk(seen: Readings) -> bool:
    return any(made.kind in DISK for made in seen.made)


_REASONS: dict[str, Callable[[Readings], bool]] = {
    r"not isolated: that would be more than": lambda seen: len(lost_nodes(seen)) > CAP,
    r"^restarted \d+ times without progress": lambda seen: len(seen.made) > BUDGET,
    r"cannot see or write the run directory": _disk,
    r"JobLaunchFailure": _disk,
    r"^Slurm has forgotten the job": lambda seen: any(made.kind == "controller-kill" for made in seen.made),
}


def _durable(seen: Readings) -> list[str]:
    words = []
    best = -1
    for step in seen.newest:
        if step < best:
            words.append(f"the newest good checkpoint was step {best}, and then step {step}")
        best = max(best, step)
    if seen.damaged:
        words.append(f"the newest checkpoint, step {seen.newest[-1]}, is not good at the end: {seen.damaged}")
    for launch in seen.resumed:
        if launch.step < launch.durable:
            words.append(f"launch {launch.launch} trains from step {launch.step}; step {launch.durable} was durable")
    return words


def _drained(seen: Readings) -> list[str]:
    by_an_admin = {made.target for made in seen.made if made.kind == "admin-drain"}
    healthy = [node for node in seen.drained if node not in lost_nodes(seen) | by_an_admin]
    return [f"{node} was drained, and nothing had been done to it" for node in dict.fromkeys(healthy)]


def _left(seen: Readings) -> list[str]:
    return [
        *(f"left behind: {words}" for words in seen.left),
        *(f"an operator still runs: {words}" for words in seen.operators),
        *(f"a job still exists: {words}" for words in seen.unended),
    ]


def _alone(seen: Readings) -> list[str]:
    return [f"ran at the same time: {words}" for words in seen.together]


_INVARIANTS: dict[str, Callable[[Readings], list[str]]] = {
    "ends": _ends,
    "same result": _result,
    "truthful reason": _truthful,
    "durable checkpoints": _durable,
    "healthy nodes": _drained,
    "nothing left": _left,
    "one job at once": _alone,
    "fallback with a reason": _explained,
}
INVARIANTS = tuple(_INVARIANTS)
