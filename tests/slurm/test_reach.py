"""Is a slurmd there: against sockets and programs of our own, and against a real Slurm with dead and stopped nodes."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_worlds import RealWorld, start

from transom_cli.health.finding import Verdict
from transom_cli.health.reach import (
    Link,
    Peer,
    Reach,
    Second,
    Step,
    StepTimes,
    is_node_silence,
    judge_reach,
    read_reach,
    read_second,
)
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
REQUEUED = (
    "srun: Force Terminated job 2\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    "slurmstepd: error: *** STEP 2.3 ON n2 CANCELLED AT 2026-11-23T05:00:00 DUE TO JOB REQUEUE ***"
)
NO_CREDENTIAL = "srun: error: Task launch for StepId=2.2 failed on node n2: Invalid job credential"


@pytest.mark.parametrize(
    ("link", "step", "verdict"),
    [
        (Link.CONNECTED, Step.RAN, Verdict.PASS),
        (Link.CONNECTED, Step.NOT_TRIED, Verdict.PASS),
        (Link.CONNECTED, Step.UNKNOWN, Verdict.UNKNOWN),
        (Link.LOCAL, Step.NOT_TRIED, Verdict.UNKNOWN),
    ],
)
def test_verdicts(link: Link, step: Step, verdict: Verdict) -> None:
    finding = judge_reach(Reach("n2", "10.0.0.2", 6818, link, step, "its words", Second.FAILS, "n1"))
    assert (finding.check, finding.verdict, finding.node) == ("reach", verdict, "n2")
    assert "10.0.0.2:6818" in finding.evidence and "its words" in finding.evidence


@pytest.mark.parametrize(
    ("link", "step"),
    [
        (Link.CONNECTED, Step.NO_ANSWER),
        (Link.REFUSED, Step.NOT_TRIED),
        (Link.UNREACHABLE, Step.NOT_TRIED),
        (Link.TIMEOUT, Step.NOT_TRIED),
    ],
)
@pytest.mark.parametrize(
    ("second", "verdict"),
    [
        (Second.FAILS, Verdict.FAIL),
        (Second.REACHES, Verdict.PASS),
        (Second.NONE, Verdict.SUSPECT),
        (Second.BLIND, Verdict.UNKNOWN),
        (Second.NOT_ASKED, Verdict.UNKNOWN),
    ],
)
def test_a_node_that_one_host_does_not_reach_fails_only_with_a_second_opinion(
    link: Link, step: Step, second: Second, verdict: Verdict
) -> None:
    finding = judge_reach(Reach("n2", "10.0.0.2", 6818, link, step, "its words", second, "n1"))
    assert (finding.verdict, finding.node) == (verdict, "n2")
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


@pytest.fixture
def closed() -> Iterator[int]:
    """A port that refuses connections. It stays bound, so that no other process listens on it meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_unreachable_nodes_are_unknown_while_no_node_can_be_reached(closed: int) -> None:
    peers = [Peer("n1", "127.0.0.1", closed), Peer("n3", "127.0.0.1", closed)]
    reach = read_reach("n2", "127.0.0.1", closed, peers=lambda: peers, another_says="the launcher does not reach it")
    assert judge_reach(reach).verdict is Verdict.UNKNOWN


def test_an_unreachable_node_is_suspected_where_another_one_can_be_reached(closed: int, listening: int) -> None:
    peers = [Peer("n1", "127.0.0.1", listening)]
    assert judge_reach(read_reach("n2", "127.0.0.1", closed, peers=lambda: peers)).verdict is Verdict.SUSPECT
    result = read_reach("n2", "127.0.0.1", closed, peers=lambda: peers, another_says="the launcher does not reach it")
    assert judge_reach(result).verdict is Verdict.FAIL


def own_address() -> str:
    """An address of this host that others can reach; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        with contextlib.suppress(OSError):
            udp.connect(("192.0.2.1", 9))
        return str(udp.getsockname()[0])


def test_machine_that_refuses_is_suspected_and_not_gone_while_its_slurmd_is_upgraded(listening: int) -> None:
    """What was seen: an upgrade stops slurmd, and with it the job. The two probes of a healthy node were refused."""
    address = own_address()
    if address.startswith(("127.", "0.")):
        pytest.skip("this host has no address but its loopback")
    peers = [Peer("n1", "127.0.0.1", listening)]
    with socket.socket() as bound:
        bound.bind((address, 0))
        port = bound.getsockname()[1]
        for says in ("", "Slurm gets no answer from it either"):
            found = judge_reach(
                read_reach(
                    "n2", address, port, peers=lambda: peers, slurm_says=says, another_says="the launcher does not"
                )
            )
            assert found.verdict is Verdict.SUSPECT and "the machine itself answers" in found.evidence
        down = read_reach("n2", address, port, peers=lambda: peers, slurm_says="Slurm calls it down")
        assert judge_reach(down).verdict is Verdict.FAIL


def test_slurm_alone_confirms_that_a_node_is_gone(closed: int) -> None:
    assert judge_reach(read_reach("n2", "127.0.0.1", closed, slurm_says="Slurm calls it down")).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("line", "reaches"),
    [
        ("second: connects", True),
        ("second: does not connect", False),
        ("second: cannot tell", None),
        ("second: step 0 ", True),
        ("second: step 124 ", False),
        ("second: step 124 srun: Job 2 step creation temporarily disabled, retrying", None),
        (f"second: step 1 {DEAD.splitlines()[0]}", False),
        (f"second: step 1 {NO_CONTROLLER}", None),
        (f"second: step 143 {REQUEUED.splitlines()[1]}", None),
        ("", None),
    ],
)
def test_what_another_node_says(line: str, reaches: bool | None) -> None:
    assert read_second(line) is reaches


def test_a_name_that_does_not_resolve_is_our_own_trouble() -> None:
    reach = read_reach("n1", "no-such-host.invalid", 6818)
    assert reach.link is Link.LOCAL and judge_reach(reach).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("srun", "scontrol", "step"),
    [
        ("exit 0", "exit 1", Step.RAN),
        (f"echo '{DEAD}' >&2; exit 1", "exit 0", Step.NO_ANSWER),
        (f"echo '{NO_CONTROLLER}' >&2; exit 1", "exit 0", Step.UNKNOWN),
        (f"echo '{REQUEUED}' >&2; exit 1", "exit 0", Step.UNKNOWN),
        (f"echo '{REQUEUED}' >&2; exec sleep 60", "exit 0", Step.UNKNOWN),
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
    times = StepTimes()
    times.learn(2, 0.1)
    reach = read_reach("n2", "127.0.0.1", listening, 2, runner=runner, step_timeout=1.0, times=times)
    assert reach.step is step


@pytest.mark.parametrize(
    ("seconds", "verdict"), [("2", Verdict.PASS), ("never", Verdict.SUSPECT)], ids=["slow everywhere", "stopped"]
)
def test_a_step_is_late_only_beside_a_step_on_a_good_node(
    seconds: str, verdict: Verdict, listening: int, tmp_path: Path
) -> None:
    slow = "sleep 60" if seconds == "never" else f"sleep {seconds}"
    (tmp_path / "srun").write_text(
        f'#!/bin/sh\ncase "$*" in *n2*) {slow};; *) sleep {seconds.replace("never", "0")};; esac\n'
    )
    (tmp_path / "scontrol").write_text("#!/bin/sh\nexit 0\n")
    for name in ("srun", "scontrol"):
        (tmp_path / name).chmod(0o755)
    runner = Runner(prefix=("env", f"PATH={tmp_path}:{os.environ['PATH']}"))
    ask = {"runner": runner, "step_timeout": 1.0}
    alone = read_reach("n2", "127.0.0.1", listening, 2, **ask)  # type: ignore[arg-type]
    assert judge_reach(alone).verdict is Verdict.UNKNOWN, "nothing shows how long a step of this job takes"
    peers = lambda: [Peer("n1", "127.0.0.1", listening, in_job=True)]  # noqa: E731
    assert judge_reach(read_reach("n2", "127.0.0.1", listening, 2, peers=peers, **ask)).verdict is verdict  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.sandbox
def test_living_killed_and_stopped_nodes(healed_sandbox: Sandbox, short_dir: Path) -> None:
    folder = short_dir / "reach"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    world = RealWorld(healed_sandbox, folder, (), short_dir)
    job = start(world, f"--exclude={world.nodes[3]}")
    runner = Runner(env=world.env)

    def verdict(node: str, job_id: int | None = job.job_id) -> Verdict:
        (result,) = world.slurm.nodes([node])
        others = [n for n in world.slurm.nodes(job.nodes) if n.name != node]
        peers = [Peer(n.name, n.address, n.port, in_job=True) for n in others]
        reach = read_reach(
            node,
            result.address,
            result.port,
            job_id,
            runner=runner,
            step_timeout=4,
            peers=lambda: peers,
            ask_peers=True,
        )
        found.append(reach)
        return judge_reach(reach).verdict

    found: list[Reach] = []

    assert verdict(job.nodes[0]) is Verdict.PASS
    assert verdict(job.nodes[0], 99_999_999) is Verdict.UNKNOWN
    world.kill_node(job.nodes[1])
    assert verdict(job.nodes[1]) is Verdict.FAIL
    assert found[-1].by == f"{job.nodes[0]} does not reach it either"
    faults.stop_node(healed_sandbox, job.nodes[2])
    assert verdict(job.nodes[2], None) is Verdict.PASS  # the kernel still accepts for it: the step is what tells
    assert verdict(job.nodes[2]) is Verdict.FAIL
    assert found[-1].by == f"{job.nodes[0]} does not reach it either"
    world.bury()
