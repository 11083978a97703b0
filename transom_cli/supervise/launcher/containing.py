"""The words that put a rank's command into a container by Apptainer (or its elder, Singularity). Pure.

The rank's wrapper stays outside, so the image needs nothing of transom's. /dev, and with it /dev/shm, is the host's by
default, and so are its processes: the command gets the signals that srun sends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transom_cli.errors import UsageError

PROGRAMS = ("apptainer", "singularity")
_GPU_FLAGS = ("--nv", "--nvccli", "--rocm")


@dataclass(frozen=True)
class Image:
    """An image, and what its user adds: mounts as SRC:DST[:flags], flags of `apptainer exec` each one whole."""

    image: str
    mounts: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


def container_words(image: Image, program: str, folders: Sequence[Path], *, gpus: bool) -> tuple[str, ...]:
    """`PROGRAM exec ... IMAGE`, for before the command. folders: which the ranks need at the same path as outside."""
    by_user = {mount.split(":")[1] if ":" in mount else mount for mount in image.mounts}
    binds = [str(folder) for folder in dict.fromkeys(folders) if str(folder) not in by_user]
    given = gpus and not any(arg in _GPU_FLAGS for arg in image.args)
    words = [f"--bind={bind}" for bind in (*binds, *image.mounts)]
    return (program, "exec", *(["--nv"] if given else []), *words, *image.args, image.image)


def find_program(which: Callable[[str], str | None]) -> str:
    found = next((name for name in PROGRAMS if which(name) is not None), None)
    if found is None:
        raise UsageError(
            "Neither apptainer nor singularity is here, and the training is to run in a container by it",
            "looked for on the PATH of the batch script, after `job.setup`",
            "load it there: --set 'job.setup=[\"module load apptainer\"]'",
        )
    return found
