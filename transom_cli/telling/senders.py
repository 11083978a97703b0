"""How each kind of target is told: one call a message, in the caller's time, with a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from transom_cli.errors import TransomError
from transom_cli.telling.commands import run_command
from transom_cli.telling.documents import body, environment, mail_command, mail_text
from transom_cli.telling.posting import post
from transom_cli.telling.secretfile import read_secret
from transom_cli.telling.target import COMMAND, Target, Undelivered
from transom_cli.telling.words import Message

Send = Callable[[Message, threading.Event], None]


def sender(target: Target, secrets: Path, timeout: float) -> Send:
    """What tells this target of a message, or raises Undelivered; it is cut short when the event is set.

    secrets: the file of `telling.secretfile`. timeout: seconds.
    """

    def send(message: Message, end: threading.Event) -> None:
        if target.posts:
            try:
                secret = read_secret(secrets, target.name)
            except TransomError as error:  # a person may mend it meanwhile
                raise Undelivered(f"{error.what}: {error.why}" if error.why else error.what) from None
            post(secret, body(message, target), message.id, timeout)
        elif target.kind == COMMAND:
            run_command(target.argv, body(message, target), environment(message), timeout, end)
        else:
            run_command(mail_command(message, target), mail_text(message, target), {}, timeout, end)

    return send
