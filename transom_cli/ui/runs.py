"""All runs as a table, and as rows of JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transom_cli.ui.lines import Line, cut, table
from transom_cli.ui.view import RunView
from transom_cli.ui.words import brief, count, utc

_HEAD = ("RUN", "STATE", "FOR", "STEP", "DISK", "JOB", "AGE", "NOTE")
_RIGHT = frozenset({"FOR", "STEP", "DISK", "JOB", "AGE"})
_TONES = {"training": "good", "done": "dim", "held": "bad", "failed": "bad", "unknown": "bad", "recovering": "warn"}


def list_lines(views: Sequence[RunView], width: int | None) -> list[Line]:
    """FOR: how long it has been so; of a run that is over, how long it took. AGE: since it was submitted."""
    lines = table(_HEAD, [_row(view) for view in views], _RIGHT)
    return lines if width is None else [cut(one, width) for one in lines]


def _row(view: RunView) -> tuple[str | tuple[str, str], ...]:
    began = view.since if view.over else view.now
    lasted = began - (view.submitted if view.over and view.submitted is not None else view.since)
    return (
        view.run_id,
        (view.word, _TONES.get(view.word, "note")),
        brief(lasted) if view.since else "",
        count(view.step) if view.step >= 0 else "",
        count(view.durable) if view.durable >= 0 else "",
        str(view.job_id or ""),
        brief(view.now - view.submitted) if view.submitted is not None else "",
        _note(view),
    )


def _note(view: RunView) -> str:
    if view.verdict:
        return view.verdict
    if view.over:
        return ""
    was = f"was {view.phase}; " if view.word != view.phase else ""
    if not view.operator:
        return f"{was}no operator is alive" + (f" (its job: {view.operator_job})" if view.operator_job else "")
    return f"{was}Slurm does not answer" if view.slurm_lost else ""


def list_row(view: RunView) -> dict[str, Any]:
    told = {"run_id": view.run_id, "phase": view.phase, "job_id": view.job_id, "step": view.step}
    told |= {"verdict": view.verdict, "word": view.word, "standing": view.standing, "durable": view.durable}
    told |= {"submitted": view.submitted, "since": view.since, "operator": view.operator, "exit_code": view.exit_code}
    submitted = utc(view.submitted) if view.submitted else None
    return {**told, "submitted_utc": submitted, "since_utc": utc(view.since) if view.since else None}
