"""What the commands share: find a run, print an error and exit, and fail instead of hanging on a dead file system."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from transom_cli.errors import TransomError, Unknown, UsageError
from transom_cli.plural import some

if TYPE_CHECKING:
    from transom_cli.layout import RunDir
    from transom_cli.supervise.answering import Answering


def run_to_read(root: Path | None, wanted: str | None) -> RunDir:
    """Find a run. If it belongs to another user, or others of its name have not ended, print a note on stderr."""
    from transom_cli.errors import printable
    from transom_cli.ownership import other_owner, require_consistent

    found = find_run(root, wanted)
    others = [one for one in active_of_name(found.path.parent, wanted, 2) if one != found.run_id]
    if others:
        also = f"the newest run of that name; not ended: {some(others, 3)}"
        print(printable(f"note: this is {found.run_id}, {also}"), file=sys.stderr)
    owner = other_owner(found)
    if owner:
        require_consistent(found)
        print(printable(f"note: {found.run_id} belongs to {owner}"), file=sys.stderr)
    return found


def run_to_act_on(root: Path | None, wanted: str | None) -> RunDir:
    """Find one of the user's own runs. Raises NotPermitted for another user's."""
    found = find_run(root, wanted, own=True)
    require_own_run(found)
    return found


def run_to_request(root: Path | None, wanted: str | None) -> RunDir:
    """Find one of the user's own runs, or a run of another user whose operator takes requests of others.

    Raises NotPermitted for any other run.
    """
    from transom_cli.ownership import other_owner, require_consistent
    from transom_cli.supervise.requests import on_call

    found = find_run(root, wanted, own=True)
    if other_owner(found):
        require_consistent(found)
        if on_call(found):
            return found
    require_own_run(found)
    return found


def active_of_name(root: Path, wanted: str | None, least: int = 1) -> list[str]:
    """Return the IDs of the user's own runs of this name that have not ended, newest first.

    [] if it is no name, or if fewer than `least` runs have it: then no journal is read.
    """
    from transom_cli.layout import RUN_ID, RunDir
    from transom_cli.ownership import is_own
    from transom_cli.supervise.journal import fold

    if not wanted or RUN_ID.fullmatch(wanted) or not root.is_dir():
        return []
    named = [(one["stamp"], one[0]) for one in map(RUN_ID.fullmatch, os.listdir(root)) if one and one["name"] == wanted]  # noqa: PTH208
    runs = [RunDir(root / name) for _, name in sorted(named, reverse=True)] if len(named) >= least else []
    kept = [one for one in runs if one.journal.exists() and not one.summary.exists() and is_own(one)]
    return [one.run_id for one in kept if not fold(one.journal).state.phase.over]


def find_run(root: Path | None, wanted: str | None, *, own: bool = False) -> RunDir:
    """Find a run in the folder of runs: `root`, or as the settings say."""
    from transom_cli.config.sources import runs_root
    from transom_cli.submit import rundir

    return rundir.find_run(runs_root(root, os.environ), wanted, own=own)


def require_own_run(run: RunDir) -> None:
    from transom_cli.ownership import require_own

    require_own(run, trusted_groups)


def trusted_groups() -> Collection[str]:
    """Return the setting from the user's own layers: a run must not decide whom its reader trusts."""
    from transom_cli.config.load import load

    return load(None, {}, os.environ).security.trusted_groups


def json_requested(words: list[str]) -> bool:
    """Return whether a command line requests JSON. Words after `--` belong to the training."""
    ours = words[: words.index("--")] if "--" in words else words
    return "--json" in ours


def without_colours(words: Sequence[str]) -> list[str]:
    """Take `--no-color` out of a command's words. Words after `--` belong to the training."""
    ours = words.index("--") if "--" in words else len(words)
    if "--no-color" not in words[:ours]:
        return list(words)
    from transom_cli.view import terminal

    terminal.no_colours = True
    return [*(word for word in words[:ours] if word != "--no-color"), *words[ours:]]


def end(error: TransomError) -> NoReturn:
    """Print the error, as text or as JSON, and exit with its code."""
    if not json_requested(sys.argv):
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    try:
        print(json.dumps(error.as_json()), flush=True)
    except OSError:  # the disk that stdout is written to is full, or nobody reads it
        print(f"error: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python tries again at exit
    sys.exit(error.exit_code)


def os_error(error: OSError) -> TransomError:
    """Return the error for a system call that failed anywhere in a command."""
    from transom_cli.submit.rundir import path_error

    if isinstance(error.filename, str):
        return path_error(error, Path(error.filename), doing="use", instead="give another path")
    try:
        Path.cwd()
    except OSError as gone:
        return UsageError("The current directory no longer exists", gone.strerror or "", "cd to an existing directory")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):  # of stdout: other files have a name
        hint = "free some space where the output is written (`df -h`; `quota`), or write it to another place"
        return TransomError("cannot write the output", error.strerror or "", hint)
    return TransomError("A system call failed", error.strerror or str(error), "`transom doctor` checks this host")


def bounded(root: Path | None, run: str | None = None) -> Path:
    """Return the folder of the runs. From now on, exit with code 22 if its file system stops responding.

    Args:
        root: the folder, if the user has named it.
        run: as the user names it; if it is a path, its file system is watched instead.
    """
    from transom_cli.config.sources import runs_root

    where = runs_root(root, os.environ)
    leaving(where, run)
    return where


def leaving(root: Path, run: str | None) -> Answering:
    """Like `bounded`, until it is stopped: for commands that then wait for a run without a time limit."""
    from transom_cli.supervise.answering import Answering

    where = Path(run) if run and "/" in run else root
    return Answering(where, lambda since: _leave(where, since)).start()


def _leave(where: Path, since: float) -> None:
    """Exit from another thread: the main thread is blocked in the kernel until the process ends."""
    silence = time.time() - since
    error = Unknown(
        f"{where} does not respond",
        f"its file system has not responded since {time.strftime('%H:%M:%S', time.localtime(since))} ({silence:.0f} s)",
        "its server may be down or overloaded; operators continue by themselves when it is back.\n"
        "Slurm's view of your jobs: squeue --me",
    )
    stream, text = (1, json.dumps(error.as_json())) if json_requested(sys.argv) else (2, f"error: {error}")
    os.write(stream, f"{text}\n".encode())
    os._exit(error.exit_code)
