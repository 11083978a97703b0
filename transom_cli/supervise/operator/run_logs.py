"""Log lines of an operator process: each goes to the log of the run whose thread wrote it.

A log on a file system that does not respond holds up its own run only, so no lock is shared.
"""

import contextvars
import json
import logging
import sys
from datetime import datetime, timezone
from pathlib import Path

from transom_cli.files import open_private

SCHEMA = 1
TEXT = "%(asctime)s %(message)s"


class RunLog:
    """Appends to a run's operator.log. The file is open only while a line is written: a process has many runs."""

    def __init__(self, path: Path, run_id: str, *, as_json: bool) -> None:
        self._path = path
        self._formatter = formatter(run_id, as_json=as_json)

    def write(self, record: logging.LogRecord) -> None:
        with open_private(self._path, "a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(self._formatter.format(record) + "\n")


current: contextvars.ContextVar[RunLog | None] = contextvars.ContextVar("run_log", default=None)
"""The log of the run that this thread works for. Threads inherit it through `contextvars.copy_context`."""


class RunLogs(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self._process = logging.StreamHandler(sys.stderr)
        self._process.setFormatter(logging.Formatter(TEXT))

    def createLock(self) -> None:
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        log = current.get()
        if log is None:
            self._process.handle(record)
            return
        try:
            log.write(record)
        except OSError as error:
            self._process.handle(record)
            print(f"cannot write the log of a run: {error}", file=sys.stderr)


def formatter(run_id: str, *, as_json: bool) -> logging.Formatter:
    return JsonLines(run_id) if as_json else logging.Formatter(TEXT)


class JsonLines(logging.Formatter):
    """time (UTC), level, run, logger, message; where the line is about one: `event` with its `facts` ("order": of an
    action that is ordered), and `exception`."""

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self._run_id = run_id

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "schema": SCHEMA,
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "run": self._run_id,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: vars(record)[name] for name in ("event", "facts") if name in vars(record)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
