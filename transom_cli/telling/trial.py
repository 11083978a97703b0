"""A message to try targets out: sent once, with no second try, and what came of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from transom_cli.errors import UsageError
from transom_cli.telling.documents import body, environment, mail_command, mail_text
from transom_cli.telling.news import KINDS, News
from transom_cli.telling.senders import Send
from transom_cli.telling.target import COMMAND, MAIL, Target, Undelivered
from transom_cli.telling.words import About, Message, message

SLACK_OF_TIME = 5.0  # seconds beyond the timeout, as for a name server that does not answer


@dataclass(frozen=True)
class Result:
    """told: it arrived, as far as the other side says. why: else, what it said. seconds: how long that took."""

    target: Target
    told: bool
    seconds: float
    why: str = ""

    @property
    def line(self) -> str:
        how = "told" if self.told else f"not told: {self.why}"
        return f"{self.target.name} ({self.target.kind}): {how} ({self.seconds:.1f} s)"

    def as_json(self) -> dict[str, object]:
        told = {"target": self.target.name, "kind": self.target.kind, "told": self.told}
        return {**told, "seconds": round(self.seconds, 3), "why": self.why}


def chosen(targets: Sequence[Target], name: str | None) -> list[Target]:
    """The one of this name, or all. UsageError when there is none."""
    found = [t for t in targets if name in (None, t.name)]
    if not targets:
        hint = "add [[notify.targets]] to your settings or to the file given with -f; docs/notifications.md shows how"
        raise UsageError("there are no notification targets", hint=hint)
    if not found:
        raise UsageError(f"no notification target `{name}`", f"there are {', '.join(t.name for t in targets)}")
    return found


def sample(target: Target, name: str, event: str) -> Message:
    """An invented one, which says so."""
    if event not in KINDS:
        raise UsageError(f"`--event {event}` is no kind of news", f"there are {', '.join(KINDS)}")
    facts = (("job_id", 1), ("attempt", "1.0"), ("step", 1000), ("checkpoint", 900), ("incident", "i1"))
    headline = f"a test of notifications ({event})"
    words = ("Nothing has happened: somebody has called `transom notify test`.",)
    news = News(f"test/{time.time():.0f}", event, time.time(), headline, words, facts)
    return message((news,), About("test", name), target)


def shown(target: Target, told: Message) -> dict[str, object]:
    """What would be sent, as text. `shown` is all of it for a person."""
    parts = [f"{target.name} ({target.kind})"]
    if target.kind == MAIL:
        parts += [" ".join(mail_command(told, target)), mail_text(told, target).decode()]
    else:
        parts += [" ".join(target.argv)] if target.kind == COMMAND else []
        parts += [f"{k}={v!r}" for k, v in environment(told).items()] if target.kind == COMMAND else []
        parts += [json.dumps(json.loads(body(told, target)), indent=1)]
    return {"target": target.name, "kind": target.kind, "shown": "\n".join(parts)}


def tried(messages: Iterable[tuple[Target, Message]], send: Callable[[Target], Send], timeout: float) -> list[Result]:
    """All at the same time, none longer than `timeout` seconds and a little."""
    results: dict[str, Result] = {}
    end, began = threading.Event(), time.monotonic()

    def try_one(target: Target, told: Message) -> None:
        why = ""
        try:
            send(target)(told, end)
        except Undelivered as error:
            why = str(error)
        results[target.name] = Result(target, not why, time.monotonic() - began, why)

    threads = []
    for target, told in messages:
        thread = threading.Thread(target=try_one, args=(target, told), daemon=True)
        thread.start()
        threads.append((target, thread))
    for _, thread in threads:
        thread.join(max(0.0, began + timeout + SLACK_OF_TIME - time.monotonic()))
    waited = time.monotonic() - began
    late = f"no answer within {waited:.0f} s"
    return [results.get(target.name) or Result(target, False, waited, late) for target, _ in threads]
