"""Reading a user's script from disk, with a clear word for each way in which that fails."""

from __future__ import annotations

from pathlib import Path

from transom_cli.errors import NotPermitted, UsageError

_LARGEST = 4 * 1024 * 1024  # Slurm's own limit (max_script_size) unless the site raised it
_TRY = "transom run train.sbatch, or transom run [options] -- COMMAND"


def read_script(path: Path) -> str:
    """The script's text; bytes that are not UTF-8 (a comment in Latin-1) come back unharmed when it is written.

    UsageError or NotPermitted, naming the path, when there is no such file, or no file that could be a script.
    """
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a directory, not a script", hint=_TRY)
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"no such script: {path}", hint=f"{_near(path)}{_TRY}") from None
    except PermissionError as error:
        raise NotPermitted(
            f"cannot read the script {path}", error.strerror or "", hint=f"look at `ls -l {path}`"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read the script {path}", error.strerror or str(error), hint=_TRY) from error
    except ValueError as error:  # a NUL in the name
        raise UsageError(f"{str(path)!r} cannot be a script's name", str(error), hint=_TRY) from error
    if data.startswith((b"\x7fELF", b"\x1f\x8b", b"PK\x03\x04")) or b"\0" in data:
        raise UsageError(
            f"{path} is a binary file, not a script", hint=f"to run it as the training itself: transom run -- {path}"
        )
    if len(data) > _LARGEST:
        raise UsageError(
            f"{path} is too long for a batch script", f"{len(data)} bytes; Slurm takes {_LARGEST}", hint=_TRY
        )
    return data.decode("utf-8", "surrogateescape")


def _near(path: Path) -> str:
    """Scripts that lie where the missing one was looked for."""
    try:
        found = sorted(p.name for p in path.parent.iterdir() if p.suffix in (".sbatch", ".sh", ".slurm", ".job"))
    except OSError:
        return ""
    return f"scripts there: {', '.join(found[:5])}\n" if found else ""
