"""Checkpoints worth resuming from. `from transom_cli.ckpt import Checkpointer` is all that a trainer needs.

Torch is imported when `Checkpointer` is first asked for, and not before: listing and verifying checkpoints
(`ckpt.inventory`, `ckpt.manifest`) must work, and start fast, where there is no torch at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transom_cli.ckpt.failures import NoCheckpointRestores, RanksDiffer, SaveFailed, WorldSizeChanged

if TYPE_CHECKING:
    from transom_cli.ckpt.checkpointer import Checkpointer

__all__ = ["Checkpointer", "NoCheckpointRestores", "RanksDiffer", "SaveFailed", "WorldSizeChanged"]


def __getattr__(name: str) -> Any:
    if name == "Checkpointer":
        from transom_cli.ckpt.checkpointer import Checkpointer

        return Checkpointer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
