"""The values that all sources of a diagnosis share: categories, actions, culprits and clues. Pure.

Sources: logs, stacks, collectives (flight recorder), heartbeats (stalls, slowness), loss (numerics), checks (health).
"""

import enum
from dataclasses import dataclass


class Slow(str, enum.Enum):
    """Why a training is slow. A clue carries the closest `Category`, which has no value for slowness."""

    STORAGE = "slow_storage"
    LOADER = "slow_loader"
    DEVICE = "slow_device"
    NODE = "slow_node"
    LINK = "slow_link"
    ALL = "slow_all"


class Trouble(str, enum.Enum):
    """What is wrong with the loss, the gradient norm or the loss scale."""

    NAN = "nan_loss"
    INF = "infinite_loss"
    SPIKE = "loss_spike"
    STUCK = "stuck_loss"
    NORM = "gradient_not_finite"
    EXPLODING = "gradient_explosion"
    SCALE = "loss_scale_at_minimum"


NO_NUMBER = (Trouble.NAN, Trouble.INF)


class Silent(str, enum.Enum):
    """What guards against silent corruption have found (core.silent)."""

    CORRUPTION = "silent_corruption"  # the state is doubtful
    NODE = "corrupting_node"  # a node computes wrong
    SOFTWARE = "differs_by_software"  # no node is at fault
    OPEN = "corruption_unexplained"  # over, and nothing shows who was wrong
    VALUE = "value_not_finite"  # in a gradient, located by layer


ODDITIES = tuple(one.value for one in (*Slow, *Trouble, *Silent))


class Category(str, enum.Enum):
    """What went wrong. The values appear in `transom diagnose --json`, in log rules and in policies."""

    GPU_HARDWARE = "gpu_hardware"
    NVLINK_FABRIC = "nvlink_fabric"
    DRIVER_MISMATCH = "driver_mismatch"
    NETWORK_FABRIC = "network_fabric"
    NCCL_HANG = "nccl_hang"
    CUDA_KERNEL_FAULT = "cuda_kernel_fault"
    CUDA_OOM = "cuda_oom"
    HOST_OOM = "host_oom"
    STORAGE_FULL = "storage_full"
    STORAGE_IO = "storage_io"
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    DATA_LOADER = "data_loader"
    NUMERIC_DIVERGENCE = "numeric_divergence"
    USER_CODE = "user_code"
    DEPENDENCY_IMPORT = "dependency_import"
    EXTERNAL_SERVICE = "external_service"
    RENDEZVOUS_PORT = "rendezvous_port"
    RESOURCE_LIMITS = "resource_limits"
    PROCESS_CRASH = "process_crash"
    SLURM_NODE_FAIL = "slurm_node_fail"
    SLURM_TIME_LIMIT = "slurm_time_limit"
    SLURM_PREEMPTED = "slurm_preempted"
    SLURM_CANCELLED = "slurm_cancelled"
    SLURM_LAUNCH = "slurm_launch"
    UNKNOWN = "unknown"
    """The training failed, and nothing known explains it."""


DEVICES = (Category.GPU_HARDWARE, Category.NVLINK_FABRIC)
"""Faults of a device, which outlive the job."""


class Action(str, enum.Enum):
    """What to do, as in `transom diagnose --json`. A run's policy may decide otherwise."""

    NONE = "none"
    REQUEUE = "requeue"
    ISOLATE = "isolate_node_and_requeue"
    STOP = "stop"


@dataclass(frozen=True)
class Culprit:
    """Who caused a failure.

    Args:
        node: host name, or "" if it cannot be determined.
        rank: global rank, or None if it cannot be determined.
        device: GPU or port, as its source names it.
    """

    node: str = ""
    rank: int | None = None
    device: str = ""

    def __str__(self) -> str:
        parts = [f"rank {self.rank}" if self.rank is not None else "", self.device, self.node and f"on {self.node}"]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class Root:
    """A log line, its file and its line number (from 1)."""

    line: str
    file: str = ""
    lineno: int = 0


@dataclass(frozen=True)
class Clue:
    """What one source says about a failure.

    Args:
        source: one of the sources named above.
        confidence: 0 to 1.
        evidence: sentences for people, the most telling one first.
        culprits: the likeliest first; empty if they cannot be determined.
        at: wall clock in seconds; None if the source has no time.
        root: the root cause line; only from logs.
        consequences: what this failure explains, as text.
    """

    source: str
    category: Category
    confidence: float
    evidence: tuple[str, ...]
    culprits: tuple[Culprit, ...] = ()
    at: float | None = None
    root: Root | None = None
    consequences: tuple[str, ...] = ()
