"""A view as the JSON document of `transom status --json`, and the changes between two views. Pure.

view/schema/status.json describes the document; within a schema number, keys are only added. Moments are Unix time, and
each is repeated in UTC under a key that ends in `_utc`. Durations are seconds.
"""

import json
import math
import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from transom_cli.core.log_lines import without_advice
from transom_cli.errors import printable
from transom_cli.health.gpu.status import gpu_objects
from transom_cli.view.model import NodeView, Operation, RunView
from transom_cli.view.slurm_reasons import pending_reason
from transom_cli.view.text import clock_time, utc

SCHEMA = 2
_MOMENTS = ("now", "since", "submitted", "operator_at", "nodes_at", "slurm_queried_at", "slurm_start",
            "slurm_silent_since")  # fmt: skip
_REPEATED = ("seen", "examined", "diagnosed")  # kinds of marks that add nothing if their message was printed before

_AGAIN = {"probed": "probed again, same result"}
_LINE = {"over": "no longer"}  # "over" alone reads as the end of the run


def to_json(view: RunView) -> str:
    return json.dumps(view_document(view), allow_nan=False)


def view_document(view: RunView) -> dict[str, Any]:
    """Return the view as JSON values."""
    data = asdict(replace(view, node_views=()))
    data["node_views"] = [_node(one) for one in view.node_views]  # `asdict` would take as long as reading them
    if view.loss is not None and not math.isfinite(view.loss):
        data["loss"] = None  # JSON has no NaN
    data |= {f"{key}_utc": _utc(data[key]) for key in _MOMENTS}
    for one in (*data["incidents"], *data["operations"]):
        one["began_utc"] = _utc(one["began"])
    for one in (*data["next_steps"], *(data[key] for key in ("next_save", "next_durable") if data[key])):
        one["at_utc"] = _utc(one["at"])
    if data["saves_fail"]:
        data["saves_fail"]["since_utc"] = _utc(data["saves_fail"]["since"])
    derived = {"pending_reason": pending_reason(view), "status": view.status, "health": view.health}
    return {"schema": SCHEMA, **data, **derived, "condition": view.condition, "no_step_for": view.no_step_for}


def _node(one: NodeView) -> dict[str, Any]:
    data = {key: value for key, value in vars(one).items() if key not in ("gpus", "gpus_age")}
    if one.gpus is not None:
        summary = {key: value for key, value in vars(one.gpus).items() if key not in ("node", "attempt", "lines")}
        old = {"age": one.gpus_age, "old": one.gpus.old(one.gpus_age)}
        data["gpus"] = {**summary, **old, "gpus": gpu_objects(one.gpus)}
    return data


def _utc(at: float | None) -> str | None:
    return utc(at) if at else None


# --- changes ---


@dataclass(frozen=True)
class Change:
    """One line of `--watch` in a pipe."""

    at: float
    what: str  # a phase, or the kind of an incident's mark
    message: str
    incident: str = ""  # "" if it concerns the run
    repeated: bool = False  # the incident has had the same message before, and this kind of mark adds nothing to it
    brief: bool = False  # the incident has had the same message before

    @property
    def line(self) -> str:
        about = f"{self.incident} " if self.incident else ""
        if self.brief:
            return printable(f"{clock_time(self.at)} {about}{_AGAIN.get(self.what, self.what)}")
        what = _LINE.get(self.what, self.what)
        return printable(f"{clock_time(self.at)} {about}{what}: {without_advice(self.message)}")

    def to_json(self, run_id: str) -> str:
        change = {"schema": SCHEMA, "run": run_id, "at": self.at, "at_utc": utc(self.at), "what": self.what}
        return json.dumps({**change, "incident": self.incident or None, "message": self.message})


@dataclass
class Changes:
    """Compares views of one run. The first view brings everything that has happened so far."""

    earlier: bool = True  # whether the first view also brings incidents that are over, or only counts them
    _phase: str = ""
    _marks: set[tuple[str, float, str]] = field(default_factory=set)
    _messages: set[tuple[str, str]] = field(default_factory=set)
    _reports: set[str] = field(default_factory=set)
    _saves_fail: str = ""  # the error
    _waits: str = ""  # what a pending job waits for, without numbers
    _operations: set[tuple[str, int]] = field(default_factory=set)

    def of(self, view: RunView) -> list[Change]:
        """Return what has changed since the last view, oldest first."""
        found: list[Change] = []
        ended = [one for one in view.incidents if one.duration is not None] if not self._phase else []
        if view.phase != self._phase:
            self._phase = view.phase
            where = f"job {view.job_id}" if view.job_id else "no job yet"
            step = f", step {view.step}{view.counted}" if view.step >= 0 else ""
            why = f", {view.verdict}" if view.phase == "held" else ""
            if view.job_id or not view.observed:  # an observed run submits nothing
                found.append(Change(view.since or view.now, view.phase, f"{where}{step}{why}"))
        if ended and not self.earlier:
            self._marks |= {(one.id, at, what + message) for one in ended for at, what, message in one.marks}
            words = f"{len(ended):,} earlier; see `transom explain {view.run_id}`"
            found.append(Change(view.since or view.now, "incidents", words))
        for incident in reversed(view.incidents):
            for at, what, message in incident.marks:
                if (incident.id, at, what + message) not in self._marks:
                    self._marks.add((incident.id, at, what + message))
                    known = (incident.id, message) in self._messages
                    self._messages.add((incident.id, message))
                    found.append(Change(at, what, message, incident.id, known and what in _REPEATED, known))
        found += [Change(one.began or view.now, one.what, one.message) for one in self._begun(view)]
        found += [Change(view.now, "noticed", report) for report in view.reports if report not in self._reports]
        found += [Change(view.now, "over", report) for report in sorted(self._reports - set(view.reports))]
        self._reports = set(view.reports)
        waits = view.starved or pending_reason(view)
        if (kind := re.sub(r"\d", "", waits)) != self._waits:
            self._waits = kind
            found += [Change(view.now, "waiting", waits)] if waits else []
        fails = view.saves_fail.why if view.saves_fail is not None else ""
        if view.saves_fail is not None and fails != self._saves_fail:
            found.append(Change(view.saves_fail.since, "saves fail", view.saves_fail.words))
        if self._saves_fail and not fails:
            found.append(Change(view.now, "saves", "succeed again"))
        self._saves_fail = fails
        return sorted(found, key=lambda change: change.at)

    def _begun(self, view: RunView) -> list[Operation]:
        """Return new restores, and new saves that the run waits for; saves during training are routine."""
        now = [one for one in view.operations if one.what == "restoring" or view.phase != "training"]
        begun = [one for one in now if (one.what, one.step) not in self._operations]
        self._operations = {(one.what, one.step) for one in now}
        return begun
