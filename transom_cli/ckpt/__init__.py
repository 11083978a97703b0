"""Checkpoints. A trainer needs only `from transom_cli.ckpt import Checkpointer`.

Torch is imported when `Checkpointer` is first used, and not before: listing and verifying checkpoints
(`ckpt.inventory`, `ckpt.manifest`) must work, and start fast, without torch.
"""

from typing import TYPE_CHECKING, Any

from transom_cli.ckpt.failures import NoCheckpointRestores, RanksDiffer, RanksMissing, SaveFailed, WorldSizeChanged

if TYPE_CHECKING:
    from transom_cli.ckpt.checkpointer import Checkpointer

__all__ = ["Checkpointer", "NoCheckpointRestores", "RanksDiffer", "RanksMissing", "SaveFailed", "WorldSizeChanged"]


def __getattr__(name: str) -> Any:
    if name == "Checkpointer":
        from transom_cli.ckpt.checkpointer import Checkpointer

        return Checkpointer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
