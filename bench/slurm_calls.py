"""Measure the cost of each call to Slurm, by its commands and by pyslurm, on real clusters of several releases.

    python bench/slurm_calls.py [--releases native trixie forky] [--times 50] [--jobs 298] [--json FILE]

The figures are wall-clock milliseconds (median, and the slowest of twenty) and milliseconds of CPU of the caller, for
the calls that an operator makes. All clusters are up at the same time, and each call is made on all of them in turn
before it is repeated, so other load affects them equally. Needs what `transom sandbox up --release` needs, and builds a
missing release; an unavailable one is named and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from transom_cli.errors import TransomError
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.sandbox.release.known import NATIVE, RELEASES, ReleaseHome
from transom_cli.sandbox.release.obtain import default_folder, obtain
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.port import JobState, Slurm, SlurmUnknown, Submission
from transom_cli.slurm.pyslurm.client import ALWAYS, PySlurm
from transom_cli.slurm.runner import Runner

SLOW = 0.95
SMALL = ("--mem=100", "--output=/dev/null")


@dataclass(frozen=True)
class Cost:
    """Times of one call, in milliseconds. ``cpu``: of the caller, not of Slurm."""

    median: float
    slow: float
    cpu: float


@dataclass(frozen=True)
class World:
    """A cluster, and one way to speak to it. ``cpu``: seconds that this way has used by now."""

    name: str
    slurm: Slurm
    cpu: Callable[[], float]
    running: int  # job ids
    held: int
    nodes: tuple[str, ...]
    script: Path


def measure(calls: Sequence[Callable[[], object]], cpus: Sequence[Callable[[], float]], times: int) -> list[Cost]:
    """Of these calls, made in turn."""
    took: list[list[float]] = [[] for _ in calls]
    spent = [0.0] * len(calls)
    for _ in range(times):
        for at, (call, cpu) in enumerate(zip(calls, cpus, strict=True)):
            before, began = cpu(), time.perf_counter()
            call()
            took[at].append(1000 * (time.perf_counter() - began))
            spent[at] += 1000 * (cpu() - before)
    return [
        Cost(statistics.median(times_), sorted(times_)[int(SLOW * (times - 1))], used / times)
        for times_, used in zip(took, spent, strict=True)
    ]


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start_worker(client: PySlurm) -> Callable[[], float]:
    """The CPU of the process that holds pyslurm, and of commands that were called in its place."""
    began = time.perf_counter()
    client.jobs()
    took = time.perf_counter() - began
    (worker,) = (p for p in psutil.Process().children() if "worker.py" in " ".join(p.cmdline()))
    print(f"pyslurm's process: first answer after {took:.2f} s, holds {worker.memory_info().rss / 1e6:.0f} MB")
    clock = (~worker.pid << 3) | 2  # its CPU clock, as clock_getcpuclockid(3) makes it: /proc counts in 10 ms
    return lambda: time.clock_gettime(clock) + children_cpu()


def calls(world: World) -> dict[str, Callable[[], object]]:
    """By their names in the port. Each can be repeated, and leaves the cluster as it was but for a comment."""
    slurm, nodes = world.slurm, world.nodes

    def drain_and_undrain() -> None:
        slurm.drain(nodes[3], "a bench")
        slurm.undrain(nodes[3], reason="a bench")

    return {
        "jobs": slurm.jobs,
        "job": lambda: slurm.job(world.running),
        "nodes, one": lambda: slurm.nodes(nodes[:1]),
        "nodes, all four": slurm.nodes,
        "set_comment": lambda: slurm.set_comment(world.held, "transom:bench"),
        "update_pending, exclusion": lambda: slurm.update_pending(world.held, exclude=nodes[2:3]),
        "requeue_hold, of one held already": lambda: slurm.requeue_hold(world.held),
        "drain and undrain (4 calls)": drain_and_undrain,
        "history": lambda: slurm.history(world.running),
        "submit": lambda: submit_held(world),  # last: its jobs stay, for the row of many
    }


def submit_held(world: World) -> int:
    return world.slurm.submit(Submission(world.script, (*SMALL, "--hold")))


@contextlib.contextmanager
def worlds(release: str, folder: Path) -> Iterator[list[World]]:
    """A cluster of this release with two jobs in it, and each way to speak to it. Raises where it cannot be had."""
    home = "" if release == NATIVE else str(obtain(release, default_folder(), say).home.path)
    sandbox = Sandbox.up(SandboxSpec(folder / release, home=home, accounting=True))
    try:
        runner = Runner(env={**os.environ, **sandbox.env()})
        cli = CliSlurm(runner)
        version = sandbox.slurm("sinfo", "--version").split()[-1]
        script = folder / "sleep.sh"
        script.write_text("#!/bin/sh\nexec sleep 3600\n")
        running = cli.submit(Submission(script, (*SMALL, "--nodes=2")))
        held = cli.submit(Submission(script, (*SMALL, "--hold")))
        while cli.job(running).state is not JobState.RUNNING or not in_accounting(cli, running):
            time.sleep(0.2)
        time.sleep(2)  # until its steps can be signalled
        shared = (running, held, sandbox.node_names, script)
        found = [World(f"{version} commands", cli, children_cpu, *shared)]
        python = ReleaseHome(Path(home)).python
        py = PySlurm(str(python), runner) if home and python.exists() else None
        if py:
            found.append(World(f"{version} pyslurm", py, start_worker(py), *shared))
        elif home and RELEASES[release].pyslurm:
            say(f"{release}: without pyslurm, which could not be built for it")
        yield found
        if py:
            for call, why in py.detours.items():
                say(f"by the commands all the same: {call}: {why}")
            py.close()
    finally:
        sandbox.down()


def in_accounting(slurm: Slurm, job_id: int) -> bool:
    with contextlib.suppress(SlurmUnknown):
        return bool(slurm.history(job_id))
    return False


def bench(found: Sequence[World], times: int, jobs: int) -> dict[str, dict[str, Cost]]:
    """Times by call, then by world, without the calls that pyslurm does not serve."""
    rows = {}
    for name in calls(found[0]):
        here = [world for world in found if not (isinstance(world.slurm, PySlurm) and name in ALWAYS)]
        costs = measure([calls(world)[name] for world in here], [world.cpu for world in here], times)
        rows[name] = {world.name: cost for world, cost in zip(here, costs, strict=True)}
    for world in found:
        if isinstance(world.slurm, CliSlurm):
            for _ in range(jobs - times):
                submit_held(world)
    costs = measure([world.slurm.jobs for world in found], [world.cpu for world in found], times)
    rows[f"jobs, {jobs + 2} of them"] = {world.name: cost for world, cost in zip(found, costs, strict=True)}
    return rows


def shown(cost: Cost | None) -> str:
    return " · ".join(f"{x:.1f}" for x in asdict(cost).values()) if cost else "–"


def say(words: str) -> None:
    print(words, file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--releases", nargs="+", default=[NATIVE, *RELEASES], choices=[NATIVE, *RELEASES])
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=298, help="held jobs for the last row; at least --times")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tsm-", dir="/tmp") as folder, contextlib.ExitStack() as stack:
        found: list[World] = []
        for release in args.releases:
            try:
                found += stack.enter_context(worlds(release, Path(folder)))
            except TransomError as error:
                say(f"{release} is skipped: {error}")
        if not found:
            return 1
        rows = bench(found, args.times, max(args.jobs, args.times))
    load = os.getloadavg()[0]
    print(f"\n{os.cpu_count()} CPUs, load {load:.1f}; {args.times} times each; ms: median · 95 % · CPU\n")
    names = [world.name for world in found]
    print(f"| call | {' | '.join(names)} |\n|{'---|' * (1 + len(names))}")
    for name, costs in rows.items():
        print(f"| {name} | {' | '.join(shown(costs.get(world)) for world in names)} |")
    if args.json:
        rows_as = {name: {world: asdict(cost) for world, cost in costs.items()} for name, costs in rows.items()}
        args.json.write_text(json.dumps({"schema": 2, "worlds": names, "rows": rows_as}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TransomError as error:
        sys.exit(str(error))
