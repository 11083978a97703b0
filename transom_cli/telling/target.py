"""Whom to tell, and how it may fail. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from transom_cli.telling.news import USUAL

SLACK, WEBHOOK, COMMAND, MAIL = "slack", "webhook", "command", "mail"


@dataclass(frozen=True)
class Target:
    """One of `[[notify.targets]]`. What is secret of it (URL, token) stands in a file of its own: telling.secretfile.

    events: kinds of news that it wants. argv: of a command. to, sender, program: of mail. subject, text: templates,
    "" for what transom says by itself.
    """

    name: str
    kind: str
    events: tuple[str, ...] = USUAL
    argv: tuple[str, ...] = ()
    to: tuple[str, ...] = ()
    sender: str = ""
    program: tuple[str, ...] = ("/usr/sbin/sendmail",)
    subject: str = ""
    text: str = ""

    @property
    def posts(self) -> bool:
        """By HTTP, to a URL that is secret."""
        return self.kind in (SLACK, WEBHOOK)


class Undelivered(Exception):
    """A message did not arrive. Its words may be shown: nothing secret is in them.

    again: it may help to try again; after: not before so many seconds, as the other side has asked.
    """

    def __init__(self, words: str, *, again: bool = True, after: float = 0.0) -> None:
        super().__init__(words)
        self.again = again
        self.after = after
