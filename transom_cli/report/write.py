"""Where a report goes: a file, there whole or not at all, or the standard output."""

from __future__ import annotations

from pathlib import Path

from transom_cli.errors import TransomError, UsageError
from transom_cli.files import publish_text
from transom_cli.layout import RunDir
from transom_cli.report.page import MARKER
from transom_cli.submit.rundir import explain

_HEAD = 4096  # characters in which a report's marker stands


def target(run: RunDir, out: Path | None, *, force: bool) -> Path:
    """The file to write. A folder gets a file named after the run.

    An older report is replaced; anything else that is there only by force, else UsageError.
    """
    path = Path(f"{run.run_id}.html") if out is None else out / f"{run.run_id}.html" if out.is_dir() else out
    if path.exists() and not force and not _report(path):
        raise UsageError(
            f"{path} exists, and is no report of transom's", hint="--force replaces it; or give another file: -o FILE"
        )
    return path


def write(path: Path, text: str) -> None:
    try:
        publish_text(path, text, mode=0o666)  # as the umask allows: it is made to be passed on
    except OSError as error:
        raise _told(error, path) from error


def _told(error: OSError, path: Path) -> TransomError:
    return explain(error, path, doing="write the report", instead="give another file: -o FILE")


def _report(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return MARKER in file.read(_HEAD)
    except OSError as error:
        raise _told(error, path) from error
