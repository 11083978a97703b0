"""A message in the forms that targets take: Slack's JSON, our own, an environment, mail. Pure."""

from __future__ import annotations

import json
import re
from pathlib import PurePath
from typing import Any

from transom_cli.telling.target import SLACK, Target
from transom_cli.telling.words import Message

_PINGS = re.compile(r"@(?=channel|here|all|everyone)", re.IGNORECASE)
_MAIL_PROGRAMS = ("mail", "mailx", "s-nail", "Mail")  # subject and addresses as arguments; others read a whole mail


def body(message: Message, target: Target) -> bytes:
    """The JSON that is posted."""
    document = slack(message) if target.kind == SLACK else message.document
    return json.dumps(document).encode()


def slack(message: Message) -> dict[str, Any]:
    """As Slack's incoming webhooks take it, and Mattermost, Rocket.Chat and Discord (URL + `/slack`) with them.

    Plain text, so that no line of a log is read as markup, calls a whole channel, or has a page fetched.
    https://docs.slack.dev/messaging/formatting-message-text#escaping
    """
    text = f"{message.subject}\n{message.text}"
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": _PINGS.sub("@\u200b", text), "mrkdwn": False, "unfurl_links": False, "unfurl_media": False}


def environment(message: Message) -> dict[str, str]:
    """NOTIFY_ID, NOTIFY_EVENT, ... and one variable for each fact. The whole is on stdin, as JSON."""
    own = {"id", "event", "time", "run", "name", "folder", "subject", "text", "more_count"}
    told = {name: message.document[name] for name in own} | message.document["facts"]
    return {f"NOTIFY_{name.upper()}": _shown(value) for name, value in sorted(told.items())}


def _shown(value: Any) -> str:
    return (" ".join(value) if isinstance(value, list) else str(value)).replace("\0", "")


def takes_arguments(target: Target) -> bool:
    """Whether the mail program is one of the `mail` family, not of sendmail's."""
    return PurePath(target.program[0]).name in _MAIL_PROGRAMS


def mail_command(message: Message, target: Target) -> tuple[str, ...]:
    """Addresses are arguments, since not every sendmail reads them from the mail; none begins with a dash."""
    if takes_arguments(target):
        return (*target.program, "-s", message.subject, *target.to)
    return (*target.program, "-i", *target.to)


def mail_text(message: Message, target: Target) -> bytes:
    """What the mail program reads. A line that begins with a tilde would be an order to some of the `mail` family."""
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
