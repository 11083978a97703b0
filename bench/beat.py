"""Measure what a heartbeat, and a save() that saves nothing, cost a trainer: ns per call, beside an empty function.

    python bench/beat.py [--json]

Each figure is the median of the repetitions. Rows "beside torch" are omitted if torch is not installed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

CALLS = 20_000
REPEATS = 15


def cost(call: Callable[[int], object]) -> float:
    """ns a call, the loop included; the median of the repeats."""
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter_ns()
        for step in range(CALLS):
            call(step)
        times.append((time.perf_counter_ns() - begun) / CALLS)
    return statistics.median(times)


def empty(step: int, loss: float | None = None) -> None:
    pass


def measure() -> dict[str, float]:
    """Return all rows, by the function that is called. The environment decides whether heartbeats are written."""
    from transom_cli.heartbeat.client import beat
    from transom_cli.heartbeat.collectives import _timed

    def announced(step: int) -> None:
        with beat.phase("checkpoint"):
            pass

    def timed(step: int) -> None:
        with beat.phase("data"):
            pass

    collective = _timed(empty)

    steps = itertools.count(1)  # each call a new step, as in a training
    rows: dict[str, Callable[[int], object]] = {
        "empty function": lambda step: empty(step, loss=2.5),
        "beat(step)": lambda step: beat(step),
        "beat(step, loss=float)": lambda step: beat(step, loss=2.5),
        'with beat.phase("checkpoint")': announced,
        'with beat.phase("data")': timed,
        "around a collective": lambda step: collective(step),
    }
    try:
        import torch

        loss = torch.tensor(2.5, requires_grad=True)
        rows["beat(step, loss=CPU tensor)"] = lambda step: beat(step, loss=loss)  # type: ignore[arg-type]
        checkpointer = _checkpointer()
        rows["save(step), not due"] = lambda _: checkpointer.save(next(steps))
    except ImportError:
        pass
    return {name: round(cost(call), 1) for name, call in rows.items()}


def _checkpointer() -> Any:
    from transom_cli.ckpt.checkpointer import Checkpointer

    return Checkpointer({"step": 0}, os.environ["BENCH_CHECKPOINTS"], every=1 << 40)


def run(env: dict[str, str]) -> dict[str, float]:
    """In a fresh process: where beats go is decided once in a process."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_"))}
    command = [sys.executable, __file__, "--measure"]
    done = subprocess.run(command, env={**clean, **env}, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of beat() in ns.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure()))
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:  # noqa: PTH112
        checkpoints = {"BENCH_CHECKPOINTS": f"{folder}/checkpoints"}
        inside = run({"TRANSOM_BEAT_DIR": folder, "RANK": "0", **checkpoints})
        outside = run(checkpoints)
    if options.json:
        print(json.dumps({"schema": 1, "unit": "ns/call", "repeats": REPEATS, "inside": inside, "outside": outside}))
        return
    print(f"{'ns a call, median of ' + str(REPEATS):32}{'in a run':>10}{'outside':>10}")
    for name, ns in inside.items():
        print(f"{name:32}{ns:10.0f}{outside[name]:10.0f}")


if __name__ == "__main__":
    main()
