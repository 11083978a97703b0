"""Four nodes on one machine, each checked by a real node worker. Each has its own namespaces (network, mounts,
processes, host name), GPUs, kernel log, /sys and clock. Needs root.

A node lives for one health run. Everything that a fault mounts or starts on it ends with it, since its first process is
the init process of its process namespace.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import from_tests  # noqa: F401
import nvml_stub
from health_delay import Delay
from health_rows import NODES, Fault, neighbour
from netns import Network

from transom_cli.core.codec import build
from transom_cli.health.check import About, limits_of
from transom_cli.health.checks.run_dir import token
from transom_cli.health.finding import Finding
from transom_cli.health.judge import Readings
from transom_cli.health.protocol import Message
from transom_cli.health.registry import CHECKS
from transom_cli.health.report import Report
from transom_cli.health.run import HealthRequest, check_nodes
from transom_cli.health.transport import LocalTransport
from transom_cli.sandbox import fault_clock, network, processes

ROOT = Path(__file__).resolve().parents[1]
GPUS = 2
TAG = "TRANSOM_SANDBOX_MATRIX_NODE"  # in the environment of all processes of a node: the node and its matrix
CGROUP = Path("/sys/fs/cgroup/cpu")
SHARE = 0.1  # of a core, for a slow node
APART = 30.0  # seconds between the two looks of a row that is watched, as the agent's are
_PORTS = 4
_PORT = {
    "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand",
    "counters/port_rcv_data": "1000000000000", "counters/link_downed": "0", "counters/symbol_error": "0",
}  # fmt: skip
_SITE = '#!/bin/sh\nhere={}/$TRANSOM_NODE\n[ ! -e "$here" ] || . "$here"\necho "all fans turn"\n'
# $0 of the shell is the node; what follows are the words that start its worker
_NODE = """\
export NODE="$0" SCRATCH={scratch} UP={up} RUN={run} PYTHON={python}
hostname "$NODE"
mount -t tmpfs -o size=64m,mode=1777 scratch $UP
mkdir $SCRATCH
mount -t tmpfs -o size=64m,mode=1777 scratch $SCRATCH
prlimit --memlock=unlimited --pid $$ 2>/dev/null
{fault}
exec "$@"
"""


def why_not() -> str:
    """Why there can be no nodes here; empty when there can."""
    missing = [program for program in ("unshare", "mount", "cc") if shutil.which(program) is None]
    if missing:
        return f"no {', no '.join(missing)}"
    why = network.why_not()
    if why:
        return why
    words = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "true"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return f"no namespaces: {done.stderr.strip()}" if done.returncode else ""


@dataclass(frozen=True)
class _Hosts:
    """As `fault_clock` wants to know a sandbox: its folder, and its nodes."""

    dir: Path
    node_names: tuple[str, ...] = NODES


class Nodes:
    """A context manager. `check_nodes` may be called again and again; each call begins with nodes that are well."""

    def __init__(self) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="tmatrix-", dir="/tmp"))
        self.tag = secrets.token_hex(4)
        self._network = Network(NODES)
        self._groups: list[Path] = []
        self._well: Readings = {}

    def __enter__(self) -> Nodes:
        try:
            self._network.__enter__()
            for name in ("run", "up", "site", "checks.d", "logs", "sys"):
                (self.dir / name).mkdir()
            check = self.dir / "checks.d" / "10-fans.sh"
            check.write_text(_SITE.format(self.dir / "site"))
            check.chmod(0o755)
            self._gpus = nvml_stub.environment(nvml_stub.build(self.dir / "lib"), self.dir / "gpus")
            self._clock: Any = _Hosts(self.dir)
            self._clocks = fault_clock.clock_env(self._clock)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._network.__exit__(kind, error, trace)
        for group in self._groups:
            with contextlib.suppress(OSError):
                group.rmdir()
        shutil.rmtree(self.dir, ignore_errors=True)

    def check_nodes(self, fault: Fault | None = None, node: str = "", *, probe: bool = False) -> tuple[Report, float]:
        """The report, with what has changed since the nodes were well where the fault is watched; and the seconds."""
        self._heal()
        probe = probe or (fault is not None and fault.probe)
        about, wishes = self._wishes(probe, fault.limits if fault else ())
        if fault is not None:
            self._break(fault, node)
        env = {name: self._env(name, fault if name == node else None) for name in NODES}

        def reach(name: str, argv: list[str]) -> list[str]:
            return self._reach(name, argv, fault if name == node else None)

        delay = self._delayed(fault, node)
        try:
            began = time.monotonic()
            transport = Watched(LocalTransport(NODES, reach, env), self._trigger(fault, node))
            report = check_nodes(transport, wishes)
            took = time.monotonic() - began
        finally:
            if delay is not None:
                delay.end()
            self._kill_all()
        if fault is None:
            self._well = report.readings
        elif fault.watch:
            return _with_changes(report, self._well, about), took
        return report, took

    def _wishes(self, probe: bool, limits: tuple[tuple[str, float], ...]) -> tuple[About, HealthRequest]:
        words = secrets.token_hex(16)
        path = self.dir / "run" / "token"
        path.write_text(words)
        about = About(
            gpus=GPUS,
            since=time.time() - 2.0,
            folders=(str(self.dir / "run"), str(self.dir / "up" / "scratch")),
            token=token(str(path), words),
            site_checks=str(self.dir / "checks.d"),
        )
        where = tuple(self._network.addresses.items())
        return about, HealthRequest(about, limits=limits, probe=probe, addresses=where)

    def _heal(self) -> None:
        self._network.heal()
        fault_clock.reset_clock(self._clock)
        for node in NODES:
            nvml_stub.write(self.dir / "gpus", node, nvml_stub.healthy(GPUS, node))
            (self.dir / "logs" / node).write_text("")
            (self.dir / "site" / node).unlink(missing_ok=True)
            root = self.dir / "sys" / node
            shutil.rmtree(root, ignore_errors=True)
            for path, text in _sysfs():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(f"{text}\n")

    def _break(self, fault: Fault, node: str) -> None:
        if fault.gpus is not None:
            state = fault.gpus(nvml_stub.healthy(GPUS, node))
            if state is None:
                nvml_stub.remove(self.dir / "gpus", node)
            else:
                nvml_stub.write(self.dir / "gpus", node, state)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        (self.dir / "logs" / node).write_text("".join(f"{stamp} {line}\n" for line in fault.log))
        for path, text in fault.files.items():
            if text is None:
                shutil.rmtree(self.dir / "sys" / node / path)
            else:
                (self.dir / "sys" / node / path).write_text(f"{text}\n")
        if fault.site:
            (self.dir / "site" / node).write_text(f"{fault.site}\n")
        if fault.clock:
            fault_clock.jump_clock(self._clock, fault.clock, node)
        how, _, much = fault.net.partition(" ")
        others = [neighbour(node)] if fault.pair else [n for n in NODES if n != node]
        if how == "throttle":
            for other in others:
                self._network.throttle(node, other, much)
                self._network.throttle(other, node, much)
        elif how in ("lose", "cut"):
            for other in others:
                self._network.lose(node, other, 1.0 if how == "cut" else float(much))
                self._network.lose(other, node, 1.0 if how == "cut" else float(much))

    def _delayed(self, fault: Fault | None, node: str) -> Delay | None:
        how, _, much = fault.net.partition(" ") if fault is not None else ("", "", "")
        return Delay(self._network, node, float(much) / 1e3) if how == "delay" else None

    def _env(self, node: str, fault: Fault | None) -> dict[str, str]:
        env = {
            **self._gpus,
            "SLURMD_NODENAME": node,  # as slurmd sets it: the clock goes by it from the very start
            TAG: f"{self.tag}-{node}",
            "TAG": f"{self.tag}-{node}",
            "TRANSOM_KERNEL_LOG": str(self.dir / "logs"),
            "TRANSOM_SYSFS": str(self.dir / "sys" / node),
            "TRANSOM_STATE_DIR": str(self.dir / "state"),
        }
        if fault is None:
            return env
        own = {name: value.replace("$TAG", env["TAG"]) for name, value in fault.env.items()}
        if "PYTHONPATH" in own:
            own["PYTHONPATH"] += f":{ROOT}"
        return env | own | (self._clocks if fault.clock else {})

    def _reach(self, node: str, argv: list[str], fault: Fault | None) -> list[str]:
        script = _NODE.format(
            scratch=self.dir / "up" / "scratch", up=self.dir / "up", run=self.dir / "run",
            python=shlex.quote(sys.executable), fault=fault.shell if fault is not None else "",
        )  # fmt: skip
        words = ["sleep", "600"] if fault is not None and fault.never else argv
        apart = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return [*self._network.prefixes[node], *apart, "sh", "-c", script, node, *words]

    # --- what is done to a node while it is checked ---

    def _trigger(self, fault: Fault | None, node: str) -> Callable[[str, str], None]:
        """Called with what a node has just sent ("here", "hello"), or with the phase that is requested next."""
        if fault is None or not fault.when:
            return lambda what, source: None
        done = []

        def act(what: str, source: str) -> None:
            if what == fault.when and source in ("", node) and not done:
                done.append(what)
                self._do(fault, node)

        return act

    def _do(self, fault: Fault, node: str) -> None:
        pids = self._pids(node, "transom_cli.health.node_worker" if fault.whom == "worker" else "health.probe.rank")
        if fault.do == "slow":
            group = CGROUP / f"{self.tag}-{node}"
            if not group.exists():
                group.mkdir()
                self._groups.append(group)
            (group / "cpu.cfs_quota_us").write_text(f"{round(SHARE * 100_000)}")
            for pid in pids:
                (group / "cgroup.procs").write_text(str(pid))
        elif fault.do == "throttle":
            these = [str(proc.ident.pid) + ":" + str(proc.ident.start) for p in pids if (proc := processes.read(p))]
            words = [sys.executable, "-m", "transom_cli.sandbox.throttle", str(SHARE), *these]
            subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        else:
            for pid in pids:
                os.kill(pid, signal.SIGKILL if fault.do == "kill" else signal.SIGSTOP)

    def _pids(self, node: str, words: str = "") -> list[int]:
        wanted = f"{TAG}={self.tag}-{node}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                mine = wanted in (path / "environ").read_bytes().split(b"\0")
                if mine and words.encode() in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
        return found

    def _kill_all(self) -> None:
        for node in NODES:
            for pid in self._pids(node):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for path in (f"/tmp/{self.tag}-{node}", f"/tmp/{self.tag}-{node}.ro"):
                shutil.rmtree(path, ignore_errors=True)
                with contextlib.suppress(OSError):
                    Path(path).unlink()


class Watched:
    """A transport that reports every message to the fault injector, received ones and those about to be sent."""

    def __init__(self, transport: LocalTransport, act: Callable[[str, str], None]) -> None:
        self._transport, self._act = transport, act

    @property
    def nodes(self) -> tuple[str, ...]:
        return self._transport.nodes

    @property
    def over(self) -> bool:
        return self._transport.over

    def gone(self) -> tuple[str, ...]:
        return self._transport.gone()

    def send(self, message: Message, to: Sequence[str] = ()) -> None:
        if message.get("do") == "probe" and (phase := message["request"].get("phase")):
            self._act(str(phase), "")
        self._transport.send(message, to)

    def receive(self, timeout: float) -> Message | None:
        message = self._transport.receive(timeout)
        if message is not None:
            what = message["answer"].get("says") if message.get("re") == "probe" else message.get("re")
            self._act(str(what), str(message.get("node")))
        return message

    def close(self) -> None:
        self._transport.close()


def _sysfs() -> Iterator[tuple[str, str]]:
    """A machine that is well."""
    yield "devices/system/clocksource/clocksource0/current_clocksource", "tsc"
    for number in range(_PORTS):
        yield f"class/infiniband/mlx5_{number}/board_id", "MT_0000000838"
        for path, text in _PORT.items():
            yield f"class/infiniband/mlx5_{number}/ports/1/{path}", text
    for counter in ("ce_count", "ue_count"):
        yield f"devices/system/edac/mc/mc0/{counter}", "0"


def _with_changes(report: Report, former: Readings, about: About) -> Report:
    """What an agent that watches would say: only what is new since the nodes were well."""
    found: list[Finding] = []
    for node in NODES:
        for check in CHECKS:
            pair = [of.get(node, {}).get(check.name, {}).get("reading") for of in (former, report.readings)]
            if check.changes is not None and None not in pair:
                was, now = (build(check.reading, reading) for reading in pair)
                found += check.changes(node, was, now, APART, about, limits_of(check.limits, {}))
    return Report(report.nodes, tuple(found), report.readings, report.clocks, report.seconds)
