"""Run directories: made whole or not at all, and found again by name, id or path."""

from __future__ import annotations

import contextlib
import difflib
import errno
import re
import secrets
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.errors import NoSuchRun, NotPermitted, TransomError, UsageError
from transom_cli.files import fsync_dir, publish_text
from transom_cli.layout import RUN_ID, RunDir

if TYPE_CHECKING:
    from transom_cli.config.model import Settings

_NAME_LENGTH = 100  # with stamp and suffix far below the 255 bytes that file systems allow


def clean_name(name: str) -> str:
    """``name`` in the letters that a run id may have. A name with none of them becomes "run"."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:_NAME_LENGTH] or "run"


def plan_run(root: Path, name: str, now: datetime) -> RunDir:
    """A new run's id and directory. Nothing is made yet: `--dry-run` needs no more. Ids sort by ``now``: give UTC."""
    return RunDir(root.absolute() / f"{clean_name(name)}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}")


def create_run(run: RunDir, settings: Settings, script_text: str) -> RunDir:
    """Make a planned run's directory with run.toml and job.sbatch in it, readable by its owner only.

    It appears by one rename when all of it is on disk. Raises TransomError (NotPermitted where rights are lacking)
    with nothing left behind; FileExistsError when another run took the id.
    """
    from transom_cli.config.load import freeze

    root, draft = run.path.parent, run.path.parent / f".{run.run_id}.new"
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft.mkdir(mode=0o700)
        try:
            half_made = RunDir(draft)
            for folder in (half_made.attempts, half_made.epochs, half_made.requests):
                folder.mkdir(mode=0o700)
            publish_text(half_made.settings, freeze(settings))
            publish_text(half_made.script, script_text)
            draft.rename(run.path)  # onto another run's directory, which is not empty, this fails
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        try:
            fsync_dir(root)
        except BaseException:
            shutil.rmtree(run.path, ignore_errors=True)
            raise
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and run.path.exists():
            raise FileExistsError(error.errno, "the run id is taken", str(run.path)) from error
        raise explain(error, run.path) from error
    return run


def new_run(root: Path, name: str, now: datetime, settings: Settings, script: str | Callable[[Path], str]) -> RunDir:
    """Plan and create. ``script`` is the text of job.sbatch, or renders it for the directory it is given."""
    while True:
        run = plan_run(root, name, now)
        with contextlib.suppress(FileExistsError):
            return create_run(run, settings, script if isinstance(script, str) else script(run.path))


def list_runs(root: Path) -> list[RunDir]:
    """The runs under ``root``, newest first. A root that does not exist yet has none."""
    try:
        entries = list(root.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise explain(error, root, doing="read the runs in") from error
    dated = []
    for path in entries:
        match = RUN_ID.fullmatch(path.name)
        with contextlib.suppress(OSError):
            if match:
                dated.append((match["stamp"], RunDir(path).settings.stat().st_mtime_ns, path))
    return [RunDir(path.absolute()) for _, _, path in sorted(dated, reverse=True)]


def unreadable_runs(root: Path) -> list[RunDir]:
    """The runs under ``root`` that `list_runs` leaves out, since their directories are not open to us."""
    found = []
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if RUN_ID.fullmatch(path.name):
            try:
                RunDir(path).settings.stat()
            except PermissionError:
                found.append(RunDir(path.absolute()))
            except OSError:
                continue
    return found


def find_run(root: Path, wanted: str | None = None) -> RunDir:
    """The run that ``wanted`` names: a path, an id, a name (its newest run) or the unique start of an id.

    None is the newest run. Raises NoSuchRun, which lists the nearest, or all that an ambiguous start would fit;
    NotPermitted where only one fits that we may not read.
    """
    if wanted and "/" in wanted:
        return _run_at(Path(wanted))
    runs = list_runs(root)
    if not runs:
        _refuse_unreadable(root, wanted)
        raise NoSuchRun(
            f"no runs in {root}", hint="start one with `transom run -- COMMAND`, or name another folder with --root"
        )
    if wanted is None:
        return runs[0]
    exact = [run for run in runs if run.run_id == wanted] or [run for run in runs if run_name(run) == wanted]
    if exact:
        return exact[0]
    fitting = [run.run_id for run in runs if wanted and run.run_id.startswith(wanted)]
    if len(fitting) == 1:
        return RunDir(root.absolute() / fitting[0])
    if fitting:
        raise NoSuchRun(
            f"{len(fitting)} runs start with `{wanted}`",
            why="\n".join(fitting[:10]),
            hint="give more of the id, or the whole name for its newest run",
        )
    _refuse_unreadable(root, wanted)
    raise NoSuchRun(f"no run `{wanted}` in {root}", why=_near(wanted, runs), hint="`transom list` shows all runs")


def _refuse_unreadable(root: Path, wanted: str | None) -> None:
    fitting = [run for run in unreadable_runs(root) if run.run_id.startswith(wanted or "")]
    if fitting:
        path = fitting[-1].path
        raise NotPermitted(f"cannot read the run {path}", "Permission denied", hint=f"whose is it? `ls -ld {path}`")


def run_name(run: RunDir) -> str:
    """The name in a run id."""
    match = RUN_ID.fullmatch(run.run_id)
    return match["name"] if match else run.run_id


def explain(
    error: OSError, path: Path, *, doing: str = "make the run directory", instead: str = "choose another --root"
) -> TransomError:
    """What a failed system call means to a person: full, read-only, forbidden, or as the system says it."""
    what = f"cannot {doing} {path}"
    why = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return TransomError(what, why, hint=f"make room (`df -h {path.parent}`; `quota`), or {instead}")
    if error.errno == errno.EROFS:
        return NotPermitted(what, why, hint=f"{instead}, on a file system that can be written to")
    if error.errno in (errno.EACCES, errno.EPERM):
        return NotPermitted(what, why, hint=f"look at `ls -ld {path.parent}`, or {instead}")
    if error.errno in (errno.ENOTDIR, errno.ENAMETOOLONG, errno.EEXIST, errno.ELOOP):
        return UsageError(what, why, hint=instead)
    return TransomError(what, why, hint=instead)


def _run_at(path: Path) -> RunDir:
    with contextlib.suppress(RuntimeError):  # "~nobody/..."
        path = path.expanduser()
    run = RunDir(path.absolute())
    try:
        if run.settings.is_file():
            return run
        why = "there is no run.toml in it" if run.path.is_dir() else "there is no such directory"
    except OSError as error:
        raise explain(error, run.path, doing="look for a run at", instead="name another run") from error
    raise NoSuchRun(f"no run at {run.path}", why=why, hint="`transom list` shows all runs")


def _near(wanted: str, runs: list[RunDir]) -> str:
    ids = [run.run_id for run in runs]
    names = list(dict.fromkeys(run_name(run) for run in runs))
    near = difflib.get_close_matches(wanted, names, n=3) + difflib.get_close_matches(wanted, ids, n=3)
    return f"near: {', '.join(near)}" if near else f"the newest are: {', '.join(ids[:3])}"
