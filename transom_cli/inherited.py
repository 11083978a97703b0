"""Variables that a trainer inherits: those that identify a rank and its launch, and glibc's tunables. Pure."""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it: the wrapper of every rank pays for its imports
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A shell's own belong to another launch.
_RANK = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE"),
        *("PET_NODE_RANK", "PET_NNODES", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
        *("PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_BACKEND", "PET_STANDALONE"),
    }
)
_KEPT = ("TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_ENABLE_FILE_TIMER")  # say nothing of a launch


def rank_variables(names: Iterable[str]) -> tuple[str, ...]:
    """Return the variables that would make a trainer believe it is a rank of another launch."""
    return tuple(sorted(n for n in names if n in _RANK or (n.startswith("TORCHELASTIC_") and n not in _KEPT)))


TUNABLES = "GLIBC_TUNABLES"
_STREAM_FROM = "glibc.cpu.x86_non_temporal_threshold"
_BYTES = 256 << 10  # larger copies bypass the caches; glibc's own threshold, far above a tensor, follows the last level


def with_streaming_copies(env: Mapping[str, str]) -> str:
    """Return the value of GLIBC_TUNABLES that makes snapshots of tensors faster (`ckpt.save.fast_copy`).

    glibc reads it only when a process starts. A threshold that the user has set stays; other C libraries ignore it.
    """
    given = env.get(TUNABLES, "")
    if _STREAM_FROM in given:
        return given
    return f"{given}:{_STREAM_FROM}={_BYTES}".lstrip(":")
