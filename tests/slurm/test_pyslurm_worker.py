"""The worker as it is, with a made-up `pyslurm` in place of the real one: what it makes of pyslurm's traps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from transom_cli.slurm.port import JobState, SlurmDenied, SlurmRefused
from transom_cli.slurm.pyslurm.client import PySlurm
from transom_cli.slurm.pyslurm.process import Worker, WorkerLost
from transom_cli.slurm.runner import Runner

MADE_UP = """
import ctypes, os, types

__version__ = "25.11.2"
assert os.environ["PYSLURM_DISABLE_AUTO_INIT"] == "1"
print("a plugin speaks on stdout")
DONE = []

class RPCError(Exception):
    def __init__(self, errno=None, msg=""):
        super().__init__(msg)
        self.errno = errno

def slurm_init():
    if os.environ.get("SLURM_CONF") == "/nonexistent":
        os.write(2, b"fatal: Could not establish a configuration source\\n")
        os._exit(1)

def made(job_id, **other):
    told = dict(id=job_id, user_id=os.getuid(), user_name="ann", state="RUNNING", state_reason="None", priority=1,
        run_time=90061, start_time=1767225600, end_time=6090327866, requeue_count=1, is_requeueable=True,
        allocated_nodes="gpu[1-2]", batch_host="gpu1", num_nodes=2, name="a", comment=None, partition="main",
        exit_code=0, exit_code_signal=0, excluded_nodes=None, cpus_per_task=None)
    return types.SimpleNamespace(**{**told, **other})

JOBS = {1: made(1), 2: made(2, user_id=os.getuid() + 1), 3: made(3, state="FAILED", exit_code=9)}
ODD = {4: made(4, priority=None), 5: made(5, state="COMPLETING", state_reason="NonZeroExitCode"),
       6: made(6, state="PENDING", priority=0, state_reason="job requeued in held state", allocated_nodes=None,
               batch_host=None, run_time=0, name="b\\x1f\\nc", comment="x")}

class Jobs:
    @staticmethod
    def load():
        os.write(1, b"libslurm speaks too\\n")
        return {i: job for i, job in JOBS.items() if i != 3}

class Job:
    def __init__(self, job_id):
        self.id = job_id
    @staticmethod
    def load(job_id):
        if job_id == 7:
            return types.SimpleNamespace(state="RUNNING")
        if job_id not in {**JOBS, **ODD}:
            raise RPCError(2017, "Invalid job id specified")
        return {**JOBS, **ODD}[job_id]
    def cancel(self):
        location = getattr(ctypes.CDLL(None), "__errno_location")
        location.restype = ctypes.POINTER(ctypes.c_int)
        if location()[0]:
            raise RPCError(location()[0], "an errno that was there before")
        if self.id == 8:
            raise RPCError(115, "Operation now in progress")
        if self.id == 9:
            raise RPCError(2029, "Job can not be altered now, try again later")
        DONE.append((self.id, "cancel"))
    def modify(self, changes):
        DONE.append((self.id, changes))
        if "required_nodes" in changes:
            raise RPCError(2010, "Invalid user id")
    def release(self):
        raise RPCError(1, "done: " + repr(DONE))

def JobSubmitDescription(**changes):
    return changes

class Node:
    def __init__(self, name):
        self.name, self.state, self.address, self.slurmd_port = name, "IDLE", None, None
        self.reason, self.reason_user = None, "root"
    @staticmethod
    def load(name):
        if name == "gone":
            raise RPCError(-1, f"Node '{name}' does not exist")
        return Node(name)

class Nodes:
    @staticmethod
    def load():
        return {f"gpu{i}": Node(f"gpu{i}") for i in range(9)}
"""
Ask = Callable[..., dict[str, object]]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[PySlurm]:
    (tmp_path / "pyslurm").mkdir()
    (tmp_path / "pyslurm" / "__init__.py").write_text(MADE_UP)
    made = PySlurm(sys.executable, Runner(env={"PYTHONPATH": str(tmp_path)}), any_release=True)
    yield made
    made.close()


@pytest.fixture
def ask(client: PySlurm) -> Ask:
    return lambda call, **given: client._worker.ask(call, given, 30.0)


def test_stray_output_does_not_disturb_answers(client: PySlurm) -> None:
    (job,) = client.jobs()
    assert (job.job_id, job.state, job.nodes, job.user) == (1, JobState.RUNNING, ("gpu1", "gpu2"), "ann")
    assert client.job(1).cpus_per_task == 1 and client.detours == {}


def test_times_and_texts_match_the_commands_output(ask: Ask, client: PySlurm) -> None:
    found = ask("job", job_id=1)["value"]
    assert isinstance(found, dict) and found["Used"] == "1-01:01:01" and found["End"] == "Unknown"
    held = client.job(6)
    assert held.held and held.reason == "job_requeued_in_held_state" and held.nodes == ()
    assert held.name == "b\x1f\nc" and held.comment == "x" and held.start == ""


@pytest.mark.parametrize(
    ("job_id", "why"),
    [
        (3, "wrong exit codes from 128 on"),
        (5, "wrong exit codes from 128 on"),
        (4, "reports the priority None"),
        (7, "AttributeError"),
    ],
)
def test_values_that_pyslurm_gets_wrong_are_not_used(ask: Ask, job_id: int, why: str) -> None:
    assert why in str(ask("job", job_id=job_id)["lacks"])


def test_an_old_errno_is_no_failure_and_a_strange_one_no_answer(ask: Ask) -> None:
    assert ask("cancel", job_id=2) == {"value": None}
    assert "whether the call succeeded" in str(ask("cancel", job_id=8)["lacks"])
    assert "retries by itself" in str(ask("cancel", job_id=9)["lacks"])
    assert ask("cancel", job_id=1) == {"value": None}
    assert "(2, 'cancel'), (1, 'cancel')" in str(ask("release", job_id=1)["error"])


def test_slurm_errors_are_classified_by_text(client: PySlurm) -> None:
    with pytest.raises(SlurmRefused, match="does not know this job"):
        client.job(99)
    with pytest.raises(SlurmDenied):
        client.shrink(1, ["gpu1"])
    with pytest.raises(SlurmRefused, match="refused") as raised:
        client.nodes(["gone"])
    assert "gone" in raised.value.why
    with pytest.raises(SlurmRefused):
        client.nodes([f"gpu{i}" for i in range(5)] + ["gone"])


def test_nodes_keep_the_requested_order(client: PySlurm) -> None:
    names = ["gpu3", "gpu1", "gpu2", "gpu0", "gpu4"]
    assert [node.name for node in client.nodes(names)] == names
    assert len(client.nodes()) == 9 and client.nodes()[0].port == 6818
    (node,) = client.nodes(["gpu8"])
    assert (node.state, node.reason, node.reason_user) == ("idle", "", "")


@pytest.mark.parametrize("line", ["", "{", "[]", '{"call": "os.system", "with": {}}', '{"call": "jobs"}', "null"])
def test_any_question_is_answered(client: PySlurm, line: str) -> None:
    process = client._worker._running()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(line.encode() + b"\n")
    process.stdin.flush()
    assert b'"lacks"' in process.stdout.readline()


def test_missing_configuration_quotes_slurm(tmp_path: Path, client: PySlurm) -> None:
    worker = Worker(client._worker.argv, {**client._worker.env, "SLURM_CONF": "/nonexistent"})
    with pytest.raises(WorkerLost, match=r"exit status 1: .*Could not establish a configuration source"):
        worker.ask("jobs", {}, 30.0)


def test_a_python_without_pyslurm() -> None:
    if find_spec("pyslurm") is not None:
        pytest.skip("this Python has pyslurm")
    worker = PySlurm(sys.executable, Runner(env={}))._worker
    with pytest.raises(WorkerLost, match="No module named 'pyslurm'"):
        worker.ask("jobs", {}, 30.0)
