"""The followers in `bench/scale.py`: operator and launcher, real except for Slurm, each in its own process."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from status import JOB

from transom_cli.core.launcher import LaunchEnded
from transom_cli.core.stall_state import StallLimits
from transom_cli.layout import RunDir
from transom_cli.slurm.fake import FakeSlurm
from transom_cli.slurm.fake_cluster import FakeJob
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

POLL, POLL_MOST = 2.0, 30.0  # the defaults of `slurm.poll` and `slurm.poll_max`
LIMITS = StallLimits()


def _slurm(run: RunDir, names: list[str]) -> FakeSlurm:
    """In memory: a call costs nothing there, but how many there are is counted."""
    slurm = FakeSlurm(names)
    job = FakeJob(JOB, Submission(run.script), len(names), 0, 0, slurm.user, "llama-70b", "", "main", True, (), ())
    job.state, job.nodes, job.batch_host = JobState.RUNNING, tuple(names), names[0]
    slurm.cluster.jobs[JOB] = job
    return slurm


def operate(run: RunDir, names: list[str], ranks: int, told: Connection) -> None:
    """The operator. Tells the number of its Slurm calls when it is asked to leave, as the launcher does."""
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

    operator = Operator(run, Lease.take(run), Clock, parts, Pace(POLL, POLL_MOST))
    signal.signal(signal.SIGTERM, lambda *_: operator.leave())
    operator.run()
    told.send(len(slurm.calls))


def launch(run: RunDir, names: list[str], ranks: int, told: Connection) -> None:
    """The launcher, with a training that a sleeping process stands for."""
    slurm = _slurm(run, names)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sleeping = [sys.executable, "-I", "-c", "import time; time.sleep(3600)"]
    options = LaunchOptions(run, "srun", ("true",), (sys.executable,), ranks, checkpoints=run.checkpoints)
    options = replace(options, limits=LIMITS)
    launcher.Agents = Mute  # type: ignore[misc,assignment]
    launchplan.training_argv = lambda *_, **__: sleeping  # type: ignore[assignment]
    made = launcher.Launcher(Allocation(JOB, 0, tuple(names), host=names[0]), options, lambda _: slurm)
    signal.signal(signal.SIGALRM, lambda *_: (told.send(len(slurm.calls)), os._exit(0)))
    made.run()


class Mute:
    """Agents that nobody reaches: beside their tables nothing of them is asked while all is well."""

    def __init__(self, allocation: Allocation, *_: object) -> None:
        self.addresses = {node: node for node in allocation.nodes}

    def start(self) -> None: ...

    def revive(self, late: tuple[str, ...]) -> None: ...

    def stop(self, *, at_once: bool) -> None: ...

    def dead(self, node: str) -> bool:
        return True

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
