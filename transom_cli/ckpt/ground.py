"""A checkpoints directory, made ready by the ranks that are to write there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transom_cli.ckpt import fence, files
from transom_cli.ckpt.engine import describe
from transom_cli.ckpt.failures import TakenOver
from transom_cli.ckpt.names import Here, abandoned, age
from transom_cli.ckpt.ranks import Ranks
from transom_cli.errors import UsageError


def prepare(directory: Path, ranks: Ranks, here: Here, say: Callable[[str], None]) -> None:
    """Make the directory ours, and remove what writers that are gone left in it.

    Raises on all ranks: TakenOver when a newer launch has the directory, UsageError when it cannot be used.
    """
    trouble = taken = ""
    if ranks.first:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _fence(directory, here.attempt, say)
            for child in directory.iterdir():
                if abandoned(child.name, here):
                    files.delete_tree(child)
        except TakenOver as error:
            taken = error.what
        except OSError as error:
            trouble = describe(error)
    trouble, taken = ranks.from_first((trouble, taken))
    if taken:
        raise TakenOver(taken)
    if trouble:
        raise UsageError(f"Checkpoints cannot be kept in {directory}", trouble, f"ls -la {directory.parent}")


def _fence(directory: Path, attempt: str, say: Callable[[str], None]) -> None:
    """The launcher has fenced the directory that it knows of, which need not be this one.

    A fence that cannot be written keeps nobody from training; a trainer started by hand has no launch to name.
    """
    if age(attempt) is None:
        return
    try:
        fence.take(directory, attempt)
    except OSError as error:
        say(f"ranks of older launches are not fenced off from {directory}: {describe(error)}")
