"""What a launcher without an operator did with its job, as its journal records it."""

import contextlib
from dataclasses import dataclass

from transom_cli.files import listed, read_json, read_lines
from transom_cli.layout import AttemptDir, RunDir, parse_attempt

RECORD = "requeued"  # the type of the record in the launcher's journal


@dataclass(frozen=True)
class Handoff:
    """How an attempt was followed by another one.

    job_id, restarts: the start that follows on it.
    """

    attempt: str
    how: str  # requeued, resubmitted (as another job) or held (either way, to wait for a person)
    job_id: int
    restarts: int
    why: str = ""  # the reason in the attempt's outcome
    wall: float = 0.0  # when, by the launcher's clock

    @property
    def start(self) -> tuple[int, int]:
        return self.job_id, self.restarts


def read_handoff(attempt: AttemptDir) -> Handoff | None:
    """Return the handoff of an attempt; None if its launcher did not need to hand the job over, or could not."""
    records = [one for one in read_lines(attempt.launcher_journal) if one.get("type") == RECORD]
    return _handed(attempt, records[-1]) if records else None


def newest_handoff(run: RunDir, before: tuple[int, int] | None = None) -> Handoff | None:
    """Return the handoff of the newest attempt, or of the newest one `before` (job ID, restart count)."""
    numbers = [n for n in attempt_numbers(run) if before is None or n < before]
    return read_handoff(run.attempt(*max(numbers))) if numbers else None


def attempt_numbers(run: RunDir) -> list[tuple[int, int]]:
    """Return (job ID, restart count) of every attempt that has a folder."""
    found = []
    for path in listed(run.attempts):
        with contextlib.suppress(ValueError):
            found.append(parse_attempt(path.name))
    return found


def _handed(attempt: AttemptDir, record: dict[str, object]) -> Handoff | None:
    how, wall = str(record.get("how")), record.get("wall")
    job_id, restarts = record.get("job_id"), record.get("restarts")
    if how not in ("requeued", "resubmitted", "held") or not isinstance(job_id, int) or not isinstance(restarts, int):
        return None
    when = float(wall) if isinstance(wall, (int, float)) else 0.0
    return Handoff(attempt.name, how, job_id, restarts, str(read_json(attempt.outcome).get("why", "")), when)
