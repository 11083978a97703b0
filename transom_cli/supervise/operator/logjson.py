"""The operator's log as JSON: one object a line, with what the text log says and the fields of its event."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone

SCHEMA = 1


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
