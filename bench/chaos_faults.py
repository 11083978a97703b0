"""Inject a planned fault into a live run, with the sandbox's faults, and undo it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chaos_plan import CLOCK, DISK, KINDS, LOSES_NODE, NODES, Injection
from chaos_trainer import STUCK
from harness import Bench, LiveRun

from transom_cli.errors import NotPermitted, TransomError, UsageError
from transom_cli.heartbeat.paths import WAITING
from transom_cli.layout import RunDir
from transom_cli.sandbox import faults, processes
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.sandbox.fault_processes import find_rank
from transom_cli.supervise.lease import read_holder

SMALL_MB = 96  # of the disk that a run's directory is on


class NotNow(Exception):
    """What the fault is to hit is not there at this moment."""


@dataclass(frozen=True)
class Place:
    """A run's files. `below`: the same folder under the shared disk, where a stalled or read-only one does not show."""

    root: Path
    below: Path

    def run_below(self, name: str) -> RunDir:
        return RunDir(self.below / name)


def possible(sb: Sandbox) -> tuple[dict[str, str], frozenset[str]]:
    """What runs are to be started with, and the kinds of faults that can be made on this machine by this user."""
    kinds, env = frozenset(KINDS), {}
    try:
        env = faults.clock_env(sb)
    except NotPermitted as refused:
        print(f"without faults of the clock: {refused.why or refused.what}", file=sys.stderr)
        kinds -= CLOCK
    with tempfile.TemporaryDirectory(dir=sb.dir) as folder:
        try:
            faults.small_disk(sb, Path(folder), 1)
            faults.share_disk(sb, Path(folder))
        except NotPermitted as refused:
            print(f"without faults of the disk: {refused.why or refused.what}", file=sys.stderr)
            kinds -= DISK
        for mounted in map(Path, sb.mounts()):
            faults.unshare_disk(sb, mounted)
        for disk in map(Path, sb.disks()):
            faults.free_disk(sb, disk, unmount=True)
    return env, kinds


def standbys_ready(sb: Sandbox, job: int, launch: int) -> bool:
    """Whether a process waits for each rank of this launch, with its imports done: it has closed one of its pipes."""
    waiting = [p for p in processes.of_job(sb.cluster, job) if p.environ.get("TRANSOM_LAUNCH") == str(launch)]
    ready = 0
    for proc in waiting:
        _, _, rest = proc.environ.get(WAITING, "").partition(",")
        report = Path(f"/proc/{proc.pid}/fd/{rest.partition(',')[0]}")
        ready += bool(rest) and processes.alive(proc.ident) and not os.path.lexists(report)
    return ready == NODES


class Hand:
    """Makes the faults of one run, one after the other, and undoes them."""

    def __init__(self, bench: Bench, run: LiveRun, place: Place) -> None:
        self._bench = bench
        self._sb = bench.sandbox
        self._run = run
        self._place = place
        self.operator_away = False  # it was killed, and nobody has started another one
        self._attaching: subprocess.Popen[bytes] | None = None

    def make(self, fault: Injection) -> tuple[str, str, Callable[[], object]]:
        """What was hit, the node that was taken (or nothing), and how it is undone. NotNow when it is not there."""
        try:
            target, undo = self._make(fault)
        except UsageError as missing:
            raise NotNow(f"{missing.what} ({missing.why})" if missing.why else missing.what) from missing
        return target, target if fault.kind in LOSES_NODE | {"node-pause"} else "", undo

    def _make(self, fault: Injection) -> tuple[str, Callable[[], object]]:
        sb, job, group = self._sb, self._run.state.job.id, fault.kind.partition("-")[0]
        if group == "operator":
            return self._kill_operator()
        if group == "disk":
            return self._disk(fault.kind)
        if fault.kind == "clock-jump":
            hosts = [*self._run.state.job.nodes, "login", ""]
            host = hosts[min(fault.target, len(hosts) - 1)]
            faults.jump_clock(sb, fault.amount, host)
            return host or "all hosts", lambda: faults.reset_clock(sb, host)
        if fault.kind == "controller-kill":
            faults.kill_controller(sb)
            return "slurmctld", lambda: faults.start_controller(sb)
        if fault.kind == "controller-stop":
            faults.stop_controller(sb)
            return "slurmctld", lambda: faults.cont_controller(sb)
        if not job or not self._run.state.job.nodes:
            raise NotNow("no job runs")
        if group in ("rank", "standby", "both"):
            return self._rank(fault, job)
        if group == "launcher":
            stop = fault.kind != "launcher-kill"
            pid = (faults.stop_launcher if stop else faults.kill_launcher)(sb, job)
            return f"launcher {pid}", lambda: stop and faults.cont_launcher(sb, job)
        node = self._run.state.job.nodes[fault.target % len(self._run.state.job.nodes)]
        if fault.kind in ("admin-drain", "admin-requeue", "limit-warning"):
            return self._slurm(fault.kind, job, node)
        if group == "agent":
            stop = fault.kind != "agent-kill"
            (faults.stop_agent if stop else faults.kill_agent)(sb, job, node)
            return f"the agent on {node}", lambda: stop and faults.cont_agent(sb, job, node)
        (faults.kill_node if fault.kind == "node-kill" else faults.stop_node)(sb, node)
        return node, lambda: faults.cont_node(sb, node)

    def _rank(self, fault: Injection, job: int) -> tuple[str, Callable[[], object]]:
        sb, rank = self._sb, fault.target
        if fault.kind == "rank-kill":
            faults.kill_rank(sb, job, rank)
        elif fault.kind in ("standby-kill", "both-kill"):
            family = find_rank(sb, job, rank, standby=True)
            family += find_rank(sb, job, rank) if fault.kind == "both-kill" else []
            processes.freeze_then_kill(lambda: [proc for proc in family if processes.alive(proc.ident)])
            return f"{'standby of ' if fault.kind == 'standby-kill' else ''}rank {rank}", lambda: None
        elif fault.kind == "rank-stuck":
            os.kill(find_rank(sb, job, rank)[0].pid, STUCK)
        elif fault.kind == "rank-slow":
            faults.slow_rank(sb, job, rank, fault.amount)
            return f"rank {rank}", lambda: faults.unslow_rank(sb, job, rank)
        else:
            faults.stop_rank(sb, job, rank)
        return f"rank {rank}", lambda: faults.cont_rank(sb, job, rank)

    def _slurm(self, kind: str, job: int, node: str) -> tuple[str, Callable[[], object]]:
        """What people and Slurm itself do to a job. NotNow while Slurm does not answer."""
        words = {
            "admin-drain": ("scontrol", "update", f"nodename={node}", "state=drain", "reason=an admin of the bench"),
            "admin-requeue": ("scontrol", "requeue", str(job)),
            "limit-warning": ("scancel", "--batch", "--signal=USR2", str(job)),  # as --signal=B:USR2@... sends it
        }
        try:
            self._sb.slurm(*words[kind])
        except TransomError as error:
            raise NotNow(error.why or error.what) from error
        if kind == "admin-drain":
            return node, lambda: self._sb.slurm("scontrol", "update", f"nodename={node}", "state=resume")
        return f"job {job}", lambda: None

    def _disk(self, kind: str) -> tuple[str, Callable[[], object]]:
        sb, place = self._sb, self._place
        if kind == "disk-full":
            faults.fill_disk(sb, place.below)
            return "the run's disk", lambda: faults.free_disk(sb, place.below)
        if kind == "disk-readonly":
            faults.readonly_disk(sb, place.root)
            return "the run's disk", lambda: faults.writable_disk(sb, place.root)
        faults.stall_disk(sb, place.root)
        return "the run's disk", lambda: faults.cont_disk(sb, place.root)

    # --- the operator, and the person who starts it again ---

    def operator_lives(self) -> bool:
        holder = read_holder(self._run.dir)
        return holder is not None and not holder.released and holder.alive_here()

    def _kill_operator(self) -> tuple[str, Callable[[], object]]:
        if self.operator_away or not self.operator_lives():
            raise NotNow("there is no operator")
        self._run.kill_operator()
        self.operator_away = True
        return "the operator", self.attach

    def attach(self) -> None:
        """A person types `transom attach --detach`, and again when it fails, until an operator lives."""
        argv = [self._bench.python, "-m", "transom_cli", "attach", "--detach", "--root", str(self._place.root)]
        self._attaching = subprocess.Popen(
            [*argv, self._run.name], env=self._bench.env, cwd=self._bench.dir, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=(self._bench.dir / "attach.log").open("ab"), start_new_session=True,
            **(self._bench.user.identity() if self._bench.user else {}),
        )  # fmt: skip

    def keep_attaching(self) -> None:
        if self._attaching is not None and self._attaching.poll() is not None:
            if self._attaching.returncode == 0:
                self._attaching, self.operator_away = None, False
            else:
                time.sleep(1.0)
                self.attach()

    def stop_attaching(self) -> None:
        if self._attaching is not None:
            self._attaching.kill()
            self._attaching.wait()
            self._attaching = None
