"""Which of two launches of a trainer is the newer one. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from transom_cli.ckpt.names import age


@dataclass(frozen=True)
class Launch:
    """One start of all ranks. `attempt` as checkpoints name it; `born`: when rank 0 came up, ns since the epoch, which
    decides only between starts that Slurm has not numbered; `token`: no other start has it."""

    attempt: str
    born: int
    token: str

    def newer_than(self, other: Launch) -> bool:
        if self.token == other.token:
            return False
        mine, theirs = age(self.attempt), age(other.attempt)
        if mine is not None and theirs is not None and mine != theirs:
            return mine > theirs
        return self.born > other.born

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read(told: object) -> Launch:
    """Raises ValueError."""
    if not isinstance(told, dict) or set(told) != {"attempt", "born", "token"}:
        raise ValueError("not a launch")
    attempt, born, token = told["attempt"], told["born"], told["token"]
    if not isinstance(attempt, str) or not isinstance(token, str) or type(born) is not int:
        raise ValueError("not a launch")
    return Launch(attempt, born, token)
