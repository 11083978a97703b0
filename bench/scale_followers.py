"""The followers in `bench/scale.py`: operator and launcher, real except for Slurm, each in its own process."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import from_tests  # noqa: F401
from slurm_fake import FakeSlurm
from slurm_fake_cluster import FakeJob
from status import JOB

from transom_cli.core.launcher import LaunchEnded
from transom_cli.core.operator.cadence import Cadence
from transom_cli.core.stall_state import StallLimits
from transom_cli.layout import RunDir
from transom_cli.slurm.port import JobState, Submission
from transom_cli.supervise.follow import Follower
from transom_cli.supervise.launcher import loop as launcher
from transom_cli.supervise.launcher import plan as launchplan
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions
from transom_cli.supervise.lease import Lease
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.executor import Executor, Orders
from transom_cli.supervise.operator.loop import Operator, Pace
from transom_cli.supervise.operator.slurm_poller import SlurmPoller

LIMITS = StallLimits()


def _slurm(run: RunDir, names: list[str]) -> FakeSlurm:
    """In memory: a call costs nothing there, but how many there are is counted."""
    slurm = FakeSlurm(names)
    job = FakeJob(JOB, Submission(run.script), len(names), 0, 0, slurm.user, "llama-70b", "", "main", True, (), ())
    job.state, job.nodes, job.batch_host = JobState.RUNNING, tuple(names), names[0]
    slurm.cluster.jobs[JOB] = job
    return slurm


def operate(run: RunDir, names: list[str], ranks: int, results: Connection) -> None:
    """Run the operator. Like the launcher, it reports the number of its Slurm calls when it is ended."""
    slurm = _slurm(run, names)

    def reach(*_: object) -> Any:
        raise OSError("the bench has no nodes")

    def parts(clock: Clock, inbox: Any, pace: Pace) -> tuple[Follower, SlurmPoller, Executor]:
        orders = Orders(run, Submission(run.script), (), 0, stay_held=False, resubmit=False)
        follower = Follower(run, run.checkpoints, LIMITS)
        return (
            follower,
            SlurmPoller(slurm, clock, inbox, pace, orders.tag),
            Executor(orders, slurm, reach, clock, inbox),
        )

    operator = Operator(run, Lease.take(run), Clock, parts, Pace(Cadence()))
    signal.signal(signal.SIGTERM, lambda *_: operator.leave())
    operator.run()
    results.send(len(slurm.calls))


def launch(run: RunDir, names: list[str], ranks: int, results: Connection) -> None:
    """Run the launcher. A sleeping process replaces the training."""
    slurm = _slurm(run, names)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sleeping = [sys.executable, "-I", "-c", "import time; time.sleep(3600)"]
    options = LaunchOptions(run, "srun", ("true",), (sys.executable,), ranks, checkpoints=run.checkpoints)
    options = replace(options, limits=LIMITS)
    launcher.Agents = Mute  # type: ignore[misc,assignment]
    launchplan.training_argv = lambda *_, **__: sleeping  # type: ignore[assignment]
    made = launcher.Launcher(Allocation(JOB, 0, tuple(names), host=names[0]), options, lambda _: slurm)
    signal.signal(signal.SIGALRM, lambda *_: (results.send(len(slurm.calls)), os._exit(0)))
    made.run()


class Mute:
    """Agents that cannot be reached: while all is well, only their tables are read."""

    def __init__(self, allocation: Allocation, *_: object) -> None:
        self.addresses = {node: node for node in allocation.nodes}

    def start(self) -> None: ...

    def fetch_heartbeats(self) -> None: ...

    def revive(self, late: tuple[str, ...]) -> None: ...

    def stop(self, *, at_once: bool) -> None: ...

    def dead(self, node: str) -> bool:
        return True

    def free_port(self, node: str) -> int:
        return 29500  # no rank ever uses it

    def ask(self, node: str, name: str, timeout: float, **arguments: object) -> dict[str, object]:
        return {"error": "the bench has no nodes"}

    def memory(self, *_: object) -> dict[str, object]:
        return {}

    def evidence(self, *_: object) -> tuple[str, ...]:
        return ()

    def end(self, launch: int, nodes: tuple[str, ...], grace: float = 0.0, incident: str = "") -> LaunchEnded:
        return LaunchEnded(0.0, launch)

    def logs(self, *_: object) -> list[dict[str, object]]:
        return []
