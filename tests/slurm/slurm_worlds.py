"""Clusters for one contract suite: the fake's, and a real sandbox spoken to by each real adapter."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from slurm_fake import FakeSlurm

from transom_cli.sandbox import faults
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.port import Job, JobState, Slurm, Submission
from transom_cli.slurm.pyslurm.client import NODE_COUNT, NOTHING, PySlurm
from transom_cli.slurm.pyslurm.worker import EXIT_CODES
from transom_cli.slurm.requeue import RestartRequest
from transom_cli.slurm.runner import Runner

SCRIPT = '#!/bin/bash\nprintf "%s\\n" "$@" "$EXTRA" > "$1"\nexec sleep 600\n'


class World(Protocol):
    """A cluster of four idle nodes. `slurm` speaks as an ordinary user, `admin` as an administrator."""

    slurm: Slurm
    admin: Slurm
    nodes: tuple[str, ...]
    folder: Path

    def clock(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...
    def kill_node(self, name: str) -> None: ...
    def take_down(self, name: str, reason: str) -> None: ...


class FakeWorld:
    def __init__(self, folder: Path) -> None:
        self.slurm = FakeSlurm()
        self.admin = FakeSlurm(admin=True, user="root")
        self.admin.cluster = self.slurm.cluster
        self.nodes = tuple(self.slurm.cluster.nodes)
        self.folder = folder
        self.clock, self.sleep, self.kill_node = self.slurm.clock, self.slurm.sleep, self.slurm.kill_node

    def take_down(self, name: str, reason: str) -> None:
        node = self.slurm.cluster.nodes[name]
        node.down, node.reason, node.reason_user = True, reason, "root"


class RealWorld:
    """Spoken to by commands, or with `python`, one that has pyslurm, through that."""

    def __init__(self, sandbox: Sandbox, folder: Path, prefix: tuple[str, ...], home: Path, python: str = "") -> None:
        env = {"PATH": os.environ["PATH"], "HOME": str(home), **sandbox.env()}
        self.python = python
        self.slurm = self.client(Runner(env=env, prefix=prefix, timeout=15))
        self.admin = self.client(Runner(env=env, timeout=15))
        self.env, self.prefix = env, prefix
        self.sandbox = sandbox
        self.killed: list[str] = []
        self.nodes = sandbox.node_names
        self.folder = folder
        self.clock, self.sleep = time.monotonic, time.sleep

    def client(self, runner: Runner) -> CliSlurm | PySlurm:
        return PySlurm(self.python, runner) if self.python else CliSlurm(runner)

    def close(self) -> None:
        """A pyslurm that leaves all to the command line would keep the contract too."""
        for slurm in (self.slurm, self.admin):
            if isinstance(slurm, PySlurm):
                slurm.close()
                known = (NODE_COUNT, NOTHING, EXIT_CODES)
                strange = {call: why for call, why in slurm.detours.items() if why not in known}
                assert (slurm.given_up, strange) == ("", {})

    def kill_node(self, name: str) -> None:
        faults.kill_node(self.sandbox, name)
        self.killed.append(name)

    def take_down(self, name: str, reason: str) -> None:
        self.sandbox.slurm("scontrol", "update", f"nodename={name}", "state=down", f"reason={reason}")

    def bury(self) -> None:
        """Tell Slurm of the dead: it would keep their jobs completing for a minute, also once they are back."""
        for name in self.killed:
            self.sandbox.slurm("scontrol", "update", f"nodename={name}", "state=down", "reason=killed by a test")


def write_script(world: World, text: str = SCRIPT, name: str = "train.sbatch") -> Path:
    path = world.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o777)
    path.write_text(text)
    path.chmod(0o755)
    return path


def submission(world: World, *options: str, nodes: int = 3, text: str = SCRIPT) -> Submission:
    script = write_script(world, text)
    basic = (f"--nodes={nodes}", "--ntasks-per-node=1", "--mem=100", "--output=/dev/null", "--requeue")
    return Submission(script, (*basic, *options), ("/dev/null",), chdir=world.folder)


def wait_for(world: World, job_id: int, ready: Callable[[Job], bool], timeout: float = 40) -> Job:
    deadline = world.clock() + timeout
    while True:
        job = world.slurm.job(job_id)
        if ready(job):
            return job
        assert world.clock() < deadline, f"waited {timeout} s in vain; the job is {job}"
        world.sleep(0.1)


def running(job: Job) -> bool:
    return job.state is JobState.RUNNING


def start(world: World, *options: str, nodes: int = 3) -> Job:
    job_id = world.slurm.submit(submission(world, *options, nodes=nodes))
    return wait_for(world, job_id, running)


def restart_request(world: World, job: Job, dead: tuple[str, ...] = (), **changes: object) -> RestartRequest:
    request = RestartRequest(
        job.job_id,
        job.restarts,
        exclude=dead,
        dead=dead,
        num_nodes=3,
        tag=f"transom:test:after-{job.job_id}.{job.restarts}",
        submission=submission(world),
    )
    return replace(request, **changes)  # type: ignore[arg-type]
