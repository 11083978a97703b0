"""Environment variables that start with TRANSOM_ and are not settings. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Mapping

RUNTIME_VARIABLES: frozenset[str] = frozenset(
    {
        "TRANSOM_RUN_DIR",
        "TRANSOM_ATTEMPT",
        "TRANSOM_ATTEMPT_DIR",
        "TRANSOM_LAUNCH",
        "TRANSOM_BEAT_DIR",
        "TRANSOM_CHECKPOINT_DIR",
        "TRANSOM_ROLE",
        "TRANSOM_SANDBOX_DIR",
    }
)
"""What transom tells its own processes and the ranks. None of them is read as a setting."""

TEST_VARIABLES: frozenset[str] = frozenset({"TRANSOM_REQUIRE_SLURM"})
"""Read by the test suite only."""

_KEPT = frozenset({"TRANSOM_SANDBOX_DIR"})


def outer_run_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What an outer run left in this environment, which a new run's job must not inherit.

    A run started from inside another one would else write its beats and checkpoints into the outer run's directory.
    The sandbox's folder is kept: it tells which Slurm is meant, not which run.
    """
    return tuple(sorted(name for name in environ if name in RUNTIME_VARIABLES - _KEPT))
