"""Which launch may publish in a checkpoints directory: the newest that was started over it.

A rank of an older launch may live on where nothing can stop it, on a node that is cut off from its launcher. The file
system may still reach it, so the fence is there: `.fence` names the newest launch, and a writer of an older one
publishes and deletes nothing more. A race remains only between a writer's check and its rename.

The launcher writes the file before its launch, and so does the first rank of each Checkpointer, which may have a
directory of its own. A writer that finds a newer launch there leaves the file as it is.
"""

from pathlib import Path

from transom_cli.ckpt.failures import TakenOver
from transom_cli.ckpt.names import FENCE, age
from transom_cli.files import make_private, publish_text

_LONGEST = 200  # bytes of a fence that are read


def take(directory: Path, launch: str) -> None:
    """Let only `launch` (`<job id>.<restart>.<launch>`) and newer ones publish, before its first rank starts.

    Raises TakenOver: the fence names a newer launch; OSError: the fence cannot be written, and stays as it is.
    """
    make_private(directory)
    newer = newer_than(directory, launch)
    if newer:
        path = directory / FENCE
        raise TakenOver(f"launch {newer} has taken over the checkpoints; if its job is long over, remove {path}")
    if _named(directory) != launch:  # a rank that finds its launcher's fence leaves it alone
        publish_text(directory / FENCE, launch + "\n")


def check(directory: Path, attempt: str) -> None:
    """Raise TakenOver if a newer launch than the writer's own has been started."""
    newer = newer_than(directory, attempt)
    if newer:
        raise TakenOver(f"launch {newer} has taken over; {attempt} publishes and deletes no more checkpoints")


def newer_than(directory: Path, attempt: str) -> str:
    """Return the launch that the fence names if it is newer; otherwise "".

    Also "" if the fence cannot be read or parsed, and for a writer that transom has not started.
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
