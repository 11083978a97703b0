"""Count what many runs ask of Slurm.

    python bench/neighbour_slurm.py [--json]

The real pollers of up to 600 runs of 100 users run on a simulated clock and against a Slurm that counts. "before" is
the rule that they had: one question a second for each run, and one in 30 s while it trains undisturbed. The `sbatch` of
a run is its user's call, and not counted. `neighbour_process.py` measures the process that makes these calls.

The exit code is 1 if a budget is exceeded.
"""

from __future__ import annotations

import argparse
import heapq
import json
import queue
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from transom_cli.core.incident import Incident, Stage
from transom_cli.core.operator.cadence import Cadence, Pause
from transom_cli.core.operator.state import Job as RunJob
from transom_cli.core.operator.state import Phase, State
from transom_cli.slurm.port import Job, JobState
from transom_cli.slurm.shared import SharedSlurm
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.loop import Pace
from transom_cli.supervise.operator.slurm_poller import SlurmPoller

CALLS, USER_CALLS = 5.0, 2.0  # budgets: a second in all, and a minute for each user
WARM, SPAN = 300.0, 1800.0  # seconds of simulated time: before the count, and of the count
OLD_SPAN = 60.0
USERS = 6  # runs of one user

PENDING = State(phase=Phase.PENDING, job=RunJob(7, state="PENDING"))
HELD = State(phase=Phase.HELD, job=RunJob(7, state="PENDING"))
TRAINING = State(phase=Phase.TRAINING, job=RunJob(7, state="RUNNING"))
_STARTING = Incident("i1", 7, 0, 0.0, 3, Stage.STARTING)
RECOVERING = State(phase=Phase.RECOVERING, job=RunJob(7, 1, state="PENDING"), incident=_STARTING)
STATES = {"pending": PENDING, "held": HELD, "training": TRAINING, "recovering": RECOVERING, "done": None}


@dataclass
class Time:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class CountingSlurm:
    """The jobs of one user. Each call takes `took` seconds of simulated time, and is counted from WARM on."""

    time: Time
    took: float
    states: dict[int, JobState] = field(default_factory=dict)
    calls: list[float] = field(default_factory=list)

    def _call(self) -> None:
        self.calls.append(self.time.now)
        self.time.now += self.took

    def job(self, job_id: int) -> Job:
        self._call()
        return Job(job_id, self.states[job_id])

    def jobs(self) -> list[Job]:
        self._call()
        return [Job(job_id, state) for job_id, state in self.states.items()]


def old_pause(state: State) -> Pause:
    calm = state.phase is Phase.TRAINING and state.incident is None
    return Pause(30.0 if calm else 1.0, 0.0)


def simulate(
    states: list[State | None],
    *,
    old: bool = False,
    took: float = 0.0,
    warm: float = WARM,
    signs: tuple[float, float] | None = None,
) -> Iterator[list[float]]:
    """Yield the times of each user's calls, from `warm` on. A run without a state is over, and asks nothing.

    All runs begin to be in their state within the first second. signs: the job of each starts, and its launcher gives
    its first sign of life, between these seconds.
    """
    for first in range(0, len(states), USERS):
        mine = states[first : first + USERS]
        time_, rng = Time(), random.Random(first)
        slurm = CountingSlurm(time_, took)
        shared = SharedSlurm(slurm, str, time_)  # type: ignore[arg-type]
        due: list[tuple[float, int, float, int]] = []  # when, which run, how old an answer may be, the change before
        made: list[tuple[SlurmPoller, Pace]] = []
        changes: list[int] = []
        for number, state in enumerate(mine, 1):
            if state is None:
                continue
            slurm.states[number] = JobState(state.job.state)
            began = time_.now = rng.random()
            poller, pace = _poller(state, slurm, shared, time_, rng, old)
            poller.follow(number, state.job.restarts, ())
            shared.count(1)
            made.append((poller, pace))
            changes.append(0)
            delay = 0.0 if old else pace.delay
            heapq.heappush(due, (began + delay, len(made) - 1, delay, 0))
            if signs is not None:
                heapq.heappush(due, (rng.uniform(*signs), len(made) - 1, 0.0, -1))
        while due and due[0][0] < warm + (OLD_SPAN if old else SPAN):
            at, which, age, change = heapq.heappop(due)
            time_.now = max(time_.now, at)
            poller, pace = made[which]
            if change < 0 and pace.notice(pace._state, launcher_lives=True):
                changes[which] += 1
                delay = 0.0 if old else pace.delay
                heapq.heappush(due, (time_.now + delay, which, delay, changes[which]))
            elif change == changes[which]:
                pause = poller.poll(age)
                heapq.heappush(due, (time_.now + pause.seconds, which, pause.age, change))
        yield [at for at in slurm.calls if at >= warm]


def _poller(
    state: State, slurm: CountingSlurm, shared: SharedSlurm, time_: Time, rng: random.Random, old: bool
) -> tuple[SlurmPoller, Pace]:
    pace = Pace(Cadence(), time_, rng.random, shared.rest)
    pace.notice(state, launcher_lives=state.phase is Phase.TRAINING)
    given: Callable[[float], Pause] = (lambda _took: old_pause(state)) if old else pace
    ask = None if old else shared.ask
    return SlurmPoller(slurm, Clock(), queue.SimpleQueue(), given, ask=ask, now=time_), pace  # type: ignore[arg-type]


def mix(runs: int) -> list[State | None]:
    """Every state in turn: users have runs in several states."""
    kinds = list(STATES.values())
    return [kinds[(number + number // USERS) % len(kinds)] for number in range(runs)]


def rates(states: list[State | None], *, old: bool = False) -> tuple[float, float]:
    """Calls a second in all, and calls a minute of the user with the most."""
    span = OLD_SPAN if old else SPAN
    users = list(simulate(states, old=old, warm=0.0 if old else WARM))
    return sum(map(len, users)) / span, max(map(len, users)) * 60 / span


def first_minute(states: list[State | None], *, old: bool = False, signs: tuple[float, float] | None = None) -> float:
    """Calls a second in the minute after something happened to all of these runs in the same second."""
    return sum(at < 60.0 for user in simulate(states, old=old, warm=0.0, signs=signs) for at in user) / 60.0


AT_ONCE: dict[str, tuple[State, tuple[float, float] | None]] = {
    "submitted, and wait": (PENDING, None),
    "submitted, start in 2 to 8 s": (PENDING, (2.0, 8.0)),
    "submitted, start in 2 to 60 s": (PENDING, (2.0, 60.0)),
    "requeued after a fault, and wait": (RECOVERING, None),
    "requeued, start in 2 to 8 s": (RECOVERING, (2.0, 8.0)),
    "taken up while they train": (TRAINING, None),
}
"""What may happen to all runs in the same second, and when their jobs start."""


def at_once_rows(runs: int = 600) -> list[dict[str, Any]]:
    found = []
    for what, (state, signs) in AT_ONCE.items():
        states: list[State | None] = [state] * runs
        before, after = first_minute(states, old=True, signs=signs), first_minute(states, signs=signs)
        found.append({
            "what": what, "runs": runs, "unit": "calls/s in the first minute", "before": before, "after": after,
            "budget": CALLS, "good": after <= CALLS,
        })  # fmt: skip
    return found


def call_rows() -> list[dict[str, Any]]:
    rows = []
    for name, state in [*STATES.items(), ("mixed", None)]:
        for runs in (1, 100, 600):
            states = mix(runs) if name == "mixed" else [state] * runs
            before, after = rates(states, old=True), rates(states)
            good = after[0] <= CALLS and after[1] <= USER_CALLS
            rows.append({
                "what": f"{name}, {runs} runs", "unit": "calls/s", "before": before[0], "after": after[0],
                "budget": CALLS, "user_a_minute": after[1], "user_budget": USER_CALLS, "good": good,
            })  # fmt: skip
    return rows


def rows() -> list[dict[str, Any]]:
    """All rows; each has `what`, its figures, its budget, and `good`."""
    return [*call_rows(), *at_once_rows()]


def show(found: list[dict[str, Any]]) -> None:
    print(f"{'what':<28}{'before':>10}{'now':>10}{'budget':>8}   calls/s; and calls/min of one user")
    for row in found:
        if "user_a_minute" in row:
            print(f"{row['what']:<28}{row['before']:>10.2f}{row['after']:>10.2f}{row['budget']:>8g}", end="")
            print(f"   {row['user_a_minute']:.2f} of {row['user_budget']:g}{'' if row['good'] else '   EXCEEDED'}")
        else:
            print(f"{row['what']:<34}{row['before']:>8.1f}{row['after']:>6.1f}{row['budget']:>8g}", end="")
            print(f"   {row['runs']} runs at once, first minute{'' if row['good'] else '   EXCEEDED'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    asked = parser.parse_args()
    found = rows()
    if asked.json:
        print(json.dumps({"schema": 1, "bench": "neighbour_slurm", "rows": found}))
    else:
        show(found)
    return 0 if all(row["good"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
