"""Repeats the cheap health checks while ranks train, each in a thread of its own. Judges changes, not totals.

NVML may hang, so a process of its own reads it (`node_gpus`).
"""

import importlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transom_cli.core.codec import BadRecord, build
from transom_cli.health import finding
from transom_cli.health.check import About, Check, Tier, limits_of, unwanted
from transom_cli.health.finding import Finding, Remedy, Verdict

MONITORED = ("memory", "uptime", "room")  # the agent's monitor reads these more often
PATIENCE = 1.0  # seconds to wait for a reader; a later result is used next time


@dataclass(frozen=True)
class Watched:
    every: float = 0.0  # seconds between two rounds; 0: none
    about: About = field(default_factory=lambda: About(tier=Tier.WATCH))
    off: frozenset[str] = frozenset()
    limits: Mapping[str, float] = field(default_factory=dict)  # the settings' thresholds, by name


def watched(text: str) -> Watched:
    """Parse the command line's JSON. Watch nothing if it is invalid."""
    try:
        said = json.loads(text) if text else {}
        about = build(About, said.get("about", {"tier": "watch"}))
        return Watched(float(said.get("every", 0.0)), about, frozenset(said.get("off", ())), said.get("limits", {}))
    except (ValueError, TypeError, AttributeError, BadRecord):
        return Watched()


class Reader:
    """Runs one check's reader, in one thread at most: a reader that hangs is not started again."""

    def __init__(self, check: Check, about: About) -> None:
        self.check, self._about = check, about
        module, _, function = check.reader.partition(":")
        self._read: Callable[[About], Any] = getattr(importlib.import_module(module), function)
        self._thread: threading.Thread | None = None
        self._asked = 0.0
        self._found: tuple[Any, str] = (None, "")

    def read(self) -> tuple[Any, str, float]:
        """Return the reading (None: none yet), its error, and for how many seconds it has been outstanding."""
        if self._thread is None:
            self._asked = time.monotonic()
            self._thread = threading.Thread(target=self._ask, name=self.check.name, daemon=True)
            self._thread.start()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            return None, "", time.monotonic() - self._asked
        self._thread = None
        return *self._found, 0.0

    def _ask(self) -> None:
        try:
            self._found = self._read(self._about), ""
        except Exception as error:  # a broken check must not stop the others
            self._found = None, f"{type(error).__name__}: {error}"


class Watch:
    """`report` gets what has changed. reported: by check, what a former agent has reported."""

    def __init__(
        self,
        node: str,
        what: Watched,
        report: Callable[[Sequence[Finding]], None],
        reported: Mapping[str, finding.Reported],
        checks: Sequence[Check] | None = None,
    ) -> None:
        self._node, self._what, self._report = node, what, report
        self._reported = dict(reported)
        self._given = checks
        self._former: dict[str, tuple[Any, float]] = {}
        self._late: dict[str, Finding | None] = {}  # what was reported of a reader that did not answer
        self._leave = threading.Event()

    def start(self) -> None:
        if self._what.every:
            threading.Thread(target=self._run, name="watch", daemon=True).start()

    def stop(self) -> None:
        self._leave.set()

    def _run(self) -> None:
        readers = [Reader(check, self._what.about) for check in self._checks()]
        while readers:
            for reader in readers:
                self._look(reader)
            if self._leave.wait(self._what.every):
                return

    def _checks(self) -> list[Check]:
        """Return the checks. Their table is imported here, so that the first heartbeat table does not wait for it."""
        if self._given is None:
            from transom_cli.health.registry import of_tier

            self._given = of_tier(Tier.WATCH)
        off = self._what.off
        return [c for c in self._given if not all(unwanted(f.rstrip(":"), off) for f in c.findings)]

    def _look(self, reader: Reader) -> None:
        check, about = reader.check, self._what.about
        reading, trouble, waited = reader.read()
        if waited:
            late = check.late(self._node, waited, about) if waited > check.seconds else None
            self._late[check.name] = late or self._late.get(check.name)
            states: tuple[Finding, ...] = (late,) if late else ()
        elif reading is None:
            states = (Finding(check.name, Verdict.UNKNOWN, self._node, f"the check failed: {trouble}"),)
        else:
            states = self._judge(check, reading)
        late = self._late.get(check.name)
        if late is not None and not waited:
            states = (*states, replace(late, verdict=Verdict.PASS, evidence="it answers again", remedy=Remedy.NONE))
        self._reported, news = finding.changes(self._reported, self._wanted(states))
        happened = self._changes(check, reading) if reading is not None else ()
        self._report((*news, *self._wanted(happened)))

    def _judge(self, check: Check, reading: Any) -> tuple[Finding, ...]:
        try:
            return check.judge(self._node, reading, self._what.about, limits_of(check.limits, self._what.limits))
        except Exception as error:  # an unexpected reading must not end the watch
            return (Finding(check.name, Verdict.UNKNOWN, self._node, f"its reading cannot be judged: {error!r}"),)

    def _changes(self, check: Check, reading: Any) -> tuple[Finding, ...]:
        """Return what has happened since the former reading."""
        now = time.monotonic()
        former, at = self._former.get(check.name, (None, now))
        self._former[check.name] = reading, now
        if former is None or check.changes is None:
            return ()
        limits = limits_of(check.limits, self._what.limits)
        try:
            found = check.changes(self._node, former, reading, now - at, self._what.about, limits)
        except Exception:  # the states are reported all the same
            return ()
        return tuple(f for f in found if f.verdict not in (Verdict.PASS, Verdict.UNKNOWN))

    def _wanted(self, found: Sequence[Finding]) -> tuple[Finding, ...]:
        return tuple(f for f in found if not unwanted(f.check, (*self._what.off, *MONITORED)))
