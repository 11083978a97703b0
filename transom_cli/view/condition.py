"""The condition of a run in a word: the first line of every screen, and the answer to "is it all right?". Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transom_cli.core.incident import Incident
from transom_cli.core.policy import Rule
from transom_cli.plural import several, times
from transom_cli.view.text import count, some

if TYPE_CHECKING:
    from transom_cli.view.model import RunView

_TONES = {
    "training": "good", "done": "good", "finishing": "good", "held": "bad", "failed": "bad", "unknown": "bad",
    "recovering": "warn", "stopping": "warn", "stopped": "warn",
}  # fmt: skip
LOOP, STARVED = "crash loop", "starved"
UNAVAILABLE = ("Nodes_required_for_job_are_DOWN", "ReqNodeNotAvail")  # Slurm's reasons: too few nodes can run the job


@dataclass(frozen=True)
class CrashLoop:
    """The same failure at the same step, again and again.

    Attributes:
        incidents: The identical ones in a row, oldest first.
        left: Launches until a rule of the policy stops the run; None: no rule counts them.
    """

    what: str
    step: int
    incidents: tuple[str, ...]
    left: int | None = None

    @property
    def words(self) -> str:
        stops = ""
        if self.left is not None:
            stops = f"; stops after {self.left} more" if self.left > 1 else "; stops at the next one"
        return f"{self.what}, {times(len(self.incidents))}, never past step {count(self.step)}{stops}"


@dataclass(frozen=True)
class Condition:
    """word: for the first line, such as `training`. message: why; "" if the word says it all."""

    word: str
    message: str = ""
    tone: str = "note"


def condition(view: RunView) -> Condition:
    """Return what a reader must know first. A condition is more precise than the phase."""
    word = view.status
    found = None
    if not view.over and word not in ("held", "unknown", "stopping"):
        found = _looping(view) or _starved(view) or _leaving(view) or _beginning(view) or _training(view)
    return found or Condition(word, "", _TONES.get(word, "note"))


def _looping(view: RunView) -> Condition | None:
    return Condition(LOOP, view.loop.words, "bad") if view.loop is not None else None


def _starved(view: RunView) -> Condition | None:
    if not starved(view):
        return None
    needs = f"needs {several(view.num_nodes, 'node')}; " if view.num_nodes else ""
    away = [f"{node} ({how} by this run)" for node, how, _ in view.excluded]
    known = {node for node, *_ in view.excluded}
    away += [f"{node} ({by})" for node, by in view.drained if node not in known]
    return Condition(STARVED, f"{needs}transom keeps away {', '.join(away)}", "bad")


def starved(view: RunView) -> bool:
    """Whether Slurm cannot start the job, and nodes that transom keeps away are the likely reason."""
    waits = view.slurm_state == "PENDING" and view.slurm_reason.startswith(UNAVAILABLE)
    return waits and bool(view.excluded or view.drained)


def _leaving(view: RunView) -> Condition | None:
    if view.leaving and view.status in ("training", "recovering"):
        return Condition("leaving", view.leaving, "warn")
    ranks = [one for one in view.node_views if one.role == "ranks" and one.ranks]
    if view.status == "training" and ranks and not any(one.alive for one in ranks):
        return Condition("leaving", "every rank has ended; waiting for the launcher's report", "warn")
    return None


def _beginning(view: RunView) -> Condition | None:
    if view.status != "starting":
        return None
    if view.checking:
        return Condition("preflight", f"checking {several(view.checking, 'node')}")
    return Condition("starting", "Python starts, waiting for step 1" if view.launched else "")


def _training(view: RunView) -> Condition | None:
    if view.status != "training":
        return None
    if view.saves_fail is not None:
        return Condition("training, saves fail", "", "bad")
    current = view.incidents[0] if view.incidents and view.incidents[0].duration is None else None
    if current is not None and current.result != "starting":
        hang = current.stalled or current.category == "nccl_hang"
        return Condition("training, hang suspected" if hang else "training, fault suspected", current.message, "warn")
    odd = [one for one in view.node_views if one.role == "ranks" and one.state not in ("ok", "waiting")]
    if odd:
        slow = all(one.state == "slow" for one in odd)
        nodes = some(tuple(one.node for one in odd))
        return Condition("training, slow" if slow else "training, degraded", nodes, "warn")
    if view.reports or view.blind:
        return Condition("training, degraded", "", "warn")
    return None


# --- from the state ---


def crash_loop(incidents: Sequence[Incident], rules: Sequence[Rule], step: int) -> CrashLoop | None:
    """Return the loop that the newest incidents show; None if they differ or the run has come further.

    Args:
        incidents: Oldest first, with the open one.
        step: The newest step of the present launch.
    """
    known = [(i.id, i.diagnosis.decided) for i in incidents if i.diagnosis is not None]
    if not known or known[-1][1].step is None or not known[-1][1].fingerprint:
        return None
    last = known[-1][1]
    place, same = last.step, []
    for name, decided in reversed(known):
        if (decided.fingerprint, decided.step) != (last.fingerprint, place):
            break
        same.append(name)
    if len(same) < 2 or place is None or step > place:
        return None
    newest = next(i for i in incidents if i.id == same[0])
    what = root_line(newest) or (newest.diagnosis.words if newest.diagnosis is not None else "")
    rule = next((r for r in rules if r.name == last.rule and r.same_step), None)
    left = None if rule is None or rule.budget is None else max(1, rule.budget + 1 - len(same))
    return CrashLoop(what, place, tuple(reversed(same)), left)


def root_line(incident: Incident) -> str:
    """Return the log line that explains an incident; "" if there is none."""
    read = [mark.words.partition(": ")[2] for mark in incident.marks if mark.what == "examined"]
    return incident.log_line or (read[-1] if read else "")


def result_of(number: int, incidents: Sequence[Incident], step: int) -> str:
    """Return the result of an incident. A run has recovered from it only beyond the step at which it failed.

    Args:
        number: Of the incident in `incidents`, which are oldest first, with the open one.
        step: The newest step of the present launch.
    """
    incident = incidents[number]
    last = number + 1 == len(incidents)
    reached = step if last else incidents[number + 1].step
    if incident.result == "recovered" and not incident.since_start and 0 <= reached <= incident.step:
        return "repeating steps" if last else "failed again"
    return incident.result or incident.stage.value
