"""Count false alarms in a healthy but uneven run on a busy machine.

    python bench/healthy.py [--minutes 15] [--json]

One run under transom, with all defaults, on 3 of a sandbox's 4 nodes: a first step of 20 s, evaluations that the
trainer does not announce, every fourth checkpoint slow, step times that always differ (bench/uneven.py),
and a process that keeps a CPU busy. The bench counts stalls, incidents, isolations and restarts in the operator's
journal, nodes with a problem and restarts in Slurm. All must be 0, and the run must end as done; otherwise the exit
code is 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness import Bench, BenchError, LiveRun, progress, run_bench, surroundings

from transom_cli.core.events import Isolated, NodeSilent, Restarted, Stalled
from transom_cli.supervise.journal import fold, read_events

START = 120.0  # seconds that starting and ending may take beyond the training's own minutes


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0, help="that the training takes [15]")
    parser.add_argument("--spinners", type=int, default=1, help="processes that only burn CPU time [1]")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--keep", action="store_true", help="keep the run's files")
    return parser.parse_args()


def counts(run: LiveRun) -> dict[str, int]:
    """All of them 0 for a run that was left alone."""
    folded, events = fold(run.dir.journal), read_events(run.dir.journal)
    state, slurm = folded.state, run.bench.slurm
    return {
        "signs_of_silence": sum(isinstance(event, (Stalled, NodeSilent)) for event in events),
        "incidents": len(state.incidents) + (state.incident is not None),
        "isolations": sum(isinstance(event, Isolated) for event in events),
        "restarts": sum(isinstance(event, Restarted) for event in events) + state.job.starts,
        "slurm_restarts": slurm.job(state.job.id).restarts,
        "slurm_nodes_not_in_order": sum(not node.usable for node in slurm.nodes()),
    }


def watch(run: LiveRun, minutes: float) -> None:
    """A line a minute until the run is over; BenchError when that takes too long."""
    began = reported = time.monotonic()
    while run.view.exit_code is None:
        now = time.monotonic()
        if now - began > 60 * minutes + START:
            raise BenchError(f"The run was not over after {minutes:g} minutes and {START:.0f} s", run.view.phase)
        if now - reported >= 60:
            reported = now
            view = run.view
            progress(f"{(now - began) / 60:.0f} min: {view.phase}, step {view.step}, {len(view.incidents)} incidents")
        time.sleep(1.0)


def measure(args: argparse.Namespace) -> tuple[dict[str, int], str, int]:
    """The counts, the phase in which the run ended, and its last step."""
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(args.spinners)]
    try:
        with Bench(keep=args.keep) as bench:
            train = [str(Path(__file__).with_name("uneven.py")), "--minutes", str(args.minutes)]
            run = bench.submit("healthy", train)
            progress(f"a healthy run of {args.minutes:g} minutes, with {args.spinners} busy processes beside it")
            watch(run, args.minutes)
            found, view = counts(run), run.view
            if any(found.values()) or view.phase != "done":
                progress(f"the run {view.phase}\n{bench.transom('explain', '--root', str(bench.runs))}")
                bench.keep = True
            return found, view.phase, view.step
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def main() -> int:
    args = arguments()
    began = time.time()
    found, phase, step = measure(args)
    result: dict[str, Any] = {
        "minutes": args.minutes,
        "spinners": args.spinners,
        "steps": step,
        "phase": phase,
        **found,
    }
    if args.json:
        where = surroundings()
        print(
            json.dumps({"schema": 1, "bench": "healthy", "where": where, "took": round(time.time() - began), **result})
        )
    else:
        print("\n".join(f"{name:<26}{value}" for name, value in result.items()))
    if any(found.values()) or phase != "done":
        raise BenchError("A healthy run was not left alone, or did not end well")
    return 0


if __name__ == "__main__":
    run_bench(main)
