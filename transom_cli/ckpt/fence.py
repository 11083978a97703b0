"""Which launch may publish in a checkpoints directory: the newest that was started over it.

A rank of an older launch may live on where nobody reaches it, on a node that is cut off from its launcher. The file
system may still reach it, so the word is left there: `.fence` names the newest launch, and a writer of an older one
publishes and deletes nothing more. What remains is the moment between a writer's look and its rename.

The file's writers are the launcher, before its launch, and the first rank of each Checkpointer, which may have a
directory of its own: one that finds a newer launch there leaves the file as it is.
"""

from __future__ import annotations

from pathlib import Path

from transom_cli.ckpt.failures import TakenOver
from transom_cli.ckpt.names import FENCE, age
from transom_cli.files import publish_text

_LONGEST = 200  # bytes of a fence that are read


def take(directory: Path, launch: str) -> None:
    """Let only `launch` (`<job id>.<restart>.<launch>`) and newer ones publish; before its first rank starts.

    Raises TakenOver when a newer one stands there, and OSError when the fence cannot be written: the one before stands.
    """
    directory.mkdir(parents=True, exist_ok=True)
    newer = newer_than(directory, launch)
    if newer:
        path = directory / FENCE
        raise TakenOver(f"launch {newer} has taken over the checkpoints; if its job is long over, remove {path}")
    if _named(directory) != launch:  # a rank that finds its launcher's word there leaves it alone
        publish_text(directory / FENCE, launch + "\n")


def check(directory: Path, attempt: str) -> None:
    """Raises TakenOver when a newer launch than the writer's own has been started."""
    newer = newer_than(directory, attempt)
    if newer:
        raise TakenOver(f"launch {newer} has taken over; {attempt} publishes and deletes no more checkpoints")


def newer_than(directory: Path, attempt: str) -> str:
    """The launch that the fence names when it is newer; "" otherwise, also when the fence cannot be read or makes no
    sense, and for a writer that transom has not started.
    """
    named = _named(directory)
    own, theirs = age(attempt), age(named)
    return named if own is not None and theirs is not None and theirs > own else ""


def _named(directory: Path) -> str:
    try:
        with (directory / FENCE).open("rb") as file:
            return file.read(_LONGEST).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
