"""Which launch of a trainer memory is for. Pure.

Slurm's numbers tell an older launch from a newer one. Between starts that have none, the one that came last counts:
no clock is asked, which may have been set back between the two.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from transom_cli.ckpt.names import age


@dataclass(frozen=True)
class Launch:
    """One start of all ranks. `attempt` as checkpoints name it; `token`: no other start has it."""

    attempt: str
    token: str

    def older_than(self, other: Launch) -> bool:
        """By the numbers of both."""
        mine, theirs = age(self.attempt), age(other.attempt)
        return mine is not None and theirs is not None and mine < theirs

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read(told: object) -> Launch:
    """Raises ValueError."""
    if not isinstance(told, dict) or set(told) != {"attempt", "token"}:
        raise ValueError("not a launch")
    attempt, token = told["attempt"], told["token"]
    if not isinstance(attempt, str) or not isinstance(token, str):
        raise ValueError("not a launch")
    return Launch(attempt, token)
