"""Is a slurmd there: against sockets and programs of our own, and against a real Slurm with dead and stopped nodes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_worlds import RealWorld, start

from transom_cli.health.finding import Verdict
from transom_cli.health.reach import Link, Reach, Step, is_node_silence, judge_reach, read_reach
from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.slurm.runner import Runner

DEAD = (  # what srun 22.05 said of a slurmd that was killed, and of one that was stopped
    "srun: error: Task launch for StepId=2.2 failed on node n2: Communication connection failure\n"
    "srun: error: Application launch failed: Communication connection failure\nsrun: Job step aborted"
)
STOPPED = (
    "srun: error: slurm_receive_msgs: [[localhost]:27013] failed: Socket timed out on send/recv operation\n"
    "srun: error: Task launch for StepId=2.3 failed on node n3: Socket timed out on send/recv operation"
)
NO_JOB = "srun: error: Unable to confirm allocation for job 99999: Invalid job id specified"
NO_CONTROLLER = (
    "srun: error: Unable to confirm allocation for job 2: Unable to contact slurm controller (connect failure)"
)
NO_CREDENTIAL = "srun: error: Task launch for StepId=2.2 failed on node n2: Invalid job credential"


@pytest.mark.parametrize(
    ("link", "step", "verdict"),
    [
        (Link.CONNECTED, Step.RAN, Verdict.PASS),
        (Link.CONNECTED, Step.NOT_TRIED, Verdict.PASS),
        (Link.CONNECTED, Step.NO_ANSWER, Verdict.FAIL),
        (Link.CONNECTED, Step.UNKNOWN, Verdict.UNKNOWN),
        (Link.REFUSED, Step.NOT_TRIED, Verdict.FAIL),
        (Link.UNREACHABLE, Step.NOT_TRIED, Verdict.FAIL),
        (Link.TIMEOUT, Step.NOT_TRIED, Verdict.FAIL),
        (Link.LOCAL, Step.NOT_TRIED, Verdict.UNKNOWN),
    ],
)
def test_verdicts(link: Link, step: Step, verdict: Verdict) -> None:
    finding = judge_reach(Reach("n2", "10.0.0.2", 6818, link, step, "its words"))
    assert (finding.check, finding.verdict, finding.node) == ("reach", verdict, "n2")
    assert "10.0.0.2:6818" in finding.evidence and "its words" in finding.evidence


@pytest.mark.parametrize(
    ("words", "silent"),
    [(DEAD, True), (STOPPED, True), (NO_JOB, False), (NO_CONTROLLER, False), (NO_CREDENTIAL, False), ("", False)],
)
def test_only_the_nodes_own_silence_counts(words: str, silent: bool) -> None:
    assert is_node_silence(words) is silent


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_listening_port_and_a_closed_one(listening: int) -> None:
    assert read_reach("n1", "127.0.0.1", listening).link is Link.CONNECTED
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    reach = read_reach("n1", "127.0.0.1", closed)
    assert reach.link is Link.REFUSED and "refused" in reach.detail
    assert judge_reach(reach).verdict is Verdict.FAIL


def test_a_name_that_does_not_resolve_is_our_own_trouble() -> None:
    reach = read_reach("n1", "no-such-host.invalid", 6818)
    assert reach.link is Link.LOCAL and judge_reach(reach).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("srun", "scontrol", "step"),
    [
        ("exit 0", "exit 1", Step.RAN),
        (f"echo '{DEAD}' >&2; exit 1", "exit 0", Step.NO_ANSWER),
        (f"echo '{NO_CONTROLLER}' >&2; exit 1", "exit 0", Step.UNKNOWN),
        ("exec sleep 60", "exit 0", Step.NO_ANSWER),
        ("exec sleep 60", "echo 'Unable to contact slurm controller' >&2; exit 1", Step.UNKNOWN),
        (
            "echo 'srun: Job 2 step creation temporarily disabled, retrying' >&2; exec sleep 60",
            "exit 0",
            Step.UNKNOWN,
        ),
    ],
)
def test_the_empty_step(srun: str, scontrol: str, step: Step, listening: int, tmp_path: Path) -> None:
    for name, body in (("srun", srun), ("scontrol", scontrol)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    runner = Runner(prefix=("env", f"PATH={tmp_path}:{os.environ['PATH']}"))
    reach = read_reach("n2", "127.0.0.1", listening, 2, runner=runner, step_timeout=1.0)
    assert reach.step is step


@pytest.mark.sandbox
def test_living_killed_and_stopped_nodes(healed_sandbox: Sandbox, short_dir: Path) -> None:
    folder = short_dir / "reach"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    world = RealWorld(healed_sandbox, folder, (), short_dir)
    job = start(world, f"--exclude={world.nodes[3]}")
    runner = Runner(env=world.env)

    def verdict(node: str, job_id: int | None = job.job_id) -> Verdict:
        (told,) = world.slurm.nodes([node])
        return judge_reach(read_reach(node, told.address, told.port, job_id, runner=runner, step_timeout=4)).verdict

    assert verdict(job.nodes[0]) is Verdict.PASS
    assert verdict(job.nodes[0], 99_999_999) is Verdict.UNKNOWN
    world.kill_node(job.nodes[1])
    assert verdict(job.nodes[1]) is Verdict.FAIL
    faults.stop_node(healed_sandbox, job.nodes[2])
    assert verdict(job.nodes[2], None) is Verdict.PASS  # the kernel still accepts for it: the step is what tells
    assert verdict(job.nodes[2]) is Verdict.FAIL
    world.bury()
