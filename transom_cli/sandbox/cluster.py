"""A real Slurm cluster on this machine, in one folder: up, down, status.

munged, slurmctld and one slurmd per node, all from the distribution, run as the calling user on loopback. `conf`
contains the configuration; `processes` recognises the cluster's processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transom_cli.errors import SlurmUnreachable, TransomError, UsageError
from transom_cli.files import last_lines
from transom_cli.sandbox import daemons as accounting
from transom_cli.sandbox import processes, sites, state, users
from transom_cli.sandbox.conf import keep_private, prepare
from transom_cli.sandbox.daemons import daemon_env, late_view, start_daemon
from transom_cli.sandbox.network import Wall
from transom_cli.sandbox.processes import Ident
from transom_cli.sandbox.release.known import ReleaseHome
from transom_cli.sandbox.state import SandboxSpec, State, check_place, check_spec, node_names
from transom_cli.sandbox.tools import callers_path, find_tools, run_tool, unmount
from transom_cli.sandbox.users import User

__all__ = ["DaemonStatus", "NodeStatus", "Sandbox", "SandboxSpec", "Status"]

_READY_TIMEOUT_S = 60.0
_POWER_MARKS = "~#%"  # switched off, on its way up, on its way down


@dataclass(frozen=True)
class DaemonStatus:
    name: str
    pid: int
    state: str  # running, stopped, dead


@dataclass(frozen=True)
class NodeStatus:
    name: str
    state: str  # sinfo's word: idle, mixed, allocated, down*, drained, ...
    reason: str


@dataclass(frozen=True)
class Status:
    """The cluster's state. If the controller does not answer, `why` quotes Slurm and `nodes` is empty."""

    dir: Path
    up: bool
    daemons: tuple[DaemonStatus, ...]
    nodes: tuple[NodeStatus, ...]
    why: str = ""


class Sandbox:
    """A sandbox in a folder, running or not. Created by `up` and `at`."""

    def __init__(self, where: Path, spec: SandboxSpec, cluster: str) -> None:
        self.dir = where
        self.spec = spec
        self.cluster = cluster

    @classmethod
    def up(cls, spec: SandboxSpec) -> Sandbox:
        """Start everything that is not running, and return when all nodes are usable. Idempotent.

        Jobs and logs of an earlier start are not kept; job IDs continue above the earlier ones. On failure nothing is
        left running.
        """
        spec = replace(spec, dir=spec.dir.expanduser().absolute())
        check_spec(spec)
        spec = replace(spec, accounting=spec.accounting or sites.accounting(spec.site))
        find_tools(spec.accounting, spec.home)
        check_place(spec)
        try:
            with state.locked(spec.dir):
                return cls._up_locked(spec)
        except OSError as error:
            hint = "choose another folder with `--dir`"
            raise TransomError(f"Cannot set up the sandbox in {spec.dir}", str(error), hint) from error

    @classmethod
    def _up_locked(cls, spec: SandboxSpec) -> Sandbox:
        old = state.load(spec.dir)
        if old is not None and old.of_this_boot and any(map(processes.alive, old.daemons.values())):
            if old.spec.shape() != spec.shape():
                raise UsageError(
                    f"The sandbox in {spec.dir} is already up, with another configuration",
                    f"it has {old.spec}\nrequested: {spec}",
                    f"transom sandbox down --dir {spec.dir}",
                )
            known = old
            fresh = False
            keep_private(spec.dir)  # somebody may have opened it to others
        else:
            sites.check(spec.site)
            known = prepare(spec, old)
            fresh = True
        sandbox = cls(spec.dir, spec, known.cluster)
        try:
            if fresh and "firewalled" in spec.site:
                Wall(known.cluster).build()
            for name in sandbox.daemon_names:
                sandbox._ensure_daemon(known, name)
                if fresh and name == "slurmdbd":
                    sites.add_accounts(sandbox)
            sandbox.wait_nodes(sandbox.node_names, only_idle=fresh)
            if fresh:
                sites.crowd(sandbox)
        except BaseException:
            if fresh:
                sandbox._down_locked(known)
            raise
        return sandbox

    @classmethod
    def at(cls, where: Path) -> Sandbox:
        """Return the sandbox that an earlier `up` created in this folder, running or not."""
        where = where.expanduser().absolute()
        known = state.load(where)
        if known is None:
            raise UsageError(f"There is no sandbox in {where}", hint=f"transom sandbox up --dir {where}")
        return cls(where, known.spec, known.cluster)

    @property
    def node_names(self) -> tuple[str, ...]:
        return node_names(self.spec.nodes)

    @property
    def daemon_names(self) -> tuple[str, ...]:
        """The daemons in the order in which they start; a node's slurmd has the node's name."""
        database = ("mariadbd", "slurmdbd") if self.spec.accounting else ()
        return ("munged", *database, "slurmctld", *self.node_names)

    @property
    def corruptions(self) -> Path:
        """The file of the values that a training computes wrong, as `transom_cli.inject` reads it."""
        return self.dir / "corrupt.json"

    @property
    def _first_on_path(self) -> str:
        """Folders of the release: transom on its Python, if it has one, and its Slurm."""
        return f"{self.dir}/bin{os.pathsep}{self.spec.home}/bin" if self.spec.home else ""

    def env(self) -> dict[str, str]:
        """Return the variables with which a Slurm client uses this cluster and no other.

        They also keep these nodes out of the user's own history of nodes.
        """
        env = {"SLURM_CONF": str(self.dir / "slurm.conf"), "TRANSOM_STATE_DIR": str(self.dir / "state")}
        env["TRANSOM_INJECT"] = str(self.corruptions)
        env |= sites.env(self.spec.site, self.dir)
        if self.spec.home:
            env["PATH"] = callers_path(self._first_on_path)
            python = ReleaseHome(Path(self.spec.home)).python
            if python.exists():
                env["TRANSOM_SLURM__PYSLURM_PYTHON"] = str(python)
        return env

    def slurm(self, *argv: str, timeout_s: float = 30.0) -> str:
        """Run a Slurm command as this cluster's administrator and return its stdout. Raises with Slurm's message."""
        env = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_"))}
        return run_tool(argv, {**env, **self.env()}, cwd=self.dir, timeout_s=timeout_s)

    def nodes(self) -> tuple[NodeStatus, ...]:
        rows = self.slurm("sinfo", "-h", "-N", "-o", "%N|%T|%E").splitlines()
        split = (row.split("|", 2) for row in rows)
        return tuple(NodeStatus(name, word, "" if reason == "none" else reason) for name, word, reason in split)

    def daemons(self) -> tuple[DaemonStatus, ...]:
        """Return every daemon that was started, from its process; Slurm is not called."""
        known = state.load(self.dir)
        recorded = known.daemons if known and known.of_this_boot else {}
        return tuple(DaemonStatus(name, ident.pid, _process_state(ident)) for name, ident in recorded.items())

    def disks(self) -> tuple[str, ...]:
        """Return the small file systems that `faults.fill_disk` mounted."""
        known = state.load(self.dir)
        return tuple(known.disks) if known and known.of_this_boot else ()

    def mounts(self) -> tuple[str, ...]:
        """Return the folders that `faults.share_disk` serves."""
        known = state.load(self.dir)
        return tuple(known.mounts) if known and known.of_this_boot else ()

    def late(self) -> dict[str, str]:
        """Return the folders that nodes see late (`faults.late_files`), and how: "3" seconds, or "nfs=30"."""
        known = state.load(self.dir)
        return dict(known.late) if known and known.of_this_boot else {}

    def users(self) -> dict[str, User]:
        """Return the users that exist for site profiles: alice and bob (ordinary), carol (operator), dave (admin)."""
        known = state.load(self.dir)
        return dict(known.users) if known else {}

    @property
    def is_up(self) -> bool:
        return any(row.state != "dead" for row in self.daemons())

    def status(self) -> Status:
        """Return what runs and Slurm's view of the nodes. Never raises for a cluster that is down or broken."""
        rows = self.daemons()
        if not any(row.state != "dead" for row in rows):
            return Status(self.dir, False, rows, (), "it was taken down, or the machine was restarted")
        try:
            return Status(self.dir, True, rows, self.nodes())
        except TransomError as error:
            ended = any((row.name, row.state) == ("slurmctld", "dead") for row in rows)
            return Status(self.dir, not ended, rows, (), error.why or error.what)

    def down(self) -> None:
        """End all processes: daemons, slurmstepds, jobs. Works after an interrupted `up`, too. Idempotent."""
        with state.locked(self.dir):
            known = state.load(self.dir)
            if known is not None:
                self._down_locked(known)

    def start(self, name: str) -> None:
        """Start one daemon (`slurmctld`, or a node's slurmd by the node's name) if it is not running."""
        with state.locked(self.dir):
            known = state.load(self.dir)
            if known is None or "munged" not in known.daemons:
                raise SlurmUnreachable(
                    f"The sandbox in {self.dir} is not up", hint=f"transom sandbox up --dir {self.dir}"
                )
            self._ensure_daemon(known, name)

    def wait_answer(self) -> None:
        """Wait until the controller answers."""
        self.wait_nodes(())

    def wait_nodes(self, names: Sequence[str], *, only_idle: bool = False) -> None:
        """Wait until Slurm can use these nodes (drained nodes: until they respond)."""
        good = {"idle", "reserved"}  # sinfo's word for an idle node of a reservation
        good |= set() if only_idle else {"mixed", "allocated", "completing", "drained", "draining"}
        last = ""

        def ready() -> bool:
            nonlocal last
            try:
                seen = {node.name: node for node in self.nodes()}
            except TransomError as error:  # the controller is starting
                last = error.why or error.what
                return False
            late = [seen[name] for name in names if seen[name].state.rstrip(_POWER_MARKS) not in good]
            last = ", ".join(f"{node.name} is {node.state} {node.reason}".rstrip() for node in late)
            return not late

        if not wait_until(ready, _READY_TIMEOUT_S):
            logs = [
                line
                for name in ("slurmctld", *(f"slurmd-{node}" for node in names[:1]))
                for line in last_lines(self._log(name), 3)
            ]
            raise SlurmUnreachable(
                f"The sandbox's nodes did not become ready within {_READY_TIMEOUT_S:.0f} s",
                "\n".join([last, *logs]),
                f"less {self._log('slurmctld')}",
            )

    def _ensure_daemon(self, known: State, name: str) -> None:
        ident = known.daemons.get(name)
        if ident is None or not processes.alive(ident):
            known.daemons[name] = self._start_daemon(known, name)
            state.save(self.dir, known)

    def change(self, change: Callable[[State], None]) -> None:
        """Change the recorded state, under the lock."""
        with state.locked(self.dir):
            known = state.load(self.dir)
            if known is not None:
                change(known)
                state.save(self.dir, known)

    def _start_daemon(self, known: State, name: str) -> Ident:
        tools = find_tools(self.spec.accounting, self.spec.home)
        is_node = name in self.node_names
        env = daemon_env(self.dir, self.cluster, name if is_node else "", self._first_on_path)
        run = self.dir / "run"
        port: int | None = None
        if name == "munged":
            argv = [
                str(tools["munged"]), "--force", f"--key-file={self.dir}/keys/munge.key",
                f"--socket={self.dir}/munge.sock", f"--pid-file={run}/munged.pid",
                f"--log-file={self._log('munged')}", f"--seed-file={self.dir}/keys/munge.seed",
            ]  # fmt: skip
        elif name in ("mariadbd", "slurmdbd"):
            return accounting.start(name, self.dir, known.user, known.ports, tools, env)
        elif name == "slurmctld":
            if self.spec.accounting:
                accounting.register_cluster(self.cluster, self.slurm)
            argv, port = [str(tools["slurmctld"]), "-i"], known.ports.controller
        else:
            index = self.node_names.index(name)
            stepd = ["-d", f"{self.spec.home}/bin/slurmstepd"] if self.spec.home else []
            view = late_view(known.late, self._log(f"view-{name}"))
            booted = ["-b"] if "suspending" in self.spec.site else []  # slurmctld waits for a newly booted machine
            argv, port = [*view, str(tools["slurmd"]), *booted, "-N", name, *stepd], known.ports.nodes + index
            (self.dir / "spool" / name).mkdir(mode=0o755, exist_ok=True)
        if "firewalled" in self.spec.site and (is_node or name == "slurmctld"):
            argv = [*Wall(self.cluster).prefix, *argv]
        pid_name = f"slurmd-{name}" if is_node else name
        started = start_daemon(
            name, argv, env=env, cwd=self.dir, pid_file=run / f"{pid_name}.pid", log=self._log(pid_name), port=port
        )
        if name == "munged":
            keep_private(self.dir)
        return started

    def _log(self, name: str) -> Path:
        return self.dir / "log" / f"{name}.log"

    def _down_locked(self, known: State) -> None:
        recorded = known.daemons.values() if known.of_this_boot else ()

        def everything() -> list[processes.Proc]:
            marked = processes.of_sandbox(known.cluster)
            ours = (processes.read(ident.pid) for ident in recorded if processes.alive(ident))
            return list({proc.ident: proc for proc in [*marked, *filter(None, ours)]}.values())

        processes.freeze_then_kill(everything)
        for mounted in (*known.mounts, *known.disks):
            unmount(Path(mounted))
        if "firewalled" in self.spec.site:
            Wall(self.cluster).remove()
        if "cgroup" in self.spec.site:
            sites.remove_groups(self.node_names)
        users.remove(known.users)
        known.daemons, known.disks, known.mounts, known.late, known.users = {}, [], [], {}, {}
        state.save(self.dir, known)


def wait_until(ready: Callable[[], bool], timeout_s: float, every_s: float = 0.1) -> bool:
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


def _process_state(ident: Ident) -> str:
    proc = processes.read(ident.pid)
    if proc is None or proc.ident != ident:
        return "dead"
    return "stopped" if proc.state in "Tt" else "running"
