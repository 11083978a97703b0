"""Check who owns a run directory and who can write to it, before anything acts on the run. Standard library only.

A run directory names programs and contains a script that is submitted. Acting on another user's run would execute what
that user chose, in your name.
"""

import functools
import grp
import os
import pwd
import re
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from transom_cli.errors import NotPermitted
from transom_cli.layout import RunDir

_ROOT = 0
_JOB_LOG = re.compile(r"slurm-\d+\.log")  # a link, if the user's own script has its output elsewhere
_MOST_JOURNAL = 2 << 30  # bytes
_MOST_FILE = 64 << 20


def user_name(uid: int | None) -> str:
    """Return the user's name for messages, or "" if no user is known."""
    if uid is None:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"user {uid}"


def is_own(run: RunDir) -> bool:
    """Return whether the run directory belongs to the user of this process."""
    try:
        return run.path.stat().st_uid == os.geteuid()
    except OSError:
        return False


def other_owner(run: RunDir) -> str:
    """Return the name of the run's owner, or "" if it is the user of this process or not known."""
    try:
        uid = run.path.stat().st_uid
    except OSError:
        return ""
    return "" if uid == os.geteuid() else user_name(uid)


def require_own(
    run: RunDir, trusted_groups: Callable[[], Collection[str]] | None = None, *, attempt: Path | None = None
) -> None:
    """Refuse to act on another user's run, or on a run whose directory others can write to.

    Root's files are trusted.

    Args:
        trusted_groups: called if a file is writable by a group that is not the user's private one; such a file is
            accepted if its group is in the result. None: group permissions are not checked.
        attempt: check only the run directory and this attempt's directory.

    Raises:
        NotPermitted: with the owner or the group, and what to do.
    """
    me, folder = os.geteuid(), run.path
    try:
        top = folder.stat()
    except FileNotFoundError:
        return  # reported by the reader
    except OSError as error:
        raise NotPermitted(
            f"cannot determine the owner of the run {folder}", error.strerror or str(error), f"ls -ld {folder}"
        ) from None
    open_to_others = bool(top.st_mode & (stat.S_IXGRP | stat.S_IXOTH))
    groups: Collection[str] | None = None
    for path, status, linked in _checked_paths(folder, attempt):
        if status.st_uid not in (me, _ROOT):
            raise _not_own(run, path, status.st_uid, me)
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISLNK(status.st_mode) or not (open_to_others or linked):
            continue
        if mode & stat.S_IWOTH:
            raise _writable(run, path, "everyone", mode)
        if mode & stat.S_IWGRP and trusted_groups is not None and not _private(status.st_gid, me):
            groups = trusted_groups() if groups is None else groups
            if not {_group_name(status.st_gid), str(status.st_gid)} & set(groups):
                raise _writable(run, path, f"group {_group_name(status.st_gid)}", mode)


def require_consistent(run: RunDir) -> None:
    """Refuse to read another user's run if a file in it is not that user's, or cannot be read like a file.

    A planted FIFO, device or link would block the reader, fill its memory, or show it one of its own files. The user's
    own run is not checked: nobody else can write there.

    Raises:
        NotPermitted: with the file.
    """
    try:
        owner = run.path.stat().st_uid
    except OSError:
        return  # reported by the reader
    if owner == os.geteuid():
        return
    for path, status, linked in _checked_paths(run.path, None, deeper=True):
        what = _unreadable(path, status, owner, linked=linked)
        if what:
            raise NotPermitted(
                f"The run `{run.run_id}` of {user_name(owner)} is not read", f"{path} {what}", f"ls -l {path}"
            )


def _unreadable(path: Path, status: os.stat_result, owner: int, *, linked: bool) -> str:
    if status.st_uid not in (owner, _ROOT):
        return f"belongs to {user_name(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode):
        return "" if _JOB_LOG.fullmatch(path.name) else "is a symbolic link"
    if not stat.S_ISREG(status.st_mode) and (linked or not stat.S_ISDIR(status.st_mode)):
        return "is not a regular file"
    most = _MOST_JOURNAL if path.suffix in (".jsonl", ".log") else _MOST_FILE
    return f"has {status.st_size:,} bytes, more than any of transom's files" if status.st_size > most else ""


def _checked_paths(
    folder: Path, attempt: Path | None, *, deeper: bool = False
) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """Yield what a run is read from: path, status, and whether it is the target of a symbolic link.

    Checkpoints are left out: they are data, and may be shared. deeper: also the files that screens read in folders of
    the attempts.
    """
    yield from _statuses(folder)
    if attempt is not None:
        for path in (RunDir(folder).settings, attempt.parent, attempt):
            yield from _statuses(path)
        return
    run = RunDir(folder)
    for path in _entries(folder):
        if path != run.checkpoints:
            yield from _statuses(path)
    for one in _entries(run.attempts):
        yield from _statuses(one)
        for path in _entries(one):
            yield from _statuses(path)
        for name in ("nodes", "health") if deeper else ():
            for path in _entries(one / name):
                yield from _statuses(path)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise NotPermitted(f"cannot list {folder}", error.strerror or str(error), f"ls -ld {folder}") from None


def _statuses(path: Path) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """Yield the status of the path, and of its target if it is a link."""
    try:
        status = path.lstat()
        yield path, status, False
        if stat.S_ISLNK(status.st_mode):
            yield path, path.stat(), True
    except FileNotFoundError:
        return  # a temporary file, or a link to nothing
    except OSError as error:
        raise NotPermitted(
            f"cannot determine the owner of {path}", error.strerror or str(error), f"ls -ld {path}"
        ) from None


@functools.cache
def _private(gid: int, uid: int) -> bool:
    """Return whether only root and this user are in the group."""
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(uid)
    except KeyError:
        return False
    if gid == _ROOT:
        return set(group.gr_mem) <= {"root", user.pw_name}
    if not set(group.gr_mem) <= {user.pw_name}:
        return False
    # A directory service may not list all accounts, so a shared primary group may look empty: check its name too.
    named = group.gr_name == user.pw_name or group.gr_mem == [user.pw_name]
    return named and all(one.pw_gid != gid or one.pw_uid == uid for one in pwd.getpwall())


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _not_own(run: RunDir, path: Path, uid: int, me: int) -> NotPermitted:
    owner = user_name(uid)
    if path == run.path:
        what = f"The run `{run.run_id}` belongs to {owner}, and you are {user_name(me)}"
    else:
        what = f"A file of the run `{run.run_id}` belongs to {owner}, and you are {user_name(me)}"
    if me == _ROOT:
        hint = f"act as its owner: sudo -u {owner.removeprefix('user ')} transom ..."
    else:
        hint = f"`transom status {run.path}` reads it; only {owner} can act on it"
    if path != run.path:
        hint = f"find out who put it there: ls -l {path}"
    why = f"{path} is not yours: the programs and scripts that it names would run in your name"
    return NotPermitted(what, why, hint)


def _writable(run: RunDir, path: Path, by: str, mode: int) -> NotPermitted:
    hint = f"if nobody changed its content: chmod -R go-w {run.path}"
    if by.startswith("group "):
        hint += "\nif you trust the whole group, add it to security.trusted_groups in your own settings"
    return NotPermitted(
        f"Other users can write to the run `{run.run_id}`",
        f"{path} is writable by {by} (mode {mode:04o}): what they write there would run in your name",
        hint,
    )
