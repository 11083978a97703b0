"""Measure one `transom operate --all` process that operates many runs, by the state of these runs.

    python bench/neighbour_process.py [--states pending,held,training,recovering] [--runs 1,100] [--seconds 60] [--json]

The process and the run directories are real; `squeue` and `scontrol` answer from files, and count. In the state
training, the bench writes what each run's launcher writes: its sign of life every second, and all heartbeats of 2 nodes
with 8 ranks each every 5 s, from the real publisher. A row fails if one of its runs is not in the state that it names.

Columns: calls to Slurm in a minute, of all runs; CPU time of the process and the commands that it starts, in per cent
of a core; resident memory (RSS), and the part that no other process shares (USS); threads; and system calls on the run
directories, a second and run. strace counts these in a separate measurement, for a few runs of the process ("-":
strace is missing, or may not trace).

The states are measured at the same time, each with a process of its own; with more than 100 runs one after the other.
600 runs take 15 minutes: `python bench/neighbour_process.py --runs 600`. The exit code is 1 if a budget is exceeded or
a row fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
from neighbour_files import SETTLE, World

from transom_cli.config.load import load
from transom_cli.core import events as ev
from transom_cli.core.incident import Stage
from transom_cli.core.operator.state import Policy, State
from transom_cli.heartbeat.local_table import publish
from transom_cli.layout import RunDir
from transom_cli.slurm.parse import _COLUMNS, FIELD, RECORD
from transom_cli.start import own
from transom_cli.submit.rundir import new_run
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.journal import Journal, fold, write_header
from transom_cli.supervise.lease import read_holder
from transom_cli.supervise.operator.registry import Registry, Shell, operator_folder

STATES = ("pending", "held", "training", "recovering")
MEMORY, CPU = 60.0, 2.0  # budgets for one process with 100 pending runs: MB, per cent of a core
TAKEN_UP = 600.0  # seconds until the process operates all runs
LEAVES = 120.0  # seconds to leave all runs
CALM = 75.0  # seconds until nothing has changed for a minute
TRACED = 10.0  # seconds
THREADS = 8  # that strace follows: each run has one, beside a few for all runs
TOGETHER = 100  # runs of a state up to which all states are measured at the same time
NODES = ("gpu0000", "gpu0001")
RANKS = 8  # of a node

_COMMAND = """#!/bin/sh
echo {name} >>{log}
exec cat {answer}
"""
_IN_SQUEUE = {
    "pending": {"State": "PENDING", "Reason": "Priority"},
    "held": {"State": "PENDING", "Reason": "JobHeldUser", "PriorityLong": "0"},
    "training": {"State": "RUNNING", "Reason": "None", "NodeList": "gpu[0000-0001]", "TimeUsed": "10:00"},
    "recovering": {"State": "PENDING", "Reason": "Priority", "RestartCnt": "1"},
}


def answers(folder: Path, runs: int, state: str = "pending") -> None:
    """Make a squeue that knows these jobs and a scontrol that knows the first one. Both count their calls."""
    folder.mkdir()
    fixed = {"RestartCnt": "0", "Requeue": "1", "NumNodes": "2", "exit_code": "0", "PriorityLong": "10"}
    fixed |= {"TimeUsed": "0:00", "UserName": "me", "Name": "idle", "StartTime": "N/A", "EndTime": "N/A"}
    fixed |= {"Partition": "main", "NodeList": "", "Comment": "", **_IN_SQUEUE[state]}
    rows = [FIELD.join({**fixed, "JobID": str(n)}.get(c, "") for c in _COLUMNS) for n in range(1, runs + 1)]
    (folder / "squeue.txt").write_text("".join(f"{row}{RECORD}\n" for row in rows))
    (folder / "scontrol.txt").write_text(
        f"JobId=1 JobName=idle UserId=me(1) GroupId=me(1) MCS_label=N/A Priority={fixed['PriorityLong']} Nice=0 "
        f"JobState={fixed['State']} Reason={fixed['Reason']} Requeue=1 Restarts={fixed['RestartCnt']} ExitCode=0:0 "
        f"RunTime=00:00:00 StartTime=Unknown EndTime=Unknown Partition=main NodeList={fixed['NodeList']} NumNodes=2 "
        "CPUs/Task=1 OverSubscribe=OK Contiguous=0 Command=/x WorkDir=/ StdOut=/dev/null Power=\n"
    )
    for name in ("squeue", "scontrol"):
        path = folder / name
        path.write_text(_COMMAND.format(name=name, log=folder / "calls", answer=folder / f"{name}.txt"))
        path.chmod(0o755)
    (folder / "calls").touch()


def idle_run(root: Path, number: int, more: tuple[ev.Event, ...] = ()) -> RunDir:
    """A run whose job waits in the queue; and what its journal holds beyond that."""
    settings = load(None, {"name": "idle", "root": str(root)}, {}, site=None, user=root / "none")
    script = "#!/bin/bash\n#SBATCH --nodes=2\ntrue\n"
    run = new_run(root, "idle", datetime.now(timezone.utc), settings, script)
    SubmissionRecord().save(run)
    write_header(run.journal, Policy(), 2)
    journal = Journal(run.journal, 0)
    now = time.time()
    for event in (ev.Started(now, 0), ev.Submitted(now, "submit", number), *more):
        journal.append(event)
    journal.close()
    return run


def past(state: str, number: int) -> tuple[ev.Event, ...]:
    """The events that follow a submission, until the run is in this state. Slurm's answer makes a run held."""
    now, attempt, world = time.time(), f"{number}.0", RANKS * len(NODES)
    trains = (
        ev.JobSeen(now, number, 0, "RUNNING", nodes=NODES, batch_host=NODES[0]),
        ev.LaunchSeen(now, attempt, 0, NODES, world),
        ev.StepSeen(now, attempt, 30),
    )
    requeued = (ev.JobSeen(now, number, 1, "PENDING", reason="Priority"), ev.Acted(now, "patch/1"))
    return {"training": trains, "recovering": (*trains, *requeued)}.get(state, ())


def named(state: State) -> str:
    """The state of this bench that a run is in; "" for any other."""
    incident = state.incident.stage if state.incident is not None else None
    job = "RUNNING" if state.phase.value == "training" else "PENDING"
    expected = Stage.STARTING if state.phase.value == "recovering" else None
    good = state.job.state == job and incident is expected and not state.pending and not state.slurm_error
    return state.phase.value if good else ""


class Launchers:
    """Writes what the launchers of all runs write while they train. One simulated attempt provides the bytes."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder, len(NODES), RANKS)
        self.world.go_on(SETTLE)
        self._end = threading.Event()
        self._runs: list[tuple[Path, Path]] = []
        self._thread = threading.Thread(target=self._write, daemon=True)

    def train(self, run: RunDir, number: int) -> None:
        attempt = run.attempt(number, 0)
        shutil.copytree(self.world.attempt.path, attempt.path)
        checkpoint = run.checkpoints / "step-20"
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").write_text("{}")
        self._runs.append((attempt.launcher_alive, attempt.heartbeats))

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._end.set()
            self._thread.join()

    def _write(self) -> None:
        source, due, number = self.world.attempt, time.monotonic(), -1
        while not self._end.wait(max(0.0, due - time.monotonic())):
            due += 1.0
            self.world.go_on(1.0)
            sign, beats = source.launcher_alive.read_bytes(), source.heartbeats.read_bytes()
            new, number = self.world.publisher.number != number, self.world.publisher.number
            for alive, heartbeats in self._runs:
                publish(alive, sign)
                if new:
                    publish(heartbeats, beats)


@dataclass
class Scene:
    """Runs of one user in one state, and Slurm commands that know them."""

    top: Path
    state: str
    runs: int
    made: list[RunDir] = field(default_factory=list)

    def __post_init__(self) -> None:
        answers(self.top / "bin", self.runs, self.state)
        self.env = {**os.environ, "TRANSOM_STATE_DIR": str(self.top / "state"), "MALLOC_ARENA_MAX": "2"}
        self.env |= {"PATH": f"{self.top}/bin:{os.environ['PATH']}", "TRANSOM_ROOT": str(self.top / "runs")}
        registry = Registry(operator_folder(self.env))
        registry.make()
        self.log = registry.log
        self.launchers = Launchers(self.top / "world") if self.state == "training" else None
        for number in range(1, self.runs + 1):
            run = idle_run(self.top / "runs", number, past(self.state, number))
            if self.launchers is not None:
                self.launchers.train(run, number)
            self.made.append(run)
            registry.add(run, Shell(self.env))

    @contextlib.contextmanager
    def operated(self) -> Iterator[psutil.Process]:
        """The process, once it operates all runs."""
        writing = self.launchers.writing() if self.launchers is not None else contextlib.nullcontext()
        with writing, self.log.open("ab") as log:
            argv = own("transom_cli", "operate", "--all")
            process = subprocess.Popen(argv, env=self.env, stdout=log, stderr=log)
            try:
                deadline = time.monotonic() + TAKEN_UP
                waiting = list(self.made)
                while waiting := [run for run in waiting if not _operates(process.pid, run)]:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"the process did not take up {len(waiting)} of {self.runs} runs")
                    time.sleep(0.5)
                yield psutil.Process(process.pid)
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(LEAVES)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    @property
    def calls(self) -> int:
        return len((self.top / "bin" / "calls").read_text().splitlines())

    @property
    def others(self) -> int:
        """How many runs are not in the state that they should be in."""
        return sum(named(fold(run.journal).state) != self.state for run in self.made)


def _operates(pid: int, run: RunDir) -> bool:
    holder = read_holder(run)
    return holder is not None and holder.pid == pid


def file_calls(process: psutil.Process, folder: Path, seconds: float, out: Path) -> dict[str, float] | None:
    """Count the system calls below a folder, a second and run, by name. None: strace is missing, or may not trace.

    Only a few threads are traced. strace could not keep up with all of them, and would slow the process down.
    """
    if shutil.which("strace") is None:
        return None
    threads = [thread.id for thread in process.threads()]
    some = random.Random(1).sample(threads, min(len(threads), THREADS))
    argv = ["strace", "-y", "-qq", "-e", "trace=%file,%desc", "-e", "signal=none", "-o", str(out)]
    tracer = subprocess.Popen([*argv, *(f"--attach={thread}" for thread in some)], stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    ended = tracer.poll() is not None
    tracer.send_signal(signal.SIGINT)
    tracer.wait(60)
    return None if ended else counted(out.read_text(errors="replace"), str(folder), seconds)


def counted(trace: str, folder: str, seconds: float) -> dict[str, float]:
    """Count the lines of a trace that name something below a run's directory: by system call, a second and run."""
    found: dict[str, int] = {}
    runs: set[str] = set()
    for line in trace.splitlines():
        call = line.partition(" ")[2].lstrip()
        run = re.search(rf"{re.escape(folder)}/([^/>\"]+)", call)
        if run is not None and not call.startswith("<..."):  # the second line of a call that was interrupted
            runs.add(run[1])
            name = call.partition("(")[0]
            found[name] = found.get(name, 0) + 1
    return {name: round(count / len(runs) / seconds, 2) for name, count in sorted(found.items())}


def row(state: str, runs: int, seconds: float, folder: str) -> dict[str, Any]:
    """The figures of one process with `runs` runs in this state."""
    top = Path(tempfile.mkdtemp(prefix="tsm-", dir=folder))
    try:
        scene = Scene(top, state, runs)
        with scene.operated() as process:
            time.sleep(CALM)
            began, before, calls = time.monotonic(), process.cpu_times(), scene.calls
            time.sleep(seconds)
            after, took, calls = process.cpu_times(), time.monotonic() - began, scene.calls - calls
            memory, threads = process.memory_full_info(), process.num_threads()
            files = file_calls(process, top / "runs", TRACED, top / "trace")
            others = scene.others
    finally:
        shutil.rmtree(top, ignore_errors=True)  # a Slurm command may still write its count
    cpu = 100 * (sum(after[:4]) - sum(before[:4])) / took  # its own and its children's, user and system
    judged = state == "pending" and runs <= 100
    within = not judged or (memory.rss / 1e6 <= MEMORY and cpu <= CPU)
    return {
        "state": state, "runs": runs, "calls_a_minute": round(60 * calls / took, 1), "cpu_percent": round(cpu, 2),
        "MB": round(memory.rss / 1e6, 1), "uss_MB": round(memory.uss / 1e6, 1), "threads": threads,
        "file_calls": None if files is None else round(sum(files.values()), 1),
        "by_name": files,
        "others": others, "budget": f"{MEMORY:g} MB, {CPU:g} %" if judged else "", "good": within and not others,
    }  # fmt: skip


def rows(
    states: tuple[str, ...], runs: tuple[int, ...], seconds: float, folder: str = "/tmp"
) -> Iterator[dict[str, Any]]:
    for count in runs:
        with ThreadPoolExecutor(len(states) if count <= TOGETHER else 1) as pool:
            yield from pool.map(lambda state: row(state, count, seconds, folder), states)  # noqa: B023


def show(found: dict[str, Any]) -> None:
    files = "-" if found["file_calls"] is None else f"{found['file_calls']:.1f}"
    print(f"{found['state']:<12}{found['runs']:>5}{found['calls_a_minute']:>14.1f}{found['cpu_percent']:>9.2f}", end="")
    print(f"{found['MB']:>9.1f}{found['uss_MB']:>9.1f}{found['threads']:>9}{files:>14}   {found['budget']}", end="")
    print(f"   FAILED: {found['others']} runs in another state" if found["others"] else "", end="")
    print("   EXCEEDED" if not found["good"] and not found["others"] else "", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", default=",".join(STATES), help="separated by commas [all]")
    parser.add_argument("--runs", default="1,100", help="runs of one process, separated by commas [1,100]")
    parser.add_argument("--seconds", type=float, default=60.0, help="for which CPU and calls are measured [60]")
    parser.add_argument("--dir", default="/tmp", help="where the run directories are created for the time [/tmp]")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    asked = parser.parse_args()
    states = tuple(asked.states.split(","))
    if set(states) - set(STATES):
        parser.error(f"the states are {', '.join(STATES)}")
    if not asked.json:
        print(f"{'state':<12}{'runs':>5}{'Slurm calls/min':>15}{'CPU %':>8}{'RSS MB':>9}{'USS MB':>9}", end="")
        print(f"{'threads':>9}{'file calls/s/run':>17}   budget", flush=True)
    found = []
    for one in rows(states, tuple(int(word) for word in asked.runs.split(",")), asked.seconds, asked.dir):
        found.append(one)
        if not asked.json:
            show(one)
    if asked.json:
        print(json.dumps({"schema": 1, "bench": "neighbour_process", "rows": found}))
    elif max(one["runs"] for one in found) < 600:
        print("600 runs: python bench/neighbour_process.py --runs 600 (15 minutes)")
    return 0 if all(one["good"] for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
