"""Checks of notification targets and metrics: before submission, and with test messages."""

import importlib.util
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transom_cli.errors import UsageError
from transom_cli.notify.events import KINDS, Notification
from transom_cli.notify.messages import (
    COMMAND,
    MAIL,
    About,
    DeliveryError,
    Message,
    Target,
    body,
    environment,
    mail_command,
    mail_text,
    message,
)
from transom_cli.notify.secrets import read_secret
from transom_cli.notify.senders import Send


def require_target(target: Target, secrets: Path) -> None:
    """Check that the target's secret is usable or its program exists; send nothing. Raises TransomError: Neither is."""
    if target.posts:
        read_secret(secrets, target.name)
        return
    program = (target.argv if target.kind == COMMAND else target.program)[0]
    if shutil.which(program) is None:
        raise UsageError(
            f"cannot use the notification target `{target.name}`",
            f"no executable `{program}` was found",
            "give its absolute path: `argv` of a command, `program` of mail (docs/notifications.md)",
        )


def require_metrics(textfile: Path | None) -> None:
    """Raise UsageError if prometheus-client is missing, or `textfile` is not writable."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise UsageError(
            "metrics need prometheus-client, which is not installed",
            "metrics.textfile or metrics.port is set",
            "pip install 'transom-cli[metrics]', or leave the two unset",
        )
    if textfile is not None and not (textfile.is_dir() and os.access(textfile, os.W_OK | os.X_OK)):
        raise UsageError(
            "cannot write metrics",
            f"metrics.textfile: {textfile} is not a writable folder",
            "name a folder that node_exporter reads (its --collector.textfile.directory), or leave it unset",
        )


SLACK_OF_TIME = 5.0  # seconds beyond the timeout, for slow name servers


@dataclass(frozen=True)
class Result:
    """The result of a test message. delivered: the target accepted it. why: the error."""

    target: Target
    delivered: bool
    seconds: float
    why: str = ""

    @property
    def line(self) -> str:
        how = "delivered" if self.delivered else f"not delivered: {self.why}"
        return f"{self.target.name} ({self.target.kind}): {how} ({self.seconds:.1f} s)"

    def as_json(self) -> dict[str, object]:
        result = {"target": self.target.name, "kind": self.target.kind, "delivered": self.delivered}
        return {**result, "seconds": round(self.seconds, 3), "why": self.why}


def select_targets(targets: Sequence[Target], name: str | None) -> list[Target]:
    """Return the target of this name, or all. Raise UsageError if there is none."""
    found = [t for t in targets if name in (None, t.name)]
    if not targets:
        hint = "add [[notify.targets]] to your settings or to the file given with -f; see docs/notifications.md"
        raise UsageError("no notification targets are configured", hint=hint)
    if not found:
        raise UsageError(f"no notification target `{name}`", f"known: {', '.join(t.name for t in targets)}")
    return found


def sample_message(target: Target, name: str, event: str) -> Message:
    """Make a test message."""
    if event not in KINDS:
        raise UsageError(f"`--event {event}` is not an event", f"known: {', '.join(KINDS)}")
    facts = (("job_id", 1), ("attempt", "1.0"), ("step", 1000), ("checkpoint", 900), ("incident", "i1"))
    headline = f"a test of notifications ({event})"
    words = ("This is a test by `transom notify test`; nothing has happened, and the commands below fail.",)
    one = Notification(f"test/{time.time():.0f}", event, time.time(), headline, words, facts)
    return message((one,), About("test", name), target)


def preview(target: Target, test: Message) -> dict[str, object]:
    """Return what would be sent, as text under `shown`."""
    parts = [f"{target.name} ({target.kind})"]
    if target.kind == MAIL:
        parts += [" ".join(mail_command(test, target)), mail_text(test, target).decode()]
    else:
        parts += [" ".join(target.argv)] if target.kind == COMMAND else []
        parts += [f"{k}={v!r}" for k, v in environment(test).items()] if target.kind == COMMAND else []
        parts += [json.dumps(json.loads(body(test, target)), indent=1)]
    return {"target": target.name, "kind": target.kind, "shown": "\n".join(parts)}


def send_all(
    messages: Iterable[tuple[Target, Message]], send: Callable[[Target], Send], timeout: float
) -> list[Result]:
    """Send all messages in parallel, within `timeout` seconds and a little."""
    results: dict[str, Result] = {}
    end, began = threading.Event(), time.monotonic()

    def try_one(target: Target, test: Message) -> None:
        why = ""
        try:
            send(target)(test, end)
        except DeliveryError as error:
            why = str(error)
        results[target.name] = Result(target, not why, time.monotonic() - began, why)

    threads = []
    for target, test in messages:
        thread = threading.Thread(target=try_one, args=(target, test), daemon=True)
        thread.start()
        threads.append((target, thread))
    for _, thread in threads:
        thread.join(max(0.0, began + timeout + SLACK_OF_TIME - time.monotonic()))
    waited = time.monotonic() - began
    late = f"no answer within {waited:.0f} s"
    return [results.get(target.name) or Result(target, False, waited, late) for target, _ in threads]
