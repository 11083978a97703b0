"""Read and check what a submission uses on this host: the user's script, the command, the run folder, the templates."""

from __future__ import annotations

import contextlib
import difflib
import re
import shutil
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import transom_cli
from transom_cli.errors import REINSTALL, NotPermitted, TransomError, UsageError

if TYPE_CHECKING:
    from transom_cli.config.model import Settings

_MAX_SCRIPT = 4 * 1024 * 1024  # bytes: Slurm's default limit (max_script_size)
_USAGE = "transom run train.sbatch, or transom run [options] -- COMMAND"


def read_script(path: Path, usage: str = _USAGE) -> str:
    """Read the user's script. Bytes that are not UTF-8 (a comment in Latin-1) survive when it is written again.

    Raises:
        UsageError, NotPermitted: there is no such file, or it cannot be a script.
    """
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a directory, not a script", hint=usage)
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"no such script: {path}", hint=f"{_near(path)}{usage}") from None
    except PermissionError as error:
        raise NotPermitted(
            f"cannot read the script {path}", error.strerror or "", hint=f"look at `ls -l {path}`"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read the script {path}", error.strerror or str(error), hint=usage) from error
    except ValueError as error:  # a NUL in the name
        raise UsageError(f"{str(path)!r} is not a valid file name", str(error), hint=usage) from error
    if data.startswith((b"\x7fELF", b"\x1f\x8b", b"PK\x03\x04")) or b"\0" in data:
        hint = f"to run it as the training command: transom run -- {path}" if usage == _USAGE else usage
        raise UsageError(f"{path} is a binary file, not a script", hint=hint)
    if len(data) > _MAX_SCRIPT:
        raise UsageError(
            f"{path} is too long for a batch script",
            f"it has {len(data)} bytes, and Slurm accepts {_MAX_SCRIPT}",
            hint=usage,
        )
    return data.decode("utf-8", "surrogateescape")


def _near(path: Path) -> str:
    """Return a line with the scripts in the folder of the missing one."""
    try:
        found = sorted(p.name for p in path.parent.iterdir() if p.suffix in (".sbatch", ".sh", ".slurm", ".job"))
    except OSError:
        return ""
    return f"scripts in that folder: {', '.join(found[:5])}\n" if found else ""


_PYTHON = re.compile(r"python[0-9.]*")
_PROGRAMS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "bash", "srun")  # of trainings
_NO_SCRIPT = ("-m", "-c", "-")  # what python runs instead of a file
_WITH_VALUE = ("-X", "-W")


def missing_program(words: tuple[str, ...], settings: Settings, where: Path) -> str:
    """Return the program or script that is not found from `where`, the job's directory, or "".

    With `job.setup` or a container, this host cannot know.
    """
    if settings.job.setup or settings.launch.container.image:
        return ""
    if settings.launch.kind == "torchrun":
        return "" if words[0].startswith("-") or (where / words[0]).exists() else words[0]
    program = words[0]
    if not ((where / program).exists() if "/" in program else shutil.which(program)):
        return program
    script = _script(words[1:]) if _PYTHON.fullmatch(Path(program).name) else ""
    return script if script and not (where / script).exists() else ""


def similar_program(name: str, where: Path) -> str:
    """Return a program, or a file in the folder of the missing one, with nearly the same name; "" if there is none."""
    folder = where / Path(name).parent if Path(name).suffix or "/" in name else None
    with contextlib.suppress(OSError):
        known = [p.name for p in folder.iterdir()] if folder is not None else [*_PROGRAMS]
        found = difflib.get_close_matches(Path(name).name, known, 1, 0.7)
        return str(Path(name).with_name(found[0])) if found else ""
    return ""


def _script(words: tuple[str, ...]) -> str:
    """Return the file that python runs."""
    left = iter(words)
    for word in left:
        if word in _NO_SCRIPT:
            return ""
        if not word.startswith("-"):
            return word
        if word in _WITH_VALUE:
            next(left, "")
    return ""


_NODE_LOCAL = {
    "tmpfs": "in this machine's memory",
    "ramfs": "in this machine's memory",
    "overlay": "a container's own layer",
}


_NETWORK = "nfs nfs4 lustre gpfs beegfs ceph cifs smb3 afs panfs wekafs glusterfs 9p"


def root_warning(root: Path, mountinfo: str | None = None, home: Path | None = None) -> str | None:
    """Return a warning if `root`, which need not exist yet, is on a file system that is not made for runs.

    Either other nodes cannot see it, or it is the users' home file system. None proves nothing, since a local disk and
    an exported one have the same type; the launcher checks on the nodes.

    mountinfo: the text of /proc/self/mountinfo, which is read by default. home: the user's home directory, by default.
    """
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
        except OSError:
            return None
    folder = root.absolute().resolve()
    found = mount_of(folder, mountinfo)
    if found is None:
        return None
    mount, kind = found
    if kind in _NODE_LOCAL:
        return (
            f"{root} is on {mount}, a {kind} ({_NODE_LOCAL[kind]}): other nodes cannot see it. "
            "Set `root` (--root) to a folder on the shared file system"
        )
    home = (home or Path.home()).resolve()
    together = mount != "/" and mount_of(home, mountinfo) == found
    if kind in _NETWORK.split() and (together or folder.is_relative_to(home)):
        return (
            f"{root} is on the file system of home directories ({mount}, {kind}): the heartbeats, logs and checkpoints "
            "of a large run make it slow for all users, and a full quota stops the run. "
            "Set `root` (--root) to a folder on the scratch or project file system"
        )
    return None


def mount_of(path: PurePath, mountinfo: str) -> tuple[str, str] | None:
    """Return mount point and file system type of `path`. The last mount on a mount point hides earlier ones. Pure."""
    best: tuple[str, str] | None = None
    for line in mountinfo.splitlines():
        fields, _, after = line.partition(" - ")
        columns = fields.split(" ")
        if len(columns) < 5 or not after:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), columns[4])
        if path.is_relative_to(point) and (best is None or len(point) >= len(best[0])):
            best = (point, after.split(" ")[0])
    return best


FOLDER = "sbatch_templates"


def template_folder(package: Path | None = None) -> Path:
    """Return the folder of the sbatch templates: inside an installed package, or beside it in a source checkout."""
    package = package or Path(transom_cli.__file__).resolve().parent
    places = (package / FOLDER, package.parent / FOLDER)
    for place in places:
        if (place / "_header.j2").is_file():
            return place
    raise TransomError(
        "transom's sbatch templates are missing from this installation",
        why="looked in " + " and ".join(map(str, places)),
        hint=REINSTALL,
    )
