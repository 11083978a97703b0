"""Accounting on a real slurmdbd: a run's own record of its attempts beside it, and a job that Slurm has forgotten."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.support import COMMAND, Person, at_step, over
from slurm_support import release_home, require_slurm

from transom_cli.errors import TransomError
from transom_cli.layout import RunDir
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec
from transom_cli.supervise.lease import read_holder

pytestmark = pytest.mark.sandbox

Attempts = list[dict[str, Any]]


@pytest.fixture(scope="module")
def accounted(short_dir: Path) -> Iterator[Sandbox]:
    """Where an ended job is forgotten within seconds, in place of Slurm's 300."""
    require_slurm(accounting=True)
    spec = SandboxSpec(short_dir / "ac", accounting=True, home=release_home(), extra={"MinJobAge": "2"})
    cluster = Sandbox.up(spec)
    yield cluster
    cluster.down()


@pytest.fixture
def somebody(accounted: Sandbox, short_dir: Path, tmp_path: Path) -> Iterator[Person]:
    root, state = short_dir / f"runs-{tmp_path.name}", short_dir / f"state-{tmp_path.name}"
    faults.heal(accounted)
    env = {**accounted.env(), "TRANSOM_STATE_DIR": str(state), "TRANSOM_HEALTH__PROBE": "false"}
    yield Person(env, root, tmp_path)
    for path in root.iterdir() if root.is_dir() else ():
        kill_operator(RunDir(path))


def kill_operator(run: RunDir) -> None:
    holder = read_holder(run)
    if holder is not None and holder.here() and holder.alive_here():
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGKILL)


def until(ready: Callable[[], bool], what: str, patience: float = 90.0) -> None:
    deadline = time.monotonic() + patience
    while not ready():
        assert time.monotonic() < deadline, what
        time.sleep(0.3)


def attempts(person: Person, run: RunDir) -> tuple[bool, Attempts]:
    """Whether accounting answered, and the attempts."""
    done = person.transom("attempts", "--json", run.run_id)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    return told["accounting"], told["attempts"]


def forget(sandbox: Sandbox, job_id: int) -> None:
    """Until slurmctld does not know it any more."""

    def forgotten() -> bool:
        try:
            sandbox.slurm("scontrol", "show", "job", str(job_id))
        except TransomError:
            return True
        return False

    until(forgotten, f"job {job_id} is not forgotten")


def left_alone(person: Person, accounted: Sandbox, *words: str) -> tuple[RunDir, int]:
    """A run whose operator is gone, and whose job a person has cancelled since: Slurm does not know it any more."""
    run = person.start("-N", "2", *words, "--", *COMMAND, "--steps", "60")
    job_id = person.wait(run, at_step(10))["job_id"]
    kill_operator(run)
    accounted.slurm("scancel", str(job_id))
    forget(accounted, job_id)
    run.job_log(job_id).unlink()  # its own words would do; a script's output may be anywhere
    return run, job_id


@pytest.mark.long
def test_the_runs_own_record_and_accounting_agree(somebody: Person, accounted: Sandbox, tmp_path: Path) -> None:
    """A killed rank (the ranks are launched again in the same start), then a dead node (a second start)."""
    run = somebody.start("-N", "3", "--", *COMMAND, "--steps", "160")
    job_id = somebody.wait(run, at_step(10))["job_id"]
    faults.kill_rank(accounted, job_id, 1)
    again = run.attempt(job_id, 0).logs(1) / "rank-0.log"
    until(again.exists, "it was not launched again")
    before = somebody.status(run)["step"]
    somebody.wait(run, at_step(before + 10))
    faults.kill_node(accounted, "node2")
    view = somebody.wait(run, over)
    assert (view["phase"], view["starts"], view["job_id"]) == ("done", 1, job_id)

    def told() -> bool:
        return all(one["slurm"] and one["slurm"]["ended"] for one in attempts(somebody, run)[1])

    until(told, "accounting has not heard of it")
    answered, (first, second) = attempts(somebody, run)
    assert answered and (first["attempt"], second["attempt"]) == (f"{job_id}.0", f"{job_id}.1")
    assert (first["differences"], second["differences"]) == ([], []), (first, second)
    old = "22.05" in accounted.slurm("sinfo", "--version")  # it keeps no end of a start that was shrunk off a dead node
    assert [one["slurm"]["state"] for one in (first, second)] == ["RESIZED" if old else "REQUEUED", "COMPLETED"]
    assert first["slurm"]["nodes"] == first["nodes"] == ["node1", "node2", "node3"]
    assert second["nodes"] == ["node1", "node3", "node4"] and second["slurm"]["nodes"] in ([], second["nodes"])
    assert [len(one["launches"]) for one in (first, second)] == [2, 1]
    assert "node2 lost" in first["incident_words"] and (first["incident"], second["incident"]) == ("i2", "")
    for one, restarts in ((first, 0), (second, 1)):
        written = json.loads(run.attempt(job_id, restarts).outcome.read_text())
        assert (one["status"], one["message"], one["nodes"]) == (written["status"], written["why"], written["nodes"])
        assert one["slurm"]["began"] <= one["began"] + 2 and one["ended"] <= one["slurm"]["ended"] + 2

    conf = (accounted.dir / "slurm.conf").read_text().splitlines()
    bare = tmp_path / "slurm.conf"
    bare.write_text("".join(f"{row}\n" for row in conf if not row.startswith("AccountingStorage")))
    without = Person({**somebody.env, "SLURM_CONF": str(bare)}, somebody.root, tmp_path)
    answered, alone = attempts(without, run)
    assert not answered and alone == [{**one, "slurm": None} for one in (first, second)]
    screen = without.transom("attempts", run.run_id)
    assert "no answer from Slurm's accounting: " in screen.stdout and "storage is disabled" in screen.stdout
    assert "RESIZED" not in screen.stdout and "done: every rank ended with exit code 0" in screen.stdout


@pytest.mark.long
def test_a_cancelled_job_that_slurm_has_forgotten_stays_cancelled(somebody: Person, accounted: Sandbox) -> None:
    run, job_id = left_alone(somebody, accounted)
    assert somebody.transom("attach", "--detach", run.run_id).returncode == 0
    view = somebody.wait(run, over)
    assert (view["phase"], view["exit_code"], view["starts"], view["job_id"]) == ("stopped", 130, 0, job_id)
    assert view["verdict"].startswith("the job was cancelled in Slurm by ")
    assert view["verdict"].endswith("(scancel), according to accounting")
    assert accounted.slurm("squeue", "-h", "--states=all", "-o", "%A") == ""
    (one,) = attempts(somebody, run)[1]
    assert (one["status"], one["slurm"]["state"], one["differences"]) == ("stopped", "CANCELLED", [])


@pytest.mark.long
def test_accounting_that_does_not_answer_keeps_no_run_from_going_on(somebody: Person, accounted: Sandbox) -> None:
    """It is asked once, with a deadline; then a successor goes on, as where there is no accounting."""
    run, job_id = left_alone(somebody, accounted, "--set", "slurm.timeout=5")
    (pid,) = (daemon.pid for daemon in accounted.daemons() if daemon.name == "slurmdbd")
    os.kill(pid, signal.SIGSTOP)
    try:
        assert somebody.transom("attach", "--detach", run.run_id).returncode == 0
        view = somebody.wait(run, lambda v: v["job_id"] != job_id and v["step"] > 10)
    finally:
        os.kill(pid, signal.SIGCONT)
    view = somebody.wait(run, over)
    assert (view["phase"], view["starts"]) == ("done", 1)
