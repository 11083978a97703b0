"""Targets, and messages to them: subject and text for people, a document for programs, in each target's format. Pure.

Messages may contain lines of logs. So control characters are escaped, lengths are limited, and a template is only text
with names in braces: values are not expanded again.
"""

import json
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import PurePath
from typing import Any

from transom_cli.errors import printable
from transom_cli.notify.events import DEFAULT_KINDS, Fact, Notification

SLACK, WEBHOOK, COMMAND, MAIL = "slack", "webhook", "command", "mail"


@dataclass(frozen=True)
class Target:
    """One of `[[notify.targets]]`. Its URL and token are in a file of their own (`notify.secrets`).

    Attributes:
        to, sender, program: Of mail.
        subject, text: Templates; "" for the default.
    """

    name: str
    kind: str
    events: tuple[str, ...] = DEFAULT_KINDS  # kinds of notifications to send
    argv: tuple[str, ...] = ()  # of a command
    to: tuple[str, ...] = ()
    sender: str = ""
    program: tuple[str, ...] = ("/usr/sbin/sendmail",)
    subject: str = ""
    text: str = ""

    @property
    def posts(self) -> bool:
        """Whether it is reached by HTTP, at a secret URL."""
        return self.kind in (SLACK, WEBHOOK)


class DeliveryError(Exception):
    """A message was not delivered. The error message contains no secrets.

    again: A retry may help. after: Seconds to wait first, as requested by the server.
    """

    def __init__(self, words: str, *, again: bool = True, after: float = 0.0) -> None:
        super().__init__(words)
        self.again = again
        self.after = after


SCHEMA = 1
SUBJECT, LINE, TEXT = 200, 500, 3000  # characters at most
LISTED = 10  # other notifications that a message lists
_FIELD = re.compile(r"\{([A-Za-z_]+)\}")
FIELDS = (
    "run", "name", "event", "headline", "words", "time", "phase", "job_id", "attempt", "step", "steps_since_start",
    "checkpoint", "incident", "cause", "category", "action", "rule", "nodes", "how", "seconds", "steps_again",
    "result", "verdict", "exit_code", "incidents",
)  # fmt: skip
_SUBJECT = "{name}: {headline}"
_TEXT = "{words}\n\n{time}, run {run}\ndetails: transom explain {run}, transom status {run}"


@dataclass(frozen=True)
class About:
    """The run that notifications are about."""

    run_id: str
    name: str
    folder: str = ""


@dataclass(frozen=True)
class Message:
    event: str
    subject: str
    text: str
    keys: tuple[str, ...]  # of all notifications in it, newest last
    document: dict[str, Any]  # JSON values

    @property
    def id(self) -> str:
        """The same for each try."""
        return str(self.document["id"])


def message(news: tuple[Notification, ...], about: About, target: Target) -> Message:
    """Make one message of `news` (oldest first, not empty): the newest in full, the others as a line each."""
    *others, newest = news
    values = _values(newest, about)
    subject = _filled(target.subject or _SUBJECT, values)
    text = _filled(target.text or _TEXT, values).strip("\n")
    if others:
        count = f"and {len(others)} more"
        subject = f"{_cut(subject, SUBJECT - len(count) - 3)} ({count})"
        listed = [_cut(f"{utc(n.at)}  {printable(n.headline)}", 120) for n in others[-LISTED:]]
        unlisted = [f"and {len(others) - LISTED} earlier"] if len(others) > LISTED else []
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
    """Return the names in braces that no message has."""
    return tuple(dict.fromkeys(name for name in _FIELD.findall(template) if name not in FIELDS))


def utc(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _values(news: Notification, about: About) -> dict[str, str]:
    values = {name: _text(value) for name, value in news.facts}
    own = {"run": about.run_id, "name": about.name, "event": news.kind, "time": utc(news.at)}
    words = "\n".join(_clean(line) for line in news.details)
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


_PINGS = re.compile(r"@(?=channel|here|all|everyone)", re.IGNORECASE)
_MAIL_PROGRAMS = ("mail", "mailx", "s-nail", "Mail")


def body(message: Message, target: Target) -> bytes:
    """Return the JSON to post."""
    document = slack(message) if target.kind == SLACK else message.document
    return json.dumps(document).encode()


def slack(message: Message) -> dict[str, Any]:
    """Return the format of Slack's webhooks, which Mattermost, Rocket.Chat and Discord (URL + `/slack`) accept.

    Plain text, so that no log line is taken as markup, mentions a channel, or is unfurled.
    https://docs.slack.dev/messaging/formatting-message-text#escaping
    """
    text = f"{message.subject}\n{message.text}"
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": _PINGS.sub("@\u200b", text), "mrkdwn": False, "unfurl_links": False, "unfurl_media": False}


def environment(message: Message) -> dict[str, str]:
    """Return NOTIFY_ID, NOTIFY_EVENT, ... and a variable for each fact. The JSON document is on stdin."""
    own = {"id", "event", "time", "run", "name", "folder", "subject", "text", "more_count"}
    values = {name: message.document[name] for name in own} | message.document["facts"]
    return {f"NOTIFY_{name.upper()}": _shown(value) for name, value in sorted(values.items())}


def _shown(value: Any) -> str:
    return (" ".join(value) if isinstance(value, list) else str(value)).replace("\0", "")


def takes_arguments(target: Target) -> bool:
    """Whether the mail program takes subject and addresses as arguments, unlike sendmail."""
    return PurePath(target.program[0]).name in _MAIL_PROGRAMS


def mail_command(message: Message, target: Target) -> tuple[str, ...]:
    """Return the command. Addresses are arguments, as some sendmails ignore headers; none begins with a dash."""
    if takes_arguments(target):
        return (*target.program, "-s", message.subject, *target.to)
    return (*target.program, "-i", *target.to)


def mail_text(message: Message, target: Target) -> bytes:
    """Return the mail. A leading tilde is escaped, because `mail` programs take it as a command."""
    if takes_arguments(target):
        return re.sub(r"(?m)^~", " ~", message.text + "\n").encode()
    from email.message import EmailMessage

    mail = EmailMessage()
    mail["Subject"] = message.subject
    mail["To"] = ", ".join(target.to)
    if target.sender:
        mail["From"] = target.sender
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Transom-Event"] = message.event
    mail.set_content(message.text + "\n")
    return mail.as_bytes()
