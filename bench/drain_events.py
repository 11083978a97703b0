"""Makes what happens in a situation (`drain_plan`), with the sandbox's faults, and undoes it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import from_tests  # noqa: F401
import nvml_stub
from chaos_faults import Hand, NotNow, Place
from drain_plan import Situation
from harness import Bench, LiveRun, wait_for

from transom_cli.errors import TransomError, UsageError
from transom_cli.sandbox import faults, processes
from transom_cli.sandbox.cluster import Sandbox
from transom_cli.sandbox.fault_processes import rank_tops

GPUS = 2
HARMLESS = (
    "NVRM: Xid (PCI:0000:1f:00): 31, pid=4711, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS",
    "NVRM: Xid (PCI:0000:1f:00): 13, pid=4711, name=python3, Graphics SM Warp Exception on (GPC 1, TPC 0)",
    "NVRM: Xid (PCI:0000:1f:00): 43, pid=4711, name=python3, Ch 00000010",
    "NVRM: Xid (PCI:0000:1f:00): 63, Row Remapper: New row marked for remapping, reset gpu to activate.",
    "NVRM: Xid (PCI:0000:1f:00): 94, pid=4711, name=python3, Ch 00000008, Contained: SM",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0",
    "mce: [Hardware Error]: Machine check events logged",
    "INFO: task python3:4711 blocked for more than 120 seconds.",
    "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:8388608kB",
    "nfs: server fs1 not responding, still trying",
    "mlx5_core 0000:3b:00.0 ib0: Link is Down",
    "EXT4-fs error (device loop3): ext4_lookup:1785: inode #2: comm python3: deleted inode referenced: 12",
    "python3[4711]: NVRM: Xid (PCI:0000:1f:00): 79, GPU has fallen off the bus.",
    "usb 1-1: Product: NVRM: Xid (PCI:0000:1f:00): 79, GPU has fallen off the bus.",
)
SUSPICIOUS = (
    "blk_update_request: I/O error, dev sda, sector 1000 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
    "NVRM: Xid (PCI:0000:1f:00): 48, pid='<unknown>', name=<unknown>, DBE (double bit error)",
    "pcieport 0000:00:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:01:00.0",
)
WARNINGS = ("ecc_corrected", "persistence_off", "pcie_replays", "hot", "row_remap_pending")
_XID = "NVRM: Xid (PCI:0000:1f:00): {}, pid='<unknown>', name=<unknown>, as the driver says it"
_LATER = {
    "disk-error-then-failure": "EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: reading directory lblock 0",
    "memory-error-then-failure": "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0",
}
Undo = Callable[[], object]


def nothing() -> None:
    """Undo an event that needs no undoing."""


class Hardware:
    """What the nodes' GPUs and kernels report, and what the site's own check says about them."""

    def __init__(self, folder: Path, nodes: tuple[str, ...]) -> None:
        self.nodes = nodes
        self.states, self.logs, self.checks, self.sick = (folder / n for n in ("gpus", "kernel", "checks", "sick"))
        for each in (self.logs, self.checks, self.sick):
            each.mkdir(parents=True)
        check = self.checks / "site-check"
        check.write_text(
            f'#!/bin/sh\n[ -e {self.sick}/$SLURMD_NODENAME ] || exit 0\necho "the fan tray is gone"\nexit 2\n'
        )
        check.chmod(0o755)
        self.env: Mapping[str, str] = {
            **nvml_stub.environment(nvml_stub.build(folder / "lib"), self.states),
            "TRANSOM_KERNEL_LOG": str(self.logs),
            "TRANSOM_HEALTH__SITE_CHECKS": str(self.checks),
        }
        self.mend()

    def mend(self) -> None:
        for node in self.nodes:
            nvml_stub.write(self.states, node, nvml_stub.healthy(GPUS, node))
            (self.logs / node).write_text("")
            (self.sick / node).unlink(missing_ok=True)

    def breaks(self, node: str, fault: str) -> None:
        state = nvml_stub.healthy(GPUS, node)
        broken = nvml_stub.with_missing(state) if fault == "missing" else nvml_stub.with_fault(state, fault, gpu=1)
        nvml_stub.write(self.states, node, broken)

    def logs_lines(self, node: str, *lines: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        with (self.logs / node).open("a") as log:
            log.writelines(f"{stamp} {line}\n" for line in lines)


@dataclass
class Scene:
    """A live run and what is around it. drained_by_people: nodes that an administrator of the bench drains."""

    bench: Bench
    run: LiveRun
    place: Place
    hardware: Hardware
    what: Situation
    target: str = ""
    drained_by_people: set[str] = field(default_factory=set)
    expected: tuple[str, ...] = ("done",)

    def __post_init__(self) -> None:
        self.hand = Hand(self.bench, self.run, self.place)

    @property
    def sb(self) -> Sandbox:
        return self.bench.sandbox

    @property
    def job(self) -> int:
        job = self.run.state.job
        if not job.id:
            raise NotNow("no job")
        return job.id

    @property
    def node(self) -> str:
        """The node of the situation: the same one from the first time that the job has nodes."""
        nodes = self.run.state.job.nodes
        if self.run.state.job.state != "RUNNING" or not nodes:
            raise NotNow("the job has no nodes")
        self.target = self.target or nodes[min(self.what.target, len(nodes) - 1)]
        return self.target

    def admin(self, *words: str) -> None:
        try:
            self.sb.slurm(*words)
        except TransomError as error:
            raise NotNow(error.why or error.what) from error

    def make(self) -> Undo:
        """Raises NotNow if what the event is about does not exist yet."""
        event = self.what.event
        try:
            for prefix, make in _BY_PREFIX.items():
                if event.startswith(prefix):
                    return make(self, event.removeprefix(prefix)) or nothing
            return _EVENTS[event](self) or nothing
        except UsageError as missing:
            raise NotNow(missing.why or missing.what) from missing

    def rank_tops(self) -> dict[int, processes.Proc]:
        ranks = [p for p in processes.of_job(self.sb.cluster, self.job) if p.environ.get("TRANSOM_ROLE") == "rank"]
        return rank_tops(ranks)

    def ranks_of(self, node: str) -> list[int]:
        return [rank for rank, proc in self.rank_tops().items() if processes.node_of(proc, self.sb.cluster) == node]

    @property
    def rank(self) -> int:
        """The rank of the situation, and no worker of a check that has its number."""
        if self.what.target not in self.rank_tops():
            raise NotNow("that rank does not run")
        return self.what.target


def _kill_ranks(s: Scene, node: str) -> None:
    ranks = s.ranks_of(node)
    if not ranks:
        raise NotNow(f"no rank runs on {node}")
    for rank in ranks:
        faults.kill_rank(s.sb, s.job, rank)


def _rank_pause(s: Scene) -> Undo:
    job = s.job
    rank = s.rank
    faults.stop_rank(s.sb, job, rank)
    return lambda: faults.cont_rank(s.sb, job, rank)


def _agent_pause(s: Scene) -> Undo:
    job, node = s.job, s.node
    faults.stop_agent(s.sb, job, node)
    return lambda: faults.cont_agent(s.sb, job, node)


def _agents_kill(s: Scene) -> None:
    for node in s.run.state.job.nodes:
        faults.kill_agent(s.sb, s.job, node)


def _launcher_pause(s: Scene) -> Undo:
    job = s.job
    faults.stop_launcher(s.sb, job)
    return lambda: faults.cont_launcher(s.sb, job)


def _operator_kill(s: Scene) -> Undo:
    if not s.hand.operator_lives():
        raise NotNow("there is no operator")
    s.run.kill_operator()
    return s.hand.attach


def _controller_kill(s: Scene) -> Undo:
    faults.kill_controller(s.sb)
    return lambda: faults.start_controller(s.sb)


def _controller_hang(s: Scene) -> Undo:
    faults.stop_controller(s.sb)
    return lambda: faults.cont_controller(s.sb)


def _controller_and_rank(s: Scene) -> Undo:
    faults.kill_rank(s.sb, s.job, s.rank)
    return _controller_hang(s)


def _restart_slurmds(s: Scene, nodes: tuple[str, ...]) -> Undo:
    """As an upgrade of the package does: slurmd ends, jobs live on."""
    known = {daemon.name: daemon for daemon in s.sb.daemons()}
    for node in nodes:
        os.kill(known[node].pid, signal.SIGTERM)
    return lambda: [s.sb.start(node) for node in nodes]


def _clock_jump(s: Scene) -> Undo:
    host, seconds = s.node, (-7200.0, 600.0, -30.0, 7200.0)[s.what.target + s.what.spares]
    faults.jump_clock(s.sb, seconds, host)
    return lambda: faults.reset_clock(s.sb, host)


def _disk(s: Scene, kind: str) -> Undo:
    place = s.place
    if kind == "full":
        faults.fill_disk(s.sb, place.below)
        return lambda: faults.free_disk(s.sb, place.below)
    if kind == "readonly":
        faults.readonly_disk(s.sb, place.root)
        return lambda: faults.writable_disk(s.sb, place.root)
    faults.stall_disk(s.sb, place.root)
    return lambda: faults.cont_disk(s.sb, place.root)


def _requeuehold(s: Scene) -> Undo:
    job = str(s.job)
    s.admin("scontrol", "requeuehold", job)
    return lambda: s.sb.slurm("scontrol", "release", job)


def _suspend(s: Scene) -> Undo:
    _ = s.node
    job = str(s.job)
    s.admin("scontrol", "suspend", job)
    return lambda: s.sb.slurm("scontrol", "resume", job)


def _admin_drain(s: Scene) -> Undo:
    node = s.node
    s.drained_by_people.add(node)
    s.admin("scontrol", "update", f"nodename={node}", "state=drain", "reason=an admin of the bench")
    return lambda: s.sb.slurm("scontrol", "update", f"nodename={node}", "state=resume")


def _admin_reboot(s: Scene) -> Undo:
    node = s.node
    s.drained_by_people.add(node)
    s.admin("scontrol", "reboot", "ASAP", "nextstate=RESUME", "reason=a new kernel", node)
    return nothing


def _maintenance(s: Scene) -> Undo:
    name = f"maint-{s.what.name}"
    s.admin("scontrol", "create", "reservation", f"reservationname={name}", "users=root", "starttime=now+15",
            "duration=2", "nodes=ALL", "flags=maint,ignore_jobs")  # fmt: skip
    return lambda: s.sb.slurm("scontrol", "delete", f"reservationname={name}")


def _preempt(s: Scene) -> None:
    _ = s.node
    words = ("sbatch", "-p", "high", "-N", str(len(s.sb.node_names)), "--exclusive", "--mem=100", "-o", "/dev/null")
    s.admin(*words, "--wrap", "sleep 8")


def _cancel(s: Scene) -> None:
    s.admin("scancel", str(s.job))
    s.expected = ("stopped",)


def _later(s: Scene, kind: str) -> None:
    s.hardware.logs_lines(s.node, _LATER[f"{kind}-then-failure"])

    def reported() -> bool:
        return any("host:kernel" in path.read_text() for path in s.run.dir.attempts.glob(f"*/nodes/{s.node}.jsonl"))

    wait_for(reported, 60.0, f"the agent's report of the line in {s.node}'s kernel log")
    time.sleep(1.0)
    _kill_ranks(s, s.node)


def _repeated(s: Scene) -> None:
    node = s.node
    for _ in range(2):
        launches = sum(1 for _ in s.run.dir.attempts.glob("*/logs/*"))
        _kill_ranks(s, node)

        def again(before: int = launches) -> bool:
            return sum(1 for _ in s.run.dir.attempts.glob("*/logs/*")) > before and bool(s.ranks_of(node))

        try:
            wait_for(again, 40.0, "a new launch")
        except TransomError:
            return  # the node carries no rank any more
        time.sleep(1.0)


def _gpu(s: Scene, fault: str) -> None:
    s.hardware.breaks(_expected_node(s), fault)


def _expected_node(s: Scene) -> str:
    """The node of the job; before the job has nodes, one that it will get: all are idle."""
    try:
        return s.node
    except NotNow:
        s.target = s.target or s.sb.node_names[s.what.target]
        return s.target


def _sick(s: Scene) -> None:
    (s.hardware.sick / _expected_node(s)).touch()


def _both(*parts: Callable[[Scene], Undo | None]) -> Callable[[Scene], Undo]:
    def make(s: Scene) -> Undo:
        undos = [part(s) or nothing for part in parts]
        return lambda: [undo() for undo in undos]

    return make


def _kill_node(s: Scene) -> None:
    faults.kill_node(s.sb, s.node)


def _kill_batch_host(s: Scene) -> None:
    _ = s.node
    s.target = s.run.state.job.batch_host or s.run.state.job.nodes[0]
    faults.kill_node(s.sb, s.target)


_EVENTS: dict[str, Callable[[Scene], Undo | None]] = {
    "rank-kill": lambda s: faults.kill_rank(s.sb, s.job, s.rank) and None,
    "rank-pause": _rank_pause,
    "ranks-killed-on-a-node": lambda s: _kill_ranks(s, s.node),
    "agent-kill": lambda s: faults.kill_agent(s.sb, s.job, s.node) and None,
    "agents-kill": _agents_kill,
    "agent-pause": _agent_pause,
    "launcher-kill": lambda s: faults.kill_launcher(s.sb, s.job) and None,
    "launcher-pause": _launcher_pause,
    "operator-kill": _operator_kill,
    "controller-kill": _controller_kill,
    "controller-hang": _controller_hang,
    "controller-and-rank": _controller_and_rank,
    "slurmd-restart": lambda s: _restart_slurmds(s, (s.node,)),
    "slurmds-restart": lambda s: _restart_slurmds(s, s.sb.node_names),
    "reconfigure": lambda s: s.admin("scontrol", "reconfigure"),
    "clock-jump": _clock_jump,
    "kernel-noise": lambda s: s.hardware.logs_lines(s.node, *HARMLESS),
    "kernel-suspicion": lambda s: s.hardware.logs_lines(s.node, SUSPICIOUS[s.what.target % len(SUSPICIOUS)]),
    "kernel-noise-everywhere": lambda s: (
        [s.hardware.logs_lines(n, *HARMLESS, SUSPICIOUS[0]) for n in s.sb.node_names] and None
    ),
    "gpu-warning": lambda s: s.hardware.breaks(s.node, WARNINGS[(s.what.target + 2 * s.what.spares) % len(WARNINGS)]),
    "user-cancel": _cancel,
    "user-requeue": lambda s: s.admin("scontrol", "requeue", str(s.job)),
    "user-requeuehold": _requeuehold,
    "user-suspend": _suspend,
    "admin-drain": _admin_drain,
    "admin-reboot": _admin_reboot,
    "maintenance": _maintenance,
    "preemption": _preempt,
    "node-kill": _kill_node,
    "node-hang": lambda s: faults.stop_node(s.sb, s.node) and None,
    "batch-host-kill": _kill_batch_host,
    "node-kill-controller-away": _both(_kill_node, _controller_hang),
    "node-kill-operator-away": _both(_operator_kill, _kill_node),
    "disk-error-then-failure": lambda s: _later(s, "disk-error"),
    "memory-error-then-failure": lambda s: _later(s, "memory-error"),
    "repeated-rank-failure": _repeated,
    "site-check": _sick,
}
_BY_PREFIX: dict[str, Callable[[Scene, str], Undo | None]] = {
    "disk-stall": lambda s, _: _disk(s, "stall"),
    "disk-readonly": lambda s, _: _disk(s, "readonly"),
    "disk-full": lambda s, _: _disk(s, "full"),
    "gpu-warning": lambda s, _: _EVENTS["gpu-warning"](s),
    "gpu-": _gpu,
    "xid-": lambda s, code: s.hardware.logs_lines(s.node, _XID.format(code)),
}
