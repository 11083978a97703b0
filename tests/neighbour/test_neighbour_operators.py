"""One process for all runs of a user: what happens to one run disturbs no other, and a killed process is replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from neighbour_process import answers, idle_run

from transom_cli.bootstrap.slurm import SlurmClients, operator_slurm
from transom_cli.config.model import SlurmCalls
from transom_cli.core.operator.state import Phase
from transom_cli.layout import RunDir
from transom_cli.slurm.port import Submission
from transom_cli.slurm.runner import Runner
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.journal import fold
from transom_cli.supervise.lease import Holder, Lease, operator_alive, read_holder
from transom_cli.supervise.operator.process import register_live
from transom_cli.supervise.operator.registry import Registry, Shell, operator_folder

PATIENCE = 60.0


def until(ready: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@dataclass
class Scene:
    """A user with waiting runs, before Slurm commands that answer from files."""

    folder: Path
    env: dict[str, str]
    registry: Registry
    processes: list[subprocess.Popen[bytes]]

    def run(self, number: int) -> RunDir:
        run = idle_run(self.folder / "runs", number)
        self.registry.add(run, Shell(self.env))
        return run

    def operate(self, *words: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "transom_cli", "operate", "--all", *words]
        self.processes.append(subprocess.Popen(argv, env=self.env, stderr=(self.folder / "log").open("ab")))
        return self.processes[-1]

    def operated(self, run: RunDir) -> bool:
        """Its operator is the newest process."""
        holder = read_holder(run)
        return holder is not None and holder.pid == self.processes[-1].pid and not holder.released

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    answers(tmp_path / "bin", 3)
    scancel = tmp_path / "bin" / "scancel"
    scancel.write_text("#!/bin/sh\n")
    scancel.chmod(0o755)
    env = {**os.environ, "TRANSOM_STATE_DIR": str(tmp_path / "state"), "TRANSOM_ROOT": str(tmp_path / "runs")}
    env["PATH"] = f"{tmp_path}/bin:{env['PATH']}"
    registry = Registry(operator_folder(env))
    assert registry.make()
    made = Scene(tmp_path, env, registry, [])
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def test_a_damaged_run_and_one_that_hangs_disturb_no_other(scene: Scene) -> None:
    damaged, hangs, good = scene.run(1), scene.run(2), scene.run(3)
    damaged.journal.write_text("no journal\n")
    hangs.journal.unlink()
    os.mkfifo(hangs.journal)  # nobody writes: opening it hangs, as a file on a server that does not respond
    process = scene.operate()
    until(lambda: scene.operated(good))
    until(lambda: "is not a journal" in damaged.operator_log.read_text())
    until(lambda: fold(good.journal).state.job.state == "PENDING")
    assert process.poll() is None and not scene.operated(hangs)


def test_a_killed_process_is_replaced_and_its_runs_continue(scene: Scene) -> None:
    runs = [scene.run(number) for number in (1, 2)]
    scene.operate()
    until(lambda: all(map(scene.operated, runs)))
    scene.processes[0].send_signal(signal.SIGKILL)
    scene.processes[0].wait()
    assert [operator_alive(run) for run in runs] == [None, None]
    assert scene.registry.process() is None
    scene.operate()
    until(lambda: all(map(scene.operated, runs)))
    assert scene.registry.process() == scene.processes[-1].pid


def test_runs_whose_entries_are_lost_are_found_in_the_root(scene: Scene) -> None:
    run = idle_run(scene.folder / "runs", 1)
    lease = Lease.take(run)
    dead = {**json.loads(run.lease.read_text()), "start": 1}
    run.lease.write_text(json.dumps(dead))
    scene.operate()
    until(lambda: scene.operated(run))
    assert lease.fenced()


def test_to_stop_one_run_does_not_end_the_others(scene: Scene) -> None:
    stopped, other = scene.run(1), scene.run(2)
    scene.operate()
    until(lambda: scene.operated(stopped) and scene.operated(other))
    (stopped.requests / "stop-1.json").write_text('{"ask": "stop", "who": "a test"}')
    until(lambda: fold(stopped.journal).state.phase is Phase.STOPPING)
    assert scene.operated(other) and fold(other.journal).state.phase is Phase.PENDING


def test_a_second_process_is_refused(scene: Scene) -> None:
    run = scene.run(1)
    first = scene.operate()
    until(lambda: scene.operated(run))
    assert scene.operate().wait(PATIENCE) == 11
    assert f"process {first.pid}" in scene.log


def test_term_ends_the_process_and_keeps_its_runs_registered(scene: Scene) -> None:
    run = scene.run(1)
    process = scene.operate()
    until(lambda: scene.operated(run))
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    holder = read_holder(run)
    assert holder is not None and holder.released
    assert [entry.run for entry in scene.registry.entries()] == [run]


def test_without_runs_a_process_in_the_background_ends(scene: Scene) -> None:
    gone = scene.run(1)
    for path in sorted(gone.path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    gone.path.rmdir()
    assert scene.operate("--idle-exit").wait(PATIENCE) == 0
    assert scene.registry.names() == []


def test_each_runs_jobs_get_the_environment_and_umask_of_its_own_shell(scene: Scene) -> None:
    sbatch = scene.folder / "bin" / "sbatch"
    sbatch.write_text('#!/bin/sh\numask >&2\necho "$SHELL_NAME:$(umask)" >>"$0.log"\necho 7\n')
    sbatch.chmod(0o755)
    clients, record, calls = SlurmClients(), SubmissionRecord(), SlurmCalls()
    for name, umask in (("first", 0o027), ("second", 0o002)):
        env = {**scene.env, "SHELL_NAME": name}
        shared = clients.of(record, calls, env)
        slurm = operator_slurm(record, shared, Runner(env=env, umask=umask))
        assert slurm.submit(Submission(scene.folder / "x")) == 7
    assert clients.of(record, calls, scene.env) is shared, "both share what is not their own"
    assert (scene.folder / "bin" / "sbatch.log").read_text().split() == ["first:0027", "second:0002"]


def test_a_lease_of_this_process_counts_only_while_it_is_held(tmp_path: Path) -> None:
    """One run's operator may fail in a process that lives on; the lease file may then not be writable."""
    run = idle_run(tmp_path, 1)
    lease = Lease.take(run)
    assert operator_alive(run) is not None
    text = run.lease.read_text()
    lease.give_up()
    run.lease.write_text(text)  # as if the last write had failed
    assert operator_alive(run) is None


def test_run_whose_operator_on_another_host_stops_renewing_is_taken_up(scene: Scene) -> None:
    run = idle_run(scene.folder / "runs", 1)
    Lease.take(run)
    seen: dict[Path, Holder] = {}

    def renewed(renewals: int) -> list[str]:
        elsewhere = {**json.loads(run.lease.read_text()), "boot": "another", "renewals": renewals}
        run.lease.write_text(json.dumps(elsewhere))
        register_live(scene.registry, scene.folder / "runs", seen)
        return scene.registry.names()

    assert renewed(1) == [] and renewed(2) == [], "it is alive, or was not looked at before"
    assert len(renewed(2)) == 1
