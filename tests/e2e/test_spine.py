"""The whole way through on a real Slurm: submit, follow, detect, isolate, requeue with exclusion, resume, done."""

from __future__ import annotations

import json
import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest
from e2e.support import COMMAND, Person, at_step, over

from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.supervise.lease import read_holder

pytestmark = pytest.mark.sandbox


def test_a_healthy_run_ends_with_0_and_no_incident(person: Person) -> None:
    done = person.run("-N", "2", "--", *COMMAND, "--steps", "12")
    assert done.returncode == 0, done.stderr
    view = person.status(person.newest())
    assert (view["phase"], view["step"], view["incidents"], view["starts"]) == ("done", 12, [], 0)
    assert "done" in done.stdout


def test_a_dead_node_is_isolated_and_the_job_requeued_without_it(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "3", "--", *COMMAND, "--steps", "60")
    person.wait(run, at_step(12))
    faults.kill_node(sandbox, "node2")
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["starts"]) == ("done", 60, 1)
    assert [x[0] for x in view["excluded"]] == ["node2"]
    assert view["nodes"] == ["node1", "node3", "node4"]
    (incident,) = view["incidents"]
    assert incident["result"] == "recovered" and "node2 lost" in incident["message"]
    assert [m[1] for m in incident["marks"]].count("isolated") == 1
    assert [m[1] for m in incident["marks"]].count("requeued") == 1
    resumed = (run.attempt(view["job_id"], 1).logs(0) / "rank-0.log").read_text()
    assert "goes on from step" in resumed and "from step 0" not in resumed


@pytest.mark.long
def test_batch_host_dies_and_a_successor_continues(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2", "--set", "detect.node_silent=3", "--", *COMMAND, "--steps", "60")
    first = person.wait(run, at_step(10))
    faults.kill_node(sandbox, "node1")
    view = person.wait(run, over)
    assert view["phase"] == "done" and view["job_id"] != first["job_id"]
    assert [x[0] for x in view["excluded"]] == ["node1"]


def test_a_killed_rank_is_relaunched_in_the_same_allocation(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "50")
    view = person.wait(run, at_step(10))
    faults.kill_rank(sandbox, view["job_id"], 1)
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["starts"], view["excluded"]) == ("done", 50, 0, [])
    (incident,) = view["incidents"]
    assert incident["result"] == "recovered" and "rank 1 on node2 killed by SIGKILL" in incident["message"]
    assert [m[1] for m in incident["marks"]] == ["seen", "examined", "diagnosed", "launched", "first_step"]
    attempt = run.attempt(view["job_id"], 0)
    again = (attempt.logs(1) / "rank-0.log").read_text()
    assert "goes on from step" in again and "from step 0" not in again
    assert {json.loads(line)["launch"] for line in attempt.progress.read_text().splitlines()} == {0, 1}
    told = json.loads(person.transom("goodput", "--json", run.run_id).stdout)
    assert all(one["end_ns"] == other["begin_ns"] for one, other in pairwise(told["spans"]))
    assert {one["cause"] for one in told["causes"]} == {"start", "i1"} and told["seconds"]["productive"] > 0


def test_a_stopped_rank_is_seen_and_relaunched_with_evidence(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2", "--set", "detect.floor=2", "--", *COMMAND, "--steps", "60")
    view = person.wait(run, at_step(15))
    faults.stop_rank(sandbox, view["job_id"], 1)
    view = person.wait(run, over)
    assert (view["phase"], view["starts"], view["excluded"]) == ("done", 0, [])
    (incident,) = view["incidents"]
    assert "node2 stand" in incident["message"]
    told = [m[2] for m in incident["marks"] if m[1] == "evidence"]
    assert told[0].startswith("non-communication hang: rank 1 is stopped (state T"), told
    assert "(on node2)" in told[0], told
    assert any("rank 1 on node2, state T" in line for line in told), told
    assert any("rank 0 on node1" in line for line in told), told
    folder = run.attempt(view["job_id"], 0).evidence("l1")
    assert " meet (" in (folder / "rank-0.stack.txt").read_text(), "where it waits for the other one"
    assert {p.name for p in folder.iterdir()} >= {"rank-0.proc.json", "rank-0.stack.txt", "rank-1.proc.json"}


@pytest.mark.long
@pytest.mark.parametrize(("how", "where"), [("spin", "trainer.py"), ("read", "read")])
def test_hung_rank_is_detected_by_its_silence(person: Person, how: str, where: str) -> None:
    """An endless loop and a read that nobody answers: no process is stopped, none is dead."""
    hang = ("--end", how, "--rank", "1", "--at", "150")
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "170", *hang)
    view = person.wait(run, over, patience=150)
    assert (view["phase"], view["starts"], view["excluded"]) == ("done", 0, [])
    (incident,) = view["incidents"]
    assert "no rank has stepped since step 14" in incident["message"]
    (seen,) = [m[2] for m in incident["marks"] if m[1] == "seen"]
    limit = float(seen.partition("(limit ")[2].split()[0])
    quiet_for = float(seen.partition("no step for ")[2].split()[0])
    assert 10.0 <= limit <= quiet_for <= limit + 10.0, seen
    stack = (run.attempt(view["job_id"], 0).evidence("l1") / "rank-1.stack.txt").read_text()
    assert where in stack and "<module>" in stack


@pytest.mark.long
def test_without_an_operator_the_launcher_relaunches_all_the_same(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "80")
    view = person.wait(run, at_step(10))
    holder = read_holder(run)
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    faults.kill_rank(sandbox, view["job_id"], 0)
    person.wait(run, lambda _: (run.attempt(view["job_id"], 0).logs(1) / "rank-0.log").exists())
    person.transom("attach", "--detach", run.run_id)
    view = person.wait(run, over)
    assert (view["phase"], view["starts"]) == ("done", 0)
    assert "rank 0 on node1 killed by SIGKILL" in view["incidents"][0]["message"]


@pytest.mark.long
def test_a_node_on_which_ranks_die_again_is_left_to_the_operator(person: Person) -> None:
    """The second death of a rank on the same node: the operator keeps the run away from it for a while."""
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "30", "--end", "SIGSEGV", "--at", "12", "--rank", "1")
    view = person.wait(run, over)
    assert (view["phase"], view["starts"]) == ("done", 0)
    words = ("--steps", "30", "--end", "SIGSEGV", "--at", "12", "--rank", "1", "--always")
    run = person.start("-N", "2", "--", *COMMAND, *words)
    view = person.wait(run, lambda v: bool(v["excluded"]) or v["over"])
    assert [x[0] for x in view["excluded"]] == ["node2"]
    assert person.transom("stop", run.run_id).returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--end", "error", "--at", "1", "--always"), 1, "ValueError: a wrong shape"),
        (("--end", "15", "--at", "1"), 15, "none of them restores"),
        pytest.param(("--nonsense",), 1, "unrecognized arguments: --nonsense", marks=pytest.mark.long),
        pytest.param(("--end", "93", "--at", "8"), 1, "93: do not restart", marks=pytest.mark.long),
    ],
)
def test_what_a_restart_would_not_mend_is_not_restarted(
    person: Person, words: tuple[str, ...], code: int, says: str
) -> None:
    done = person.run("-N", "2", "--", *COMMAND, *words)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert person.status(person.newest())["starts"] == 0


@pytest.mark.long
def test_a_crash_loop_without_progress_stops(person: Person) -> None:
    settings = ("--set", "restart.max_without_progress=1", "--set", "restart.backoff=0.5")
    settings += ("--set", "restart.relaunches=0")
    done = person.run("-N", "1", *settings, "--", *COMMAND, "--end", "SIGSEGV", "--at", "8", "--always")
    assert done.returncode == 21, done.stderr
    assert "without progress beyond step 5" in done.stderr
    assert person.status(person.newest())["starts"] == 2


def test_stop_cancels_the_job(person: Person) -> None:
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "2000")
    person.wait(run, at_step(3))
    assert person.transom("stop", run.run_id).returncode == 0
    view = person.status(run)
    assert (view["phase"], view["exit_code"], view["starts"]) == ("stopped", 130, 0)


@pytest.mark.long
def test_external_requeue_is_followed_without_slurms_delay(person: Person, sandbox: Sandbox) -> None:
    """Within the patience of `wait`, which is shorter than the two minutes of Slurm's own delay."""
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "40")
    view = person.wait(run, at_step(10))
    sandbox.slurm("scontrol", "requeue", str(view["job_id"]))
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["starts"], view["excluded"]) == ("done", 40, 1, [])
    assert "requeued the job without transom" in str(view["incidents"][0]["marks"])


def test_scancel_is_a_stop_and_not_a_fault(person: Person, sandbox: Sandbox) -> None:
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "2000")
    view = person.wait(run, at_step(3))
    sandbox.slurm("scancel", str(view["job_id"]))
    view = person.wait(run, over)
    assert (view["phase"], view["starts"]) == ("stopped", 0)
    assert "scancel" in view["verdict"]


@pytest.mark.long
def test_an_unmodified_script_is_followed_and_requeued(person: Person, sandbox: Sandbox, tmp_path: Path) -> None:
    script = tmp_path / "my train.sbatch"
    trainer = " ".join(f"'{w}'" for w in (*COMMAND, "--steps", "60"))
    script.write_text(f"#!/bin/bash\n#SBATCH -N 3 --ntasks-per-node=1\nsrun --kill-on-bad-exit=1 {trainer}\n")
    run = person.start(str(script))
    person.wait(run, at_step(12))
    faults.kill_node(sandbox, "node3")
    view = person.wait(run, over)
    assert (view["phase"], view["step"], view["starts"]) == ("done", 60, 1)
    assert [x[0] for x in view["excluded"]] == ["node3"]


def test_torchrun_starts_the_ranks(person: Person) -> None:
    pytest.importorskip("torch")
    words = ("--torchrun", "--tasks-per-node", "2", "-N", "2", "--", str(Path(COMMAND[1])), "--steps", "8")
    done = person.run(*words, timeout=150)
    assert done.returncode == 0, done.stderr
    assert person.status(person.newest())["step"] == 8


def test_paths_with_spaces_quotes_and_newlines(person: Person) -> None:
    person.root = person.root.with_name('it\'s a "run" root')
    done = person.run("-N", "1", "--name", "odd", "--", *COMMAND, "--steps", "6", "--quiet-words", "a\n'b' \"c\"")
    assert done.returncode == 0, done.stderr
    assert person.status(person.newest())["step"] == 6


@pytest.mark.long
def test_a_second_operator_is_refused_and_attach_watches(person: Person) -> None:
    run = person.start("-N", "1", "--", *COMMAND, "--steps", "80")
    person.wait(run, at_step(3))
    refused = person.transom("operate", "--run-dir", str(run.path))
    assert refused.returncode == 11, refused.stderr
    assert "has a live operator" in refused.stderr
    assert person.transom("attach", run.run_id).returncode == 0


def test_unknown_partition_quotes_slurm(person: Person) -> None:
    done = person.run("-N", "1", "-p", "nowhere", "--", *COMMAND)
    assert done.returncode == 2 and "the partitions are: debug" in done.stderr
    done = person.run("-N", "1", "-p", "nowhere", "--force", "--", *COMMAND)
    assert done.returncode == 1
    assert "invalid partition specified: nowhere" in done.stderr
