"""The table of `transom list`. Pure, and a module of its own because the command must start fast."""

from collections.abc import Sequence
from typing import Any

from transom_cli.view.model import RunView
from transom_cli.view.slurm_reasons import pending_reason
from transom_cli.view.text import Line, brief, count, cut, span, table, utc

_COLUMNS = ("RUN", "STATE", "FOR", "STEP", "DISK", "JOB", "AGE", "NOTE")
_LEAST = {"DISK": 72, "JOB": 76, "AGE": 80}  # terminal columns from which a column is shown: the note matters more
_RIGHT = frozenset({"FOR", "STEP", "DISK", "JOB", "AGE"})
_TONES = {
    "crash loop": "bad",
    "starved": "bad",
    "training": "good",
    "done": "dim",
    "held": "bad",
    "failed": "bad",
    "failing": "bad",
    "unknown": "bad",
    "recovering": "warn",
}
_IN_JSON = (
    "run_id", "phase", "status", "health", "verdict", "job_id", "step", "steps_since_start", "durable", "submitted",
    "since", "operator", "slurm_silent_since", "exit_code", "owner", "observed",
)  # fmt: skip


def list_lines(views: Sequence[RunView], width: int | None) -> list[Line]:
    """FOR: time in this state, or the duration of a run that is over. AGE: time since submission."""
    rows = [_row(view) for view in views]
    columns = [n for n in range(len(_COLUMNS)) if width is None or width >= _LEAST.get(_COLUMNS[n], 0)]
    lines = table(tuple(_COLUMNS[n] for n in columns), [tuple(row[n] for n in columns) for row in rows], _RIGHT)
    return lines if width is None else [cut(one, width) for one in lines]


def _row(view: RunView) -> tuple[str | tuple[str, str], ...]:
    until = view.since if view.over else view.now
    duration = until - (view.submitted if view.over and view.submitted is not None else view.since)
    return (
        view.run_id,
        (view.status, _TONES.get(view.status, "note")),
        brief(duration) if view.since else "",
        count(view.step) if view.step >= 0 else "",
        count(view.durable) if view.durable >= 0 else "",
        str(view.job_id or ""),
        brief(view.now - view.submitted) if view.submitted is not None else "",
        "; ".join(filter(None, ("observed" * view.observed, f"owner {view.owner}" if view.owner else "", _note(view)))),
    )


def _note(view: RunView) -> str:
    if view.saves_fail is not None and view.health in ("degraded", "unknown"):
        return f"SAVES FAIL: {view.saves_fail.words}"
    if view.disk_full:
        return "DISK FULL: logs, heartbeats and saves fail"
    if view.verdict:
        return view.verdict
    if view.over:
        return ""
    if view.status != view.confirmed:
        return view.condition or pending_reason(view)
    was = f"was {view.phase}; " if view.status != view.phase else ""
    if not view.operator and view.young and not view.operator_job:
        return "its operator starts"
    if view.no_operator:
        return "no operator: nobody restarts the run" + (
            f" (its job: {view.operator_job})" if view.operator_job else ""
        )
    if not view.operator:
        return f"{was}no live operator" + (f" (its job: {view.operator_job})" if view.operator_job else "")
    if view.slurm_lost:
        return f"{was}Slurm has not answered for {span(view.slurm_silent)}"
    newest = view.incidents[0] if view.incidents else None
    unresolved = newest is not None and newest.duration is None and not newest.planned
    about = newest.fault.title if newest is not None and unresolved else next(iter(view.reports), "")
    about = about if view.concern or view.status == "recovering" else ""
    return "; ".join(filter(None, (": ".join(filter(None, (view.concern, about))), pending_reason(view))))


def list_row(view: RunView) -> dict[str, Any]:
    """Return JSON values; view/schema/list.json describes them."""
    found = {name: getattr(view, name) for name in _IN_JSON}
    return found | {f"{name}_utc": utc(found[name]) if found[name] else None for name in ("submitted", "since")}
