"""What one source tells of a failure, in the words that all sources share. Pure.

Sources: logs, stacks, collectives (flight recorder), beats (silence, slowness), loss (numerics), checks (health).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Category(str, enum.Enum):
    """What went wrong. The names are part of `transom diagnose --json`, of rules and of policies."""

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
    """It failed, and nothing that is known tells why."""


class Action(str, enum.Enum):
    """What is to be done, as `transom diagnose --json` names it; a run's policy may see it differently."""

    NONE = "none"
    REQUEUE = "requeue"
    ISOLATE = "isolate_node_and_requeue"
    STOP = "stop"


@dataclass(frozen=True)
class Culprit:
    """node: "" and rank: None where that is not determinable. device: of a GPU or port, as its source names it."""

    node: str = ""
    rank: int | None = None
    device: str = ""

    def __str__(self) -> str:
        parts = [f"rank {self.rank}" if self.rank is not None else "", self.device, self.node and f"on {self.node}"]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class Root:
    """A line of a log: as it stands there, its file, and its number (from 1)."""

    line: str
    file: str = ""
    lineno: int = 0


@dataclass(frozen=True)
class Clue:
    """source: as above. confidence: 0 to 1. evidence: sentences for a person, the telling one first.

    at: wall clock in seconds, None where the source has no time. root: of a clue from logs. culprits: the likeliest
    first; () is an honest "not determinable". consequences: what this explains, in words.
    """

    source: str
    category: Category
    confidence: float
    evidence: tuple[str, ...]
    culprits: tuple[Culprit, ...] = ()
    at: float | None = None
    root: Root | None = None
    consequences: tuple[str, ...] = ()
