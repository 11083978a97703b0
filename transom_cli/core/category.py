"""The category of a diagnosis, in the words that logs, rules and policies share (`diagnose.clue.Category`). Pure.

A run's own evidence names a cause (how it ended) and a line of a log; here both become one category. "" is a cause that
is no failure: an attempt that was left on purpose.
"""

from collections.abc import Collection

from transom_cli.diagnose.clue import Category

OWN_ERRORS = frozenset(("user_code", "dependency_import"))
"""The program's, which a restart would only repeat."""
OWN_WORDS = OWN_ERRORS | {
    *("storage_full", "storage_io", "checkpoint_corrupt", "data_loader", "numeric_divergence", "external_service"),
    *("rendezvous_port", "resource_limits", "host_oom"),
}
"""They say nothing of the node on which they were printed."""
CRIES = frozenset(("network_fabric", "nccl_hang"))
"""What ranks print that lost another one."""
DEVICE = frozenset(("gpu_hardware", "nvlink_fabric", "driver_mismatch", "cuda_kernel_fault"))

_OF_CAUSE = {
    "node_lost": Category.SLURM_NODE_FAIL,
    "node_silent": Category.SLURM_NODE_FAIL,
    "node_fail": Category.SLURM_NODE_FAIL,
    "boot_fail": Category.SLURM_NODE_FAIL,
    "time_limit": Category.SLURM_TIME_LIMIT,
    "preempted": Category.SLURM_PREEMPTED,
    "launch_failure": Category.SLURM_LAUNCH,
    "host_oom": Category.HOST_OOM,
    "hang": Category.NCCL_HANG,
    "no_checkpoint": Category.CHECKPOINT_CORRUPT,
    "state_differs": Category.CHECKPOINT_CORRUPT,
    "world_size": Category.USER_CODE,
    "resize": Category.USER_CODE,
    "run_dir_unseen": Category.STORAGE_IO,
    "do_not_restart": Category.USER_CODE,
    "diverged": Category.NUMERIC_DIVERGENCE,
    "corrupted": Category.GPU_HARDWARE,
}
_NAMES = frozenset(c.value for c in Category) - {Category.UNKNOWN.value}
_ON_PURPOSE = ("left", "maintenance", "isolated_nodes", "stop_request", "slow", "requested")
_OF_CHECK = (  # by the first letters of a check's name; the first that fits
    ("gpu_nvlink", Category.NVLINK_FABRIC),
    ("gpu_fabric", Category.NVLINK_FABRIC),
    ("gpu_", Category.GPU_HARDWARE),
    ("compute_", Category.GPU_HARDWARE),
    ("ib_", Category.NETWORK_FABRIC),
    ("link", Category.NETWORK_FABRIC),
    ("room", Category.STORAGE_FULL),
    ("mount", Category.STORAGE_IO),
    ("run_dir", Category.STORAGE_IO),
    ("write", Category.STORAGE_IO),
    ("memlock", Category.RESOURCE_LIMITS),
    ("nofile", Category.RESOURCE_LIMITS),
    ("nproc", Category.RESOURCE_LIMITS),
)


def category_name(category: str) -> str:
    """Return the category for a person. A rank hangs without NCCL too; files, rules and JSON keep the value."""
    return {Category.NCCL_HANG.value: "hang", "grow": "growth"}.get(category, category)


def category_of(
    cause: str, log_category: str, *, signalled: bool, checks: Collection[str] = (), stopped: bool = False
) -> str:
    """cause: as in `core.state.Diagnosis`. log_category: of the rank that died first, as in `events.Examined`. checks:
    names of checks that found faults of nodes. stopped: the process of a rank was stopped, for which the others waited.

    A process that was killed by a signal and printed nothing has crashed: nothing shows that it was out of memory.
    """
    if cause in _ON_PURPOSE:
        return ""
    if cause in ("node_fault", "preflight"):
        return _of_checks(checks).value
    if cause in _OF_CAUSE:
        return (Category.PROCESS_CRASH if stopped and cause == "hang" else _OF_CAUSE[cause]).value
    if log_category in _NAMES:
        return log_category
    if signalled:
        return Category.PROCESS_CRASH.value
    return Category.UNKNOWN.value


def _of_checks(checks: Collection[str]) -> Category:
    """Return the category of the first check in the order of that table. Checks of the host alone have none."""
    found = (c for first, c in _OF_CHECK if any(name.startswith(first) for name in checks))
    return next(found, Category.UNKNOWN)
