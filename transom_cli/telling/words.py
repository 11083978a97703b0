"""News as a message: subject and text for a person, one document for programs. Pure.

Lines of logs stand in there. So everything is cleaned of control characters, cut to a length, and a template is no
more than text with names in braces: nothing in a value is read again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from transom_cli.errors import printable
from transom_cli.telling.news import Fact, News
from transom_cli.telling.target import Target

SCHEMA = 1
SUBJECT, LINE, TEXT = 200, 500, 3000  # characters at most
LISTED = 10  # of the others that a message stands for
_FIELD = re.compile(r"\{([A-Za-z_]+)\}")
FIELDS = (
    "run", "name", "event", "headline", "words", "time", "phase", "job_id", "attempt", "step", "checkpoint",
    "incident", "cause", "category", "action", "rule", "nodes", "how", "seconds", "steps_again", "result", "verdict",
    "exit_code", "incidents",
)  # fmt: skip
_SUBJECT = "{name}: {headline}"
_TEXT = "{words}\n\n{time}, run {run}\nmore: transom explain {run} (and transom status {run})"


@dataclass(frozen=True)
class About:
    """The run that is spoken of."""

    run_id: str
    name: str
    folder: str = ""


@dataclass(frozen=True)
class Message:
    """keys: of all news that it stands for, the newest last. document: plain values, for JSON."""

    event: str
    subject: str
    text: str
    keys: tuple[str, ...]
    document: dict[str, Any]

    @property
    def id(self) -> str:
        """The same whenever the same is told again."""
        return str(self.document["id"])


def message(news: tuple[News, ...], about: About, target: Target) -> Message:
    """One message for all of `news` (oldest first, never empty): the newest as it is, of the others a line each."""
    *others, newest = news
    values = _values(newest, about)
    subject = _filled(target.subject or _SUBJECT, values)
    text = _filled(target.text or _TEXT, values).strip("\n")
    if others:
        count = f"and {len(others)} more"
        subject = f"{_cut(subject, SUBJECT - len(count) - 3)} ({count})"
        listed = [_cut(f"{utc(n.at)}  {printable(n.headline)}", 120) for n in others[-LISTED:]]
        unlisted = [f"and {len(others) - LISTED} before these"] if len(others) > LISTED else []
        text = "\n".join((_cut(text, TEXT - LISTED * 130), "", f"{count}:", *unlisted, *listed))
    subject, text = _cut(" ".join(subject.split("\n")), SUBJECT), _cut(text, TEXT)
    document = {
        "schema": SCHEMA,
        "id": f"{about.run_id}/{newest.key}",
        "event": newest.kind,
        "time": utc(newest.at),
        "run": about.run_id,
        "name": about.name,
        "folder": about.folder,
        "subject": subject,
        "text": text,
        "facts": {name: _plain(value) for name, value in newest.facts},
        "more": [{"event": n.kind, "time": utc(n.at), "headline": _clean(n.headline)} for n in others[-LISTED:]],
        "more_count": len(others),
    }
    return Message(newest.kind, subject, text, tuple(n.key for n in news), document)


def unknown_fields(template: str) -> tuple[str, ...]:
    """Names in braces that no message has."""
    return tuple(dict.fromkeys(name for name in _FIELD.findall(template) if name not in FIELDS))


def utc(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _values(news: News, about: About) -> dict[str, str]:
    values = {name: _text(value) for name, value in news.facts}
    own = {"run": about.run_id, "name": about.name, "event": news.kind, "time": utc(news.at)}
    words = "\n".join(_clean(line) for line in news.words)
    return {**{k: _clean(v) for k, v in {**values, **own}.items()}, "headline": _clean(news.headline), "words": words}


def _filled(template: str, values: dict[str, str]) -> str:
    return _FIELD.sub(lambda found: values.get(found[1], ""), template)


def _text(value: Fact) -> str:
    return ", ".join(value) if isinstance(value, tuple) else "" if value is None else str(value)


def _plain(value: Fact) -> Any:
    if isinstance(value, tuple):
        return [_clean(x) for x in value]
    return _clean(value) if isinstance(value, str) else value


def _clean(text: str) -> str:
    return _cut(printable(text), LINE)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
