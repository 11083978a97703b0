"""Reads the runs that `transom list` shows, with few file calls: of a run that is over, only its summary."""

import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transom_cli.errors import TransomError, printable
from transom_cli.layout import RUN_ID, RunDir
from transom_cli.ownership import require_consistent, user_name
from transom_cli.submit.rundir import described, path_error
from transom_cli.supervise.journal import fold
from transom_cli.supervise.run_summary import RunSummary, read_summary, write_summary
from transom_cli.view.model import RunView
from transom_cli.view.read import read_brief

ENDED = 20  # runs that are over and shown by default


@dataclass(frozen=True)
class Wanted:
    """The runs to show; by default every run that is not over, and the newest that are."""

    everything: bool = False  # also older ones
    states: Collection[str] = ()  # only runs with one of these; empty: any
    since: float | None = None  # only runs that are not over, or ended after it (Unix time)

    @property
    def newest(self) -> bool:
        """Whether only the newest runs that are over are shown."""
        return not (self.everything or self.states or self.since is not None)

    def shows(self, view: RunView) -> bool:
        recent = self.since is None or not view.over or view.since >= self.since
        return recent and (not self.states or bool({view.status, view.phase} & set(self.states)))


@dataclass
class Listing:
    """Views, newest first. unreadable: runs whose directories we may not read. earlier: runs that are not shown."""

    views: list[RunView] = field(default_factory=list)
    unreadable: int = 0
    earlier: int = 0


def read_list(root: Path, wanted: Wanted, warn: Callable[[str], object]) -> Listing:
    """Read the runs in a folder. warn: called with a message for each run that cannot be shown.

    Raises:
        TransomError: The folder cannot be read.
    """
    found, ended = Listing(), 0
    for path in _newest_first(root):
        run = RunDir(path)
        try:
            enough = wanted.newest and ended >= ENDED
            if enough and run.summary.exists():
                found.earlier += 1
                continue
            view = _view(run, read=not enough)
        except PermissionError:
            found.unreadable += 1
            continue
        except TransomError as error:
            warn(f"{printable(run.run_id)}: {error.what}")
            continue
        except OSError as error:
            warn(f"{printable(run.run_id)}: {error.strerror}")
            continue
        if view is None:
            continue
        if view.over and wanted.newest and ended >= ENDED:
            found.earlier += 1
        elif wanted.shows(view):
            ended += view.over
            found.views.append(view)
    return found


def _newest_first(root: Path) -> Iterator[Path]:
    try:
        names = os.listdir(root)  # noqa: PTH208  # names alone: no file call for each run
    except FileNotFoundError:
        return
    except OSError as error:
        raise path_error(error, root, doing="read the runs in") from error
    dated = [(match["stamp"], name) for name in names if (match := RUN_ID.fullmatch(name)) is not None]
    folder = root.absolute()
    for _, name in sorted(dated, reverse=True):
        yield folder / name


def _view(run: RunDir, *, read: bool) -> RunView | None:
    """Return the view of a run; None if the folder contains no run. read: its summary may be there."""
    known = read_summary(run.path) if read else None
    if known is not None:
        return ended_view(run, *known)
    try:
        owner = described(run).st_uid
    except (FileNotFoundError, NotADirectoryError):
        return None
    require_consistent(run)
    folded = fold(run.journal)
    if not folded.state.phase.over:
        return read_brief(run, folded)
    own = owner == os.geteuid()
    return ended_view(run, write_summary(run, folded.state, folded.times.submitted, keep=own), owner)


def ended_view(run: RunDir, summary: RunSummary, owner: int) -> RunView:
    """Return the view of a run that is over. owner: user ID."""
    fields: dict[str, Any] = {**vars(summary), "phase": summary.phase.value, "over": True}
    name = "" if owner == os.geteuid() else user_name(owner)
    return RunView(run_id=run.run_id, now=time.time(), path=str(run.path), owner=name, **fields)
