"""Keeps templates of the log lines of successful runs, in the run's own directory, for comparison by later runs.

The operator writes them once the run is done. They are read if no rule knows a failure: a line that resembles one of an
earlier run of the same name is not new.
"""

import logging
import re
from pathlib import Path

from transom_cli.core.log_lines import log_order
from transom_cli.diagnose.unknown.store import load, mine_logs, save
from transom_cli.diagnose.unknown.templates import Templates
from transom_cli.errors import TransomError
from transom_cli.files import listed
from transom_cli.layout import AttemptDir, RunDir, parse_attempt

log = logging.getLogger("transom.operator")

READ = 2  # logs of the last launch: of each some megabytes
RUNS = 3  # runs before this one
_ID = re.compile(r"(?P<name>.+)-(?P<stamp>\d{8}-\d{6})-[0-9a-f]{4}")


def remember(run: RunDir) -> None:
    """Keep the log templates of the last launch of a run that is done, for comparison. Errors are ignored."""
    try:
        logs = _last_logs(run)
        if logs:
            save(run.templates, mine_logs(logs))
    except OSError as error:
        log.warning("what the run printed is not kept for the next one: %s", error)


def of_past_runs(run: RunDir) -> Templates:
    """Return the log templates of the newest earlier runs with the same name."""
    own = _ID.fullmatch(run.run_id)
    if own is None:
        return Templates()
    beside = [path for path in listed(run.path.parent) if path.name < run.run_id]
    found = Templates()
    names = ((path, _ID.fullmatch(path.name)) for path in reversed(beside))
    former = [path for path, match in names if match is not None and match["name"] == own["name"]]
    kept = [RunDir(path).templates for path in former if RunDir(path).templates.exists()]
    for path in kept[:RUNS]:
        try:
            found = found.merge(load(path))
        except (OSError, TransomError) as error:
            words = error.what if isinstance(error, TransomError) else error
            log.warning("what an earlier run printed cannot be read: %s", words)
    return found


def run_of(path: Path) -> RunDir | None:
    """Return the run whose directory this is, or contains it."""
    absolute = path.absolute()
    return next((RunDir(p) for p in (absolute, *absolute.parents) if RunDir(p).settings.is_file()), None)


def _last_logs(run: RunDir) -> list[Path]:
    attempts = [AttemptDir(path) for path in run.attempts.iterdir() if re.fullmatch(r"\d+\.\d+", path.name)]
    newest = max(attempts, key=lambda attempt: parse_attempt(attempt.name), default=None)
    launches = [path for path in (newest.path / "logs").glob("*") if path.name.isdecimal()] if newest else []
    last = max(launches, key=lambda path: int(path.name), default=None)
    return sorted(last.glob("*.log"), key=lambda path: log_order(path.name, None))[:READ] if last is not None else []
