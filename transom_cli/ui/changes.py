"""What has changed from one look at a run to the next, for pipes and logs: a line, or an object, each. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from transom_cli.errors import printable
from transom_cli.ui.view import RunView, Underway
from transom_cli.ui.words import clock_time, utc


@dataclass(frozen=True)
class Change:
    """what: a phase, or as in an incident's story. incident: "" where it is about the run."""

    at: float
    what: str
    words: str
    incident: str = ""

    @property
    def line(self) -> str:
        about = f"{self.incident} " if self.incident else ""
        return printable(f"{clock_time(self.at)} {about}{self.what}: {self.words}")

    def document(self, run_id: str) -> str:
        told = {"schema": 1, "run": run_id, "at": self.at, "at_utc": utc(self.at), "what": self.what}
        return json.dumps({**told, "incident": self.incident or None, "words": self.words})


@dataclass
class Changes:
    """Of one run. A reader that comes late is told all that has happened so far, once."""

    _phase: str = ""
    _told: set[tuple[str, float, str]] = field(default_factory=set)
    _reports: set[str] = field(default_factory=set)
    _under_way: set[tuple[str, int]] = field(default_factory=set)

    def of(self, view: RunView) -> list[Change]:
        found = []
        if view.phase != self._phase:
            self._phase = view.phase
            where = f"job {view.job_id}" if view.job_id else "no job yet"
            step = f", step {view.step}" if view.step >= 0 else ""
            why = f", {view.verdict}" if view.phase == "held" else ""
            found.append(Change(view.since or view.now, view.phase, f"{where}{step}{why}"))
        for incident in reversed(view.incidents):
            for at, what, words in incident.marks:
                if (incident.id, at, what + words) not in self._told:
                    self._told.add((incident.id, at, what + words))
                    found.append(Change(at, what, words, incident.id))
        found += [Change(one.began or view.now, one.what, one.words) for one in self._begun(view)]
        found += [Change(view.now, "noticed", words) for words in view.reports if words not in self._reports]
        found += [Change(view.now, "over", words) for words in sorted(self._reports - set(view.reports))]
        self._reports = set(view.reports)
        return found

    def _begun(self, view: RunView) -> list[Underway]:
        """Restores; and saves, where the run waits for them: one of many while it trains is nothing to speak of."""
        now = [one for one in view.under_way if one.what == "restoring" or view.phase != "training"]
        begun = [one for one in now if (one.what, one.step) not in self._under_way]
        self._under_way = {(one.what, one.step) for one in now}
        return begun
