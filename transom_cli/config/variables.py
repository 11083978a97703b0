"""Environment variables that start with TRANSOM_ and are not settings. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Mapping

RUN_VARIABLES: frozenset[str] = frozenset(
    {
        "TRANSOM_RUN_DIR",
        "TRANSOM_ATTEMPT",
        "TRANSOM_ATTEMPT_DIR",
        "TRANSOM_LAUNCH",
        "TRANSOM_BEAT_DIR",
        "TRANSOM_MEMORY",
        "TRANSOM_MEMORY_LINGER",
        "TRANSOM_CHECKPOINT_DIR",
        "TRANSOM_ROLE",
    }
)
"""What transom tells its own processes and the ranks of one run."""

_OTHERS = (
    "TRANSOM_SANDBOX",
    "TRANSOM_REQUIRE_SLURM",
    "TRANSOM_NODE",
    "TRANSOM_TIER",
    "TRANSOM_SYSFS",
    "TRANSOM_STATE_DIR",
    "TRANSOM_KERNEL_LOG",
    "TRANSOM_XID_RULES",
    "TRANSOM_DCGM_LEVEL",
    "TRANSOM_PROBE_FLIP",
    "TRANSOM_NVML",
)
"""The sandbox's marks on its processes, what the test suite reads, what a site's own checks are told, where checks read
from in place of /sys, and where the history of nodes lives; by their first letters."""


def is_setting(name: str) -> bool:
    """Whether a variable is meant as a setting (perhaps a misspelt one)."""
    return name.startswith("TRANSOM_") and name not in RUN_VARIABLES and not name.startswith(_OTHERS)


def outer_run_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What an outer run left in this environment, which a new run's job must not inherit.

    A run started from inside another one would else write its beats and checkpoints into the outer run's directory.
    """
    return tuple(sorted(RUN_VARIABLES & environ.keys()))
