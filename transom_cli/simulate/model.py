"""What a simulation assumes: faults and their rates, costs, the cluster and the run. Frozen values. Pure.

Every number here is an assumption that a user can replace. docs/simulate.md lists them with their sources.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import log2

from transom_cli.core.launcher import Policy as LauncherPolicy
from transom_cli.core.operator.state import Policy
from transom_cli.core.stall_state import StallLimits
from transom_cli.core.step_times import StepTimes

HOUR, DAY = 3600.0, 86400.0
CRASH, LOST, HANG, SLOW, ALARM, CORRUPT = EFFECTS = ("crash", "lost", "hang", "slow", "alarm", "corrupt")


@dataclass(frozen=True)
class Fault:
    """A class of faults of one node. Times in seconds.

    Attributes:
        share: Its weight among all faults.
        effect: crash: a rank ends. lost: the node stops answering. hang: the ranks stop stepping. slow: they step more
            slowly. alarm: a check suspects a healthy node. corrupt: they compute wrong values, and step on.
        stays: Probability that the node stays broken until it is repaired; otherwise the next launch works.
        category, line: What the logs say, as in `diagnose.clue.Category`.
        check: The health check that can prove the fault; "" if none can.
        found, found_deep: Probability that it does so during training or in a preflight, and in a deep check. If the
            effect is corrupt: found is that of the guard.
        again: Mean time until a broken node fails again.
        repair: Median time out of service, once the node is drained or lost.
        factor: Of the step time, if the effect is slow.
        stopped: The process that hangs is seen to be stopped: the tight limit applies.
        hardware: A hardware fault, as the trace says.
    """

    name: str
    share: float
    effect: str = CRASH
    stays: float = 0.0
    category: str = "unknown"
    line: str = ""
    check: str = ""
    found: float = 0.0
    found_deep: float = 0.0
    again: float = 900.0
    repair: float = 20.4 * HOUR
    factor: float = 1.0
    stopped: bool = False
    hardware: bool = False


# Shares: the 419 unexpected interruptions of Llama 3 405B, by count. How often a fault stays and is found is our
# assumption. The median repair times are those of the StepFun trace, by class. What a guard finds is measured
# (docs/silent.md). Slow nodes and silent corruption have no share unless you give them one.
FAULTS = (
    Fault("gpu", 262, stays=0.5, category="gpu_hardware", line="CUDA error: uncorrectable ECC error encountered",
          check="gpu_xid", found=0.7, found_deep=0.9, repair=16.8 * HOUR),
    Fault("network", 42, stays=0.3, category="network_fabric", line="NCCL WARN Net: connection closed by remote peer",
          check="ib_link", found=0.5, found_deep=0.8, repair=37.4 * HOUR),
    Fault("node", 46, LOST, repair=77.5 * HOUR),
    Fault("software", 56, category="process_crash"),
    Fault("hang", 13, HANG, stays=0.2, check="compute_speed", found_deep=0.5),
    Fault("slow", 0, SLOW, stays=1.0, factor=1.2),
    Fault("corrupt", 0, CORRUPT, stays=0.5, found=0.72, repair=16.8 * HOUR),
)  # fmt: skip


@dataclass(frozen=True)
class Hazard:
    """How often nodes fail. Every node has its own rate.

    Attributes:
        per_node_day: Faults of a node that never failed, on average over all nodes.
        spread: Variance over mean squared of the rates of the nodes (a gamma distribution); 0: all are equal.
        flapping: Nodes that returned fail more often for a month, as published (`core.node_hazard`).
        switch_per_day, switch_nodes, switch_outage: Events that cut off neighbouring nodes at once, and for how long.
        power_per_day, power_nodes, power_outage: The same, for those that lose power.
        repair_spread: Sigma of the log-normal repair times: the trace's mean is 6.5 times its median.
        notice: Mean time until the site itself notices a broken node and drains it; 0: never.
    """

    per_node_day: float = 4.0e-3
    spread: float = 0.0
    flapping: bool = False
    switch_per_day: float = 0.0
    switch_nodes: int = 16
    switch_outage: float = 300.0
    power_per_day: float = 0.0
    power_nodes: int = 64
    power_outage: float = HOUR
    repair_spread: float = 1.93
    notice: float = DAY
    faults: tuple[Fault, ...] = FAULTS


@dataclass(frozen=True)
class Outage:
    """One recorded outage: `begin` and `end` in seconds from the start of the trace."""

    node: str
    begin: float
    end: float
    fault: Fault


@dataclass(frozen=True)
class Trace:
    """Recorded outages of `nodes` nodes, `length` seconds long. Nodes without an outage count too."""

    outages: tuple[Outage, ...]
    nodes: int
    length: float


@dataclass(frozen=True)
class Costs:
    """How long everything takes, in seconds, at a given model and cluster size.

    Attributes:
        step: One training step.
        save_every: Steps between saves. 0: never.
        stall: Time for which a save blocks the training.
        copied: Time from a save until its snapshot is committed and protected in the nodes' memory.
        persist_every: One of how many saves becomes durable.
        persist: Time from the save until it is durable.
        slows: Share of that time which it takes from the training.
        memory: Snapshots stay in the nodes' memory: a relaunch resumes from them.
        protect: How snapshots are protected against lost nodes, as for the Checkpointer.
        start: From a launch to its first step, without reading the state.
        read_memory, read_disk: Reading the state.
        in_process: Start of a relaunch on the same nodes by processes that stay alive; 0: all processes start again.
        launcher: From the start of a job to its launcher.
        preflight, deep: A round of checks.
        end, evidence, logs: Ending a launch; collecting stacks after a hang; reading logs.
        probe, isolate, requeue: The operator's actions.
        queue: Mean wait of a requeued job, exponential, once its nodes are free.
        slurm_down: Silence after which Slurm calls a node down.
        reset: Until the ranks on other nodes fail when a node vanishes; 0: they wait for it.
        look: Until the operator sees what the launcher wrote.
        slow_after, guard_after: Until a slow node, and a wrong value, is reported.
        noise: Sigma of the log-normal durations.
    """

    step: float = 10.0
    save_every: int = 30
    stall: float = 1.0
    copied: float = 10.0
    persist_every: int = 10
    persist: float = 120.0
    slows: float = 0.02
    memory: bool = True
    protect: str = "xor:4"
    start: float = 90.0
    read_memory: float = 10.0
    read_disk: float = 60.0
    in_process: float = 0.0
    launcher: float = 5.0
    preflight: float = 15.0
    deep: float = 120.0
    end: float = 3.0
    evidence: float = 5.0
    logs: float = 2.0
    probe: float = 3.0
    isolate: float = 1.0
    requeue: float = 3.0
    queue: float = 0.0
    slurm_down: float = 300.0
    reset: float = 0.0
    look: float = 0.3
    slow_after: float = 120.0
    guard_after: float = 60.0
    noise: float = 0.2

    @classmethod
    def of(cls, nodes: int, *, params: float = 0.0, gpus: int = 8, bandwidth: float = 50e9, **known: float) -> Costs:
        """Estimate the costs that depend on model and cluster. `known` values replace estimates.

        The state is 14 bytes per parameter. A node copies its share at 20 GB/s per GPU, protects it at 10 GB/s and
        reads it back at 10 GB/s; the file system carries `bandwidth` bytes/s for all. Start-up grows with the
        logarithm of the number of ranks.
        """
        state = 14.0 * params
        share = state / max(1, nodes)
        estimates: dict[str, float] = {"start": 40.0 + 8.0 * log2(max(2, nodes * gpus))}
        if params:
            estimates |= {
                "stall": 0.1 + share / (20e9 * gpus),
                "copied": 1.0 + 2 * share / 10e9,
                "persist": 5.0 + state / bandwidth,
                "read_memory": 1.0 + share / 10e9,
                "read_disk": 5.0 + state / bandwidth,
            }
        return replace(cls(), **{**estimates, **known})  # type: ignore[arg-type]

    @property
    def pace(self) -> float:
        """Seconds per step, with what saves and durable checkpoints take."""
        if not self.save_every:
            return self.step
        write = self.slows * self.persist / self.persist_every if self.persist_every else 0.0
        return self.step + (self.stall + write) / self.save_every


@dataclass(frozen=True)
class Site:
    """Who else uses the cluster.

    Attributes:
        others: Share of the other nodes that other jobs hold when the job is requeued. It keeps its place in the queue:
            only jobs that end before it can start are backfilled, so nodes only become free.
        others_hours: Mean time until such a job ends.
        maintenance_days, maintenance_hours: Time between maintenance windows (0: none), and their length. A job whose
            time limit reaches into a window starts after it. One without a limit is ended at its begin.
    """

    others: float = 0.0
    others_hours: float = 12.0
    maintenance_days: float = 0.0
    maintenance_hours: float = 8.0


@dataclass(frozen=True)
class Scenario:
    """One simulated run.

    Attributes:
        nodes, spares: With and without ranks.
        fewest: Nodes that may train while others are lost, at a speed in proportion; 0: always all.
        unit: They are a multiple of it.
        pool: Nodes of the cluster that the job may use; 0: as many as the job requests, and 4% more.
        trace: Recorded outages, in place of `hazard`.
        steps: Length of the training; 0: it ends with the time.
        limit, warn: Time limit of an attempt, and Slurm's warning before it; 0: none.
        limits: Of the stall detector.
        lifts: Administrators lift a drained node's exclusion when they return it.
        probation: Nodes that returned are spares before they carry a rank, as in a real run.
        operator, launcher: The settings of the deciders.
    """

    nodes: int
    days: float = 30.0
    spares: int = 0
    fewest: int = 0
    unit: int = 1
    pool: int = 0
    hazard: Hazard = field(default_factory=Hazard)
    trace: Trace | None = None
    costs: Costs = field(default_factory=Costs)
    site: Site = field(default_factory=Site)
    steps: int = 0
    limit: float = 0.0
    warn: float = 120.0
    limits: StallLimits = field(default_factory=StallLimits)
    lifts: bool = True
    probation: bool = True
    operator: Policy = field(default_factory=Policy)
    launcher: LauncherPolicy = field(default_factory=lambda: LauncherPolicy(preflight=True, deep=True))

    @property
    def tight(self) -> float:
        """Seconds without a step before a silent node counts as lost."""
        limits = self.limits
        return StepTimes(median=self.costs.step).tight(limits.factor, limits.floor, limits.ceiling)

    @property
    def patient(self) -> float:
        """Seconds without a step before the training counts as hung."""
        limits, times = self.limits, StepTimes(median=self.costs.step)
        return times.patient(limits.factor, limits.patience, limits.floor, limits.ceiling)

    @property
    def requested(self) -> int:
        return self.nodes + self.spares

    @property
    def names(self) -> tuple[str, ...]:
        width = self.pool or self.requested + max(1, -(-self.requested // 25))
        return tuple(f"node{i:05d}" for i in range(1, width + 1))
