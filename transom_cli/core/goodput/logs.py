"""One attempt, from what its launcher has written: `launcher.jsonl`, `progress.jsonl`, `outcome.json`. Pure.

Records come as plain JSON values. What cannot be read is left out, as a torn line or another version's record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from transom_cli.core.goodput.shapes import Attempt, Launch, Sample, Sign, ns

Record = Mapping[str, Any]
_HANDED = ("requeued", "resubmitted", "held")  # as in `supervise.handed`
_FAR = 2**40  # seconds that no clock shows


def attempt_of(name: str, journal: Iterable[Record], progress: Iterable[Record], outcome: Record) -> Attempt:
    attempt = Attempt(name)
    launches: dict[int, Launch] = {}
    for record in journal:
        if (at := _time(record)) is None:
            continue
        if attempt.begun is None:
            attempt = replace(attempt, launcher=True, begun=at)
        kind = record.get("type")
        if kind == "launch" and isinstance(number := record.get("launch"), int):
            launches.setdefault(number, Launch(number, at))
        elif kind == "heal":
            attempt = _healed(attempt, at, record, bool(launches))
        elif kind == "outcome":
            attempt = replace(attempt, ended=at, status=str(record.get("status", "")))
        elif kind == "requeued" and record.get("how") in _HANDED:
            attempt = replace(attempt, handed=at, held=record.get("how") == "held")
    samples: dict[int, list[Sample]] = {}
    for record in progress:
        at, step, number = _time(record), record.get("step"), record.get("launch")
        if at is not None and isinstance(step, int) and isinstance(number, int):
            samples.setdefault(number, []).append(Sample(at, step, _stalled(record)))
    told = [
        replace(one, samples=tuple(samples[n]), exact=True) if n in samples else one
        for n, one in sorted(launches.items())
    ]
    step, cause = outcome.get("step", -1), str(outcome.get("cause", ""))
    return replace(attempt, launches=tuple(told), step=step if isinstance(step, int) else -1, cause=cause)


def _healed(attempt: Attempt, at: int, record: Record, launched: bool) -> Attempt:
    what, name = record.get("what"), str(record.get("incident", ""))
    if what == "checked" and not name and not launched:
        return replace(attempt, checked=at)
    if what == "seen" and name:
        return replace(attempt, signs=(*attempt.signs, Sign(at, name)))
    if what == "diagnosed" and attempt.signs and attempt.signs[-1].incident == name:
        decided = record.get("decided")
        category = str(decided.get("category", "")) if isinstance(decided, Mapping) else ""
        last = replace(attempt.signs[-1], category=category or str(record.get("cause", "")))
        return replace(attempt, signs=(*attempt.signs[:-1], last))
    return attempt


def _stalled(record: Record) -> int | None:
    seconds = record.get("seconds")
    if not isinstance(seconds, Mapping):
        return None
    told = seconds.get("checkpoint", 0.0)
    return ns(told) if isinstance(told, (int, float)) and 0 <= told < _FAR else None


def _time(record: Record) -> int | None:
    wall = record.get("wall")
    return ns(wall) if isinstance(wall, (int, float)) and not isinstance(wall, bool) and 0 < wall < _FAR else None


def shifted(attempt: Attempt, by: int) -> Attempt:
    """With all its times moved: the launcher's clock is not the operator's."""
    if not by:
        return attempt

    def move(at: int | None) -> int | None:
        return None if at is None else at + by

    launches = tuple(
        replace(one, at=one.at + by, samples=tuple(replace(s, at=s.at + by) for s in one.samples))
        for one in attempt.launches
    )
    signs = tuple(replace(sign, at=sign.at + by) for sign in attempt.signs)
    moved = replace(attempt, begun=move(attempt.begun), checked=move(attempt.checked), launches=launches, signs=signs)
    return replace(moved, ended=move(attempt.ended), handed=move(attempt.handed))
