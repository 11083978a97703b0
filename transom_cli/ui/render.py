"""A run's view as lines of text. Pure: the same view and width give the same lines, and no line is wider than asked."""

from __future__ import annotations

import textwrap

from transom_cli.ui.view import IncidentView, RunView
from transom_cli.ui.words import clock_time, count, fit, span

LABEL = 12
SHOWN = 3  # incidents on the status screen


def headline(view: RunView) -> str:
    parts = [view.run_id, f"{view.phase.upper()} {span(view.now - view.since)}" if view.since else view.phase.upper()]
    if view.job_id:
        parts.append(f"job {view.job_id}")
    if view.starts:
        parts.append(f"restart {view.starts}")
    return "  ".join(parts)


def status_lines(view: RunView, width: int = 80) -> list[str]:
    lines = [headline(view)]
    if view.verdict:
        lines.append(_row("because", view.verdict))
    if view.step >= 0:
        loss = f"  loss {view.loss:.4f}" if view.loss is not None else ""
        lines.append(_row("step", count(view.step) + loss))
    lines += [_row("noticed", words) for words in view.reports]
    if view.durable >= 0 or view.memory >= 0:
        lines.append(_row("checkpoint", "; ".join(_checkpoints(view))))
    if view.rhythm:  # its reason is worth a second line
        told = textwrap.wrap(view.rhythm, max(20, width - LABEL))
        lines += map(_row, ["saves", *[""] * len(told)], told)
    if view.nodes:
        lines.append(_row("nodes", f"{len(view.nodes)}: {', '.join(view.nodes)}"))
    if view.spares:
        lines.append(_row("spares", f"{len(view.spares)}: {', '.join(view.spares)}"))
    for node, how, reason in view.excluded:
        lines.append(_row("kept off", f"{node} ({how}): {reason}"))
    if view.slurm_state and not view.over:
        reason = f" ({view.slurm_reason})" if view.slurm_state == "PENDING" and view.slurm_reason else ""
        lines.append(_row("slurm", f"job {view.job_id} {view.slurm_state}{reason}"))
    lines += _what_now(view)
    if view.slurm_lost:
        lines.append(f"warning: Slurm does not answer, the job's state is not known: {view.slurm_lost}")
    if not view.operator and not view.over:
        lines.append(f"warning: no operator is alive; start one with `transom attach {view.run_id}`")
    if view.incidents:
        lines += ["", "incidents", *(_incident_line(i) for i in view.incidents[:SHOWN])]
        if len(view.incidents) > SHOWN:
            lines.append(f"{len(view.incidents) - SHOWN} earlier ones: `transom explain {view.run_id}`")
    return [fit(line, width) for line in lines]


def phase_lines(view: RunView, width: int = 80) -> list[str]:
    """What a step is spent on, by rank; or why that is not known."""
    if view.phase_lines:
        return [fit(line, width) for line in view.phase_lines]
    return ["No rank of this attempt has told for a minute what its steps are spent on: see docs/slowness.md"]


def _checkpoints(view: RunView) -> list[str]:
    """The newest in memory, and the newest on disk."""
    found = []
    if view.memory >= 0:
        old = f"{span(view.memory_age)} ago, " if view.memory_age is not None else ""
        found.append(f"memory {count(view.memory)} ({old}{view.memory_protection})")
    if view.durable >= 0:
        behind = f" ({view.step - view.durable} behind)" if view.step > view.durable else ""
        found.append(f"disk {count(view.durable)}{behind}")
    return found


def _what_now(view: RunView) -> list[str]:
    """What a person can do about a run that is held."""
    if view.phase != "held" or not view.job_id:
        return []
    return [
        _row("the story", f"transom explain {view.run_id}"),
        _row("go on", f"scontrol release {view.job_id}"),
        _row("give up", f"transom stop {view.run_id}"),
    ]


def held_lines(view: RunView) -> list[str]:
    """Why a run is held, and what now: the end of its story."""
    since = f" {clock_time(view.since)}" if view.since else ""
    return [f"held{since}  {view.verdict}", *_what_now(view)[1:]]


def _row(label: str, text: str) -> str:
    return f"{label:<{LABEL}}{text}"


def _incident_line(incident: IncidentView) -> str:
    after = f" in {span(incident.lasted)}" if incident.lasted is not None else ""
    return f"{incident.id:<4}{clock_time(incident.began)}  {incident.result}{after}  {incident.words}"


def incident_lines(incident: IncidentView, width: int = 100) -> list[str]:
    """The story of one incident: when, what, how long after its first sign."""
    lines = [_incident_line(incident)]
    for at, what, words in incident.marks:
        lines.append(f"    {clock_time(at)}  +{at - incident.began:6.2f} s  {what:<10} {words}")
    return [fit(line, width) for line in lines]
