"""Checkpoints directories, made ready by the ranks that are to write there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from transom_cli.ckpt import also, fence, files
from transom_cli.ckpt.failures import TakenOver
from transom_cli.ckpt.names import Here, abandoned, age
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.save.engine import describe
from transom_cli.errors import TransomError, UsageError


def prepare(directory: Path, ranks: Ranks, here: Here, say: Callable[[str], None]) -> None:
    """Make the directory ours, and remove what writers that are gone left in it.

    Raises on all ranks: TakenOver when a newer launch has the directory, UsageError when it cannot be used.
    """
    trouble = taken = ""
    if ranks.first:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _take(directory, here, say)
        except TakenOver as error:
            taken = error.what
        except OSError as error:
            trouble = describe(error)
    trouble, taken = ranks.from_first((trouble, taken))
    if taken:
        raise TakenOver(taken)
    if trouble:
        raise UsageError(f"Checkpoints cannot be kept in {directory}", trouble, f"ls -la {directory.parent}")


def prepare_also(
    directories: Mapping[Path, int], main: Path, ranks: Ranks, here: Here, say: Callable[[str], None]
) -> dict[Path, int]:
    """The same for directories that get copies. Returns those that can be used, as rank 0 has them: one that cannot
    (a file system that is away) is told and left out, since the training can do without it.

    Raises on all ranks: TakenOver, and UsageError when a directory is another training's.
    """
    usable: dict[Path, int] = {}
    refused: tuple[type[TransomError], tuple[str, str, str]] | None = None
    for directory, every in directories.items() if ranks.first else ():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            also.claim(directory, main)
            _take(directory, here, say)
            usable[directory] = every
        except (TakenOver, UsageError) as error:
            refused = type(error), (error.what, error.why, error.hint)
            break
        except OSError as error:
            say(f"no checkpoints are copied to {directory}, and none is looked for there: {describe(error)}")
    refused, usable = ranks.from_first((refused, usable))
    if refused is not None:
        raise refused[0](*refused[1])
    return usable


def _take(directory: Path, here: Here, say: Callable[[str], None]) -> None:
    _fence(directory, here.attempt, say)
    for child in directory.iterdir():
        if abandoned(child.name, here):
            files.delete_tree(child)


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
