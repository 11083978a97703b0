"""Run directories: created completely or not at all, and found by name, ID or path."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.config.sources import default_root
from transom_cli.errors import NoSuchRun, NotPermitted, TransomError, UsageError
from transom_cli.files import fsync_dir, make_private, make_state_folder, publish_text
from transom_cli.layout import RUN_ID, RunDir
from transom_cli.ownership import is_own, other_owner
from transom_cli.submit.sharing import group_id, share_folder, share_root

if TYPE_CHECKING:
    from transom_cli.config.model import Settings

_MAX_NAME = 100  # with stamp and suffix, far below the 255 bytes that file systems allow


def clean_name(name: str) -> str:
    """Return `name` with only the characters that a run ID may have, or "run" if none remain."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:_MAX_NAME] or "run"


def plan_run(root: Path, name: str, now: datetime) -> RunDir:
    """Return a new run's ID and directory without creating anything. now: UTC, by which IDs sort."""
    return RunDir(root.absolute() / f"{clean_name(name)}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}")


def create_run(run: RunDir, settings: Settings, script_text: str) -> RunDir:
    """Create a planned run's directory with run.toml and job.sbatch. Only its owner can read it, or with `run.share`
    a group can read it too, except for files that may contain secrets.

    It appears by one rename when all of it is on disk. On an error nothing is left behind.

    Raises:
        TransomError: it cannot be created (NotPermitted: permissions are missing).
        FileExistsError: another run has the ID.
    """
    from transom_cli.config.load import freeze

    root, draft = run.path.parent, run.path.parent / f".{run.run_id}.new"
    group = group_id(settings.run.group) if settings.run.group else None
    try:
        new = not root.exists()
        make_root(root)
        if new and group is not None:
            share_root(root, group)
        draft.mkdir(mode=0o700)
        try:
            if group is not None:
                share_folder(draft, group)
            draft_run = RunDir(draft)
            for folder in (draft_run.attempts, draft_run.epochs, draft_run.requests):
                make_private(folder)
            publish_text(draft_run.settings, freeze(settings))
            publish_text(draft_run.script, script_text, private=True)  # scripts often contain tokens
            draft.rename(run.path)  # fails if another run's directory is there, since it is not empty
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
            raise FileExistsError(error.errno, "the run ID is already used", str(run.path)) from error
        raise path_error(error, run.path) from error
    return run


def make_root(root: Path) -> None:
    """Create the folder of run directories. Raises OSError, also where others could replace a run's directory.

    The default folder is transom's own, and becomes private. Another one may be shared by a group: acting on a run
    checks the owner of its directory.
    """
    if root == default_root():
        make_state_folder(root.parent)
        make_state_folder(root)
        return
    make_private(root)
    mode = root.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        why = f"everyone can rename and replace runs in it: chmod o-w {root}, or chmod +t {root}"
        raise PermissionError(errno.EPERM, why, str(root))


def new_run(root: Path, name: str, now: datetime, settings: Settings, script: str | Callable[[Path], str]) -> RunDir:
    """Plan and create a run. script: the text of job.sbatch, or what renders it for a given directory."""
    while True:
        run = plan_run(root, name, now)
        with contextlib.suppress(FileExistsError):
            return create_run(run, settings, script if isinstance(script, str) else script(run.path))


def list_runs(root: Path) -> list[RunDir]:
    """Return the runs in `root`, newest first; none if `root` does not exist."""
    try:
        entries = list(root.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise path_error(error, root, doing="read the runs in") from error
    dated = []
    for path in entries:
        match = RUN_ID.fullmatch(path.name)
        with contextlib.suppress(OSError):
            if match:
                dated.append((match["stamp"], described(RunDir(path)).st_mtime_ns, path))
    return [RunDir(path.absolute()) for _, _, path in sorted(dated, reverse=True)]


def described(run: RunDir) -> os.stat_result:
    """Return the status of the file that makes a directory a run: its settings, or what a purge of old files has left.

    Raises:
        FileNotFoundError, NotADirectoryError: There is no run.
    """
    for path in (run.settings, run.summary):
        with contextlib.suppress(FileNotFoundError):
            return path.stat()
    return run.journal.stat()


def unreadable_runs(root: Path) -> list[RunDir]:
    """Return the runs in `root` that `list_runs` omits because we may not read their directories."""
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


def find_run(root: Path, wanted: str | None = None, *, own: bool = False) -> RunDir:
    """Return the run that `wanted` names: a path, an ID, a name (its newest run) or the unique start of an ID.

    None means the newest run. The user's own runs come before those of others. With `own`, None never selects another
    user's run.

    Raises:
        NoSuchRun: with the nearest names, or all IDs with an ambiguous start.
        NotPermitted: the only match is a run that we may not read.
    """
    if wanted and "/" in wanted:
        return _run_at(Path(wanted))
    runs = list_runs(root)
    if not runs:
        _refuse_unreadable(root, wanted)
        raise NoSuchRun(
            f"no run `{wanted}`: there are no runs in {root}" if wanted else f"no runs in {root}",
            "" if root.exists() else "no such directory",
            hint="start one with `transom run -- COMMAND`, or give another folder with --root",
        )
    if wanted is None:
        mine = _first_own(runs)
        if own and mine is None:
            raise NoSuchRun(
                f"you have no runs in {root}",
                f"the newest, {runs[0].run_id}, belongs to {other_owner(runs[0]) or 'another user'}",
                "`transom list` shows all runs; give your own folder of runs with --root",
            )
        return mine or runs[0]
    exact = [run for run in runs if run.run_id == wanted] or [run for run in runs if run_name(run) == wanted]
    if exact:
        return _first_own(exact) or exact[0]
    fitting = [run.run_id for run in runs if wanted and run.run_id.startswith(wanted)]
    if len(fitting) == 1:
        return RunDir(root.absolute() / fitting[0])
    if fitting:
        raise NoSuchRun(
            f"{len(fitting)} runs start with `{wanted}`",
            why="\n".join(fitting[:10]),
            hint="give more of the ID, or the whole name for its newest run",
        )
    _refuse_unreadable(root, wanted)
    raise NoSuchRun(f"no run `{wanted}` in {root}", why=_near(wanted, runs), hint="`transom list` shows all runs")


def _first_own(runs: list[RunDir]) -> RunDir | None:
    return next((run for run in runs if is_own(run)), None)


def _refuse_unreadable(root: Path, wanted: str | None) -> None:
    fitting = [run for run in unreadable_runs(root) if run.run_id.startswith(wanted or "")]
    if fitting:
        path = fitting[-1].path
        raise NotPermitted(
            f"cannot read the run {path}", "Permission denied", hint=f"check its owner and mode: ls -ld {path}"
        )


def run_name(run: RunDir) -> str:
    """Return the name in a run ID."""
    match = RUN_ID.fullmatch(run.run_id)
    return match["name"] if match else run.run_id


def path_error(
    error: OSError, path: Path, *, doing: str = "create the run directory", instead: str = "choose another --root"
) -> TransomError:
    """Return the error for a failed system call: disk full, read-only, no permission, or the system's message."""
    what = f"cannot {doing} {path}"
    why = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return TransomError(what, why, hint=f"free some space (`df -h {path.parent}`; `quota`), or {instead}")
    if error.errno == errno.EROFS:
        return NotPermitted(what, why, hint=f"use a writable file system, or {instead}")
    if error.errno in (errno.EACCES, errno.EPERM):
        there = path if os.path.exists(path) else path.parent  # noqa: PTH110 - `Path.exists` may raise this error again
        return NotPermitted(what, why, hint=f"check the permissions (`ls -ld {there}`), or {instead}")
    if error.errno in (errno.ENOTDIR, errno.ENAMETOOLONG, errno.EEXIST, errno.ELOOP):
        return UsageError(what, why, hint=instead)
    return TransomError(what, why, hint=instead)


def _run_at(path: Path) -> RunDir:
    with contextlib.suppress(RuntimeError):  # "~nobody/..."
        path = path.expanduser()
    run = RunDir(path.absolute())
    try:
        described(run)
    except (FileNotFoundError, NotADirectoryError):
        why = "it contains no run.toml" if run.path.is_dir() else "no such directory"
    except OSError as error:
        raise path_error(error, run.path, doing="look for a run at", instead="name another run") from error
    else:
        return run
    raise NoSuchRun(f"no run at {run.path}", why=why, hint="`transom list` shows all runs")


def _near(wanted: str, runs: list[RunDir]) -> str:
    ids = [run.run_id for run in runs]
    if wanted.isdecimal():
        of_job = next((run.run_id for run in runs if next(run.attempts.glob(f"{wanted}.*"), None)), "")
        if of_job:
            return f"job {wanted} belongs to the run {of_job}"
    names = list(dict.fromkeys(run_name(run) for run in runs))
    near = difflib.get_close_matches(wanted, names, n=3) + difflib.get_close_matches(wanted, ids, n=3)
    return f"similar: {', '.join(near)}" if near else f"the newest are: {', '.join(ids[:3])}"
