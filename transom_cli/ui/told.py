"""What the journal's events tell beside the state: when things were, and how long a step takes lately. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from transom_cli.core import events as ev
from transom_cli.core.state import State
from transom_cli.layout import parse_attempt

LATELY = 900.0  # seconds over which the step time is taken


@dataclass(frozen=True)
class Told:
    """Seconds of the wall clock; None: not known. steps: when which step was reached, since the last launch."""

    submitted: float | None = None
    durable: float | None = None  # when the newest checkpoint on disk was seen
    running: float | None = None  # since when the present attempt's job runs
    launched: float | None = None  # when the newest launch of this attempt was seen
    steps: tuple[tuple[float, int], ...] = ()


def told(events: Iterable[ev.Event], state: State) -> Told:
    submitted = durable = running = launched = None
    steps: list[tuple[float, int]] = []
    newest = -1
    for event in events:
        if isinstance(event, ev.StepSeen):
            if event.attempt == state.attempt:
                steps.append((event.at, event.step))
        elif isinstance(event, ev.Submitted):
            submitted = event.at if submitted is None else submitted
        elif isinstance(event, ev.CheckpointSeen):
            newest, durable = (event.step, event.at) if event.step > newest else (newest, durable)
        elif isinstance(event, ev.OutcomeSeen) and event.durable > newest:
            newest, durable = event.durable, event.at
        elif isinstance(event, ev.LaunchSeen) and event.attempt == state.attempt:
            steps, launched = [], event.at
            running = event.at if running is None else running
        elif isinstance(event, ev.JobSeen) and event.state == "RUNNING" and running is None:
            running = event.at if (event.job_id, event.restarts) == parse_attempt(state.attempt or "0.0") else None
    return Told(submitted, durable, running, launched, tuple(steps))


def step_time(steps: tuple[tuple[float, int], ...], last: tuple[float, int] | None = None) -> float | None:
    """Seconds a step, over the last quarter of an hour.

    last: the newest step of all, and when it was done. It is by another clock, so it counts in the first minute alone.
    """
    points = [*steps, last] if last is not None and len(steps) == 1 else [*steps]
    if len(points) < 2:
        return None
    end, step = points[-1]
    began, first = next((p for p in points[:-1] if end - p[0] <= LATELY), points[-2])
    return (end - began) / (step - first) if step > first and end > began else None
