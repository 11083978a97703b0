"""The cases of bench/recovery.py under transom: the fault, its conditions, and the requirements for the recovery."""

from __future__ import annotations

import inspect
import itertools
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness import Bench, BenchError, LiveRun, Training, progress, wait_for
from injury import injure, launcher_records, preflight, random_step, recovery, seen_after

BEYOND = 5.0  # s to the first new step, besides the trainer's own start-up
SWAP = 5.0  # s more where a spare takes a lost node's place
HANG = 10.0  # s within which a hang is to be seen, or ...
HANG_STEPS = 3  # ... as many median steps, whichever is larger


@dataclass(frozen=True)
class Case:
    """`kind`: of the fault, see `injury`. `limit`: seconds beyond the start-up; None: no limit."""

    name: str
    kind: str
    limit: float | None = None
    spares: int = 0
    batch_host: bool | None = None
    options: tuple[str, ...] = ()  # of `transom run`


CASES = {
    case.name: case
    for case in (
        Case("rank-kill", "rank-kill", BEYOND),
        Case("node-kill", "node-kill"),
        Case("rank-kill-standby", "rank-kill", BEYOND, options=("--set", "launch.standby=true")),
        Case("rank-kill-stay", "rank-kill", BEYOND, options=("--set", "launch.recoverable=true")),
        Case(
            "rank-kill-stay-standby",
            "rank-kill",
            BEYOND,
            options=("--set", "launch.recoverable=true", "--set", "launch.standby=true"),
        ),
        Case(
            "rank-kill-script",
            "rank-kill",
            BEYOND,
            options=tuple(
                word
                for name in ("recoverable=true", "standby=true", "standby_reach=recoverable")
                for word in ("--set", f"launch.{name}")
            ),
        ),
        # The launcher lives on the batch script's node: with that, the attempt is over and no spare can help.
        Case("node-kill-spare", "node-kill", BEYOND + SWAP, spares=1, batch_host=False),
        Case("hang", "rank-stop"),
        Case("hang-stay", "rank-stop", options=("--set", "launch.recoverable=true")),
    )
}


def skipped(case: Case) -> str:
    """Why the case cannot be measured with this transom; "" when it can."""
    from transom_cli.cli.run import run

    if case.spares and "spares" not in inspect.signature(run).parameters:
        return f"{case.name} was not measured: this `transom run` knows no --spares"
    return ""


def hang_limit(median_step: float) -> float:
    return max(HANG_STEPS * median_step, HANG)


def median_step(sights: Sequence[tuple[float, int]]) -> float:
    """Seconds a step: the median pace between two sights (clock, step) of a training that steps on."""
    return statistics.median((b - a) / (n - m) for (a, m), (b, n) in itertools.pairwise(sights))


def watch_pace(run: LiveRun, step: int) -> float:
    """Wait until every rank has done `step`; the median step time on the way there. The first step does not count."""
    sights: list[tuple[float, int]] = []

    def there() -> bool:
        seen, now = run.view.step, time.monotonic()
        if seen > (sights[-1][1] if sights else 0):
            sights.append((now, seen))
        return seen >= step or run.view.exit_code is not None

    wait_for(there, 120.0, f"step {step} of run {run.name}")
    if len(sights) < 2:
        raise BenchError(f"The steps of run {run.name} could not be followed")
    return median_step(sights)


def one_run(bench: Bench, case: Case, number: int, training: Training, seed: int, wanted: str) -> dict[str, Any]:
    """A run, its fault and its recovery, as a row of the JSON; with `error` where it did not recover: the next ones go
    on. `wanted`: the hash of the undisturbed final state."""
    rng = random.Random(f"{seed}/{case.name}/{number}")
    row: dict[str, Any] = {"case": case.name, "run": number}
    try:
        step = random_step(rng, training)
        run = bench.train(f"{case.name}-{number}", training, case.spares, case.options)
        row["median_step"] = pace = round(watch_pace(run, step), 3)
        fault = injure(run, case.kind, rng, step, case.batch_host)
        row |= vars(fault)
        result = run.wait_result() if case.spares else run.wait_done()
        row |= {**recovery(run, fault).as_json(), "preflight": preflight(run), "bit_identical": result.sha256 == wanted}
        if case.kind == "rank-stop":
            seen = seen_after(launcher_records(run), fault.at)
            row["seen"] = row["detect"] if seen is None else seen  # the operator's sign where the launcher gave none
            row["seen_limit"] = hang_limit(pace)
    except BenchError as error:
        row["error"] = f"{error.what}: {error.why}" if error.why else error.what
        bench.keep = True
    bench.heal()
    progress(f"transom, {case.name} {number + 1}: {_words(row)}")
    return row


def _words(row: dict[str, Any]) -> str:
    if "error" in row:
        return str(row["error"])
    equal = "bit-identical" if row["bit_identical"] else "DIFFERENT RESULT"
    return f"{row['target']} at step {row['step']}: first new step after {row['total']:.1f} s, {equal}"
