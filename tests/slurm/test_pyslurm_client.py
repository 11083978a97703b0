"""The adapter on pyslurm where pyslurm misbehaves: workers that exit, hang, die, answer nonsense."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_fake import FakeSlurm

from transom_cli.slurm.port import JobState, NoSuchJob, SlurmDenied, SlurmRefused, SlurmUnknown, Submission
from transom_cli.slurm.pyslurm import client as client_module
from transom_cli.slurm.pyslurm.client import PySlurm, try_out, why_unfit
from transom_cli.slurm.pyslurm.process import Worker, WorkerLost
from transom_cli.slurm.runner import Runner

JOB = {
    "Id": 7, "State": "RUNNING", "Reason": "None", "Priority": 1, "Used": "0-00:00:10", "Start": "2026-01-01T00:00:00",
    "End": "Unknown", "Restarts": 2, "Requeue": "1", "Nodes": "gpu[1-2]", "BatchHost": "gpu1", "NumNodes": 2,
    "Name": "a\nb", "Comment": "transom:r1 x=y", "Partition": "main", "User": "ann", "Exit": [0, 0],
    "Excluded": "gpu3", "CpusPerTask": 4,
}  # fmt: skip
NODE = {
    "NodeName": "gpu1",
    "State": "IDLE+DRAIN",
    "NodeAddr": "10.0.0.1",
    "Port": "6818",
    "Reason": "r",
    "ReasonUser": "u",
}
WELL = {
    "hello": {"value": {"pyslurm": "25.11.2", "python": "3.14"}},
    "cluster": {"value": {"release": "26.05.5", "name": "alps"}},
    "jobs": {"value": {"mine": [JOB], "of": 9}},
    "job": {"value": JOB},
    "nodes": {"value": [NODE]},
}
# What a worker does with a question: `call`, its answer if all is well in `well`, the count of the process's questions.
BODY = """
import json, os, signal, sys, time
well = json.loads({well!r})
for count, line in enumerate(sys.stdin):
    call = json.loads(line)["call"]
{act}
    print(json.dumps(well.get(call, {{"value": None}})), flush=True)
"""
EXITS = "    sys.stderr.write('fatal: no \\x1b[31mconfiguration\\n'); sys.exit(1)"
HANGS = "    time.sleep(600)"
SEGFAULTS = "    os.kill(os.getpid(), signal.SIGSEGV)"
GARBAGE = "    print('slurm: hello', flush=True); continue"
NO_ANSWER = "    print('[]', flush=True); continue"
BYTES = "    os.write(1, b'\\xff\\xfe\\n'); continue"
HANGS_LATER = "    if call != 'hello': time.sleep(600)"
BAD = [EXITS, HANGS_LATER, SEGFAULTS, GARBAGE, NO_ANSWER, BYTES]
NAMES = ["exits", "hangs", "segfaults", "garbage", "no answer", "bytes"]

Make = Callable[..., PySlurm]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """A client whose worker behaves as told, and whose command line is a made-up cluster with job 1 on it."""
    made = []

    def make(act: str = "", answers: dict[str, object] | None = None, **options: bool) -> PySlurm:
        script = tmp_path / "worker.py"
        script.write_text(BODY.format(well=json.dumps({**WELL, **(answers or {})}), act=act))
        monkeypatch.setattr(client_module, "_WORKER", script)
        client = PySlurm(
            sys.executable, Runner(timeout=0.3 if act == HANGS else 2.0 if act == HANGS_LATER else 5.0), **options
        )
        fake = FakeSlurm()
        (tmp_path / "x.sbatch").touch()
        fake.submit(Submission(tmp_path / "x.sbatch", ("--nodes=1",)))
        monkeypatch.setattr(client, "_cli", fake)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


def test_pyslurm_answers_parse_like_command_output(make: Make) -> None:
    client = make()
    (job,) = client.jobs()
    assert (job.job_id, job.state, job.nodes, job.restarts) == (7, JobState.RUNNING, ("gpu1", "gpu2"), 2)
    assert (job.name, job.comment, job.held, job.exit_code) == ("a\nb", "transom:r1 x=y", False, None)
    one = client.job(7)
    assert (one.excluded, one.cpus_per_task, one.start) == (("gpu3",), 4, "")
    (node,) = client.nodes(["gpu1"])
    assert (node.name, node.state, node.drain, node.reason, node.port) == ("gpu1", "idle", True, "r", 6818)
    assert client.detours == {} and client.given_up == ""


def test_on_a_crowded_cluster_squeue_lists_our_jobs(make: Make) -> None:
    client = make(answers={"jobs": {"value": {"mine": [JOB], "of": 4000}}})
    assert [client.jobs()[0].job_id for _ in range(3)] == [7, 1, 1]
    assert "jobs of all users" in client.detours["jobs"] and client.job(7).job_id == 7


@pytest.mark.parametrize("act", BAD, ids=NAMES)
def test_a_worker_that_fails_costs_a_detour_and_after_three_in_a_row_pyslurm_is_left(make: Make, act: str) -> None:
    client = make(act)
    for requested in range(3):
        assert client.given_up == "", requested
        assert [job.job_id for job in client.jobs()] == [1]
    assert "(3 times in a row)" in client.given_up
    assert "\x1b" not in client.given_up
    client.cancel(1)
    assert client.job(1).state is JobState.CANCELLED, "the order has been carried out by the commands"


def test_worker_that_hangs_at_start_is_not_tried_again(make: Make) -> None:
    """A controller that does not give the first answer is not asked for more."""
    client = make(HANGS)
    assert [job.job_id for job in client.jobs()] == [1]
    assert "within 0.3 s, at its start" in client.given_up
    with pytest.raises(SlurmUnknown, match="does not work here"):
        make(HANGS).versions()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (EXITS, "ended with exit status 1: fatal: no"),
        (HANGS, "did not answer within 0.3 s"),
        (SEGFAULTS, "died of SIGSEGV"),
        (GARBAGE, "returned an invalid answer"),
    ],
    ids=["exits", "hangs", "segfaults", "garbage"],
)
def test_why_a_call_went_by_the_commands_is_kept(make: Make, act: str, words: str) -> None:
    client = make(act)
    client.jobs()
    assert words in client.detours["jobs"]


def test_crashed_worker_is_restarted(make: Make) -> None:
    client = make("    if count == 3: os.kill(os.getpid(), signal.SIGSEGV)", any_release=True)
    seen = [client.jobs()[0].job_id for _ in range(12)]
    assert seen.count(1) == 3 and client.given_up == "", "each fourth question by the commands, all others by pyslurm"


def test_what_libslurm_complains_of_for_days_does_not_stop_the_worker(make: Make) -> None:
    """Python itself would raise at a full pipe that does not block; libslurm, in C, drops its words."""
    client = make("    os.set_blocking(2, False)\n    for _ in range(99):\n        try: os.write(2, b'x' * 4096)\n"
                  "        except BlockingIOError: break", any_release=True)  # fmt: skip
    assert [client.jobs()[0].job_id for _ in range(3)] == [7, 7, 7]


def test_what_slurm_says_through_pyslurm_is_slurms_answer(make: Make) -> None:
    client = make(answers={
        "job": {"error": "Invalid job id specified"},
        "update_node": {"error": "Invalid user id"},
        "update": {"error": "Job is no longer pending execution"},
        "release": {"error": "Zero Bytes were transmitted or received"},
        "requeue": {"error": "Job is pending execution"},
        "cancel": {"error": "Invalid job id specified"},
        "nodes": {"value": [{**NODE, "State": "IDLE"}]},
    })  # fmt: skip
    with pytest.raises(NoSuchJob):
        client.job(9)
    with pytest.raises(SlurmDenied, match="refused"):
        client.drain("gpu1", "why")
    with pytest.raises(SlurmRefused, match="refused"):
        client.update_pending(1, exclude=["gpu1"])
    with pytest.raises(SlurmUnknown):
        client.release(1)
    client.requeue_hold(1), client.start_now(1), client.cancel(1)
    assert client.detours == {} and not client._cli.job(1).held  # type: ignore[attr-defined]


def test_what_pyslurm_lacks_goes_by_the_commands(make: Make, tmp_path: Path) -> None:
    client = make(answers={"jobs": {"lacks": "no \x1bexit code"}})
    assert [job.job_id for job in client.jobs()] == [1] and client.detours["jobs"] == "no  exit code"
    assert client.submit(Submission(tmp_path / "x.sbatch", ("--nodes=1",))) == 2
    node = client._cli.nodes()[0].name
    client.update_pending(1, exclude=[])
    client.update_pending(1, exclude=[node], num_nodes=2)
    assert client._cli.job(1).excluded == (node,)
    assert client.detours.keys() == {"jobs", "update_pending"} and client.given_up == ""


@pytest.mark.parametrize(
    ("release", "by"), [("26.05.5", 7), ("25.11.0", 7), ("24.11.5", 1), ("27.05.0", 1), ("odd", 1)]
)
def test_only_where_it_fits_the_clusters_release(make: Make, release: str, by: int) -> None:
    client = make(answers={"cluster": {"value": {"release": release, "name": "alps"}}})
    assert client.jobs()[0].job_id == by
    assert (client.given_up == "") is (by == 7)
    assert make(answers={"cluster": {"value": {"release": release}}}, any_release=True).jobs()[0].job_id == 7


def test_a_controller_that_does_not_answer_leaves_the_choice_open(make: Make) -> None:
    away = {"cluster": {"error": "Unable to contact slurm controller (connect failure)"}}
    client = make("    if os.path.exists('/nonexistent'): pass", away)
    with pytest.raises(SlurmUnknown):
        client.jobs()
    assert client.given_up == ""


def test_versions_that_fit() -> None:
    assert why_unfit("25.11.2", "25.11.7") == why_unfit("25.11.2", "26.05.5") == why_unfit("24.5.1", "24.05.3") == ""
    assert "another release" in why_unfit("25.11.2", "24.11.5")
    assert why_unfit("", "") != "" and why_unfit("x", "x") != ""


def test_the_doctor_hears_what_works_and_what_does_not(make: Make) -> None:
    well = try_out(make())
    assert well.works == "25.11.2 on Python 3.14, with Slurm 26.05.5: 1 job of yours"
    assert well.detours.keys() == {"submit", "history"}
    assert "died of SIGSEGV" in try_out(make(SEGFAULTS)).why_not
    other = try_out(make(answers={"cluster": {"value": {"release": "24.11.5", "name": "alps"}}}))
    assert not other.works and "another release" in other.why_not


def test_missing_pyslurm_python(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    client = make()
    monkeypatch.setattr(client._worker, "argv", ["/nonexistent/python"])
    assert client.jobs()[0].job_id == 1
    assert "could not be started" in client.detours["jobs"]


@given(st.binary(max_size=300))
def test_any_bytes_for_an_answer_are_an_answer_or_a_lost_worker(data: bytes) -> None:
    """The worker ends after them: nobody waits for what does not come."""
    script = f"import os, sys; sys.stdin.readline(); os.write(1, {data!r})"
    worker = Worker([sys.executable, "-S", "-E", "-c", script], {})
    try:
        answer = worker.ask("jobs", {}, 20.0)
    except WorkerLost as error:
        assert str(error)
    else:
        assert len(answer.keys() & {"value", "error", "lacks"}) == 1
    finally:
        worker.end()
