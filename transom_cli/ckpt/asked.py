"""What a Checkpointer was asked for, checked before anything is made."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transom_cli.ckpt import retention
from transom_cli.ckpt.also import Also
from transom_cli.ckpt.also import check as check_also
from transom_cli.ckpt.names import local_attempt, valid_attempt
from transom_cli.ckpt.retention import Keep
from transom_cli.ckpt.schedule import schedule
from transom_cli.ckpt.schedule.lasting import Rule
from transom_cli.ckpt.snapshot.protection import Protection, parse
from transom_cli.errors import UsageError

LEAST_RATE = 1e6  # bytes a second


@dataclass(frozen=True)
class Asked:
    directory: Path
    also: Mapping[Path, int]
    attempt: str  # in whose name checkpoints are made
    keep: Keep
    persist: int | str
    rule: Rule
    protection: Protection
    rate: float | None
    overlapped: bool
    prove: bool


def asked(
    directory: str | os.PathLike[str] | None, every: int | str, overhead: float, keep: int, keep_every: int | None,
    also: Also | None, copy: str, prove: bool, persist: int | str | None, protect: str, rate: float | None,
) -> Asked:  # fmt: skip
    """Raises UsageError."""
    schedule.check(every, overhead)
    if persist is None:
        persist = schedule.AUTO if every == schedule.AUTO else 1
    rule, protection, keeping = Rule(persist), parse(protect), retention.check(keep, keep_every)
    if rate is not None and rate < LEAST_RATE:
        raise UsageError(f"protect_rate={rate!r} must be bytes a second, at least {LEAST_RATE:g}")
    if copy not in ("blocking", "overlapped"):
        raise UsageError(f'copy={copy!r} must be "blocking" or "overlapped"')
    where = directory if directory is not None else os.environ.get("TRANSOM_CHECKPOINT_DIR")
    if not where:
        raise UsageError(
            "The Checkpointer has no directory",
            "TRANSOM_CHECKPOINT_DIR is not set: this trainer was not started by transom",
            'give one: Checkpointer(state, "checkpoints", every=...)',
        )
    attempt = _attempt()
    if not valid_attempt(attempt):
        raise UsageError(f"TRANSOM_ATTEMPT={attempt!r} cannot be part of a file name")
    place = Path(where).absolute()
    further = check_also(also, place)
    return Asked(place, further, attempt, keeping, persist, rule, protection, rate, copy == "overlapped", prove)


def _attempt() -> str:
    """Who writes: the attempt and its launch, under transom; else this process."""
    attempt, launch = os.environ.get("TRANSOM_ATTEMPT"), os.environ.get("TRANSOM_LAUNCH")
    if not attempt:
        return local_attempt(socket.gethostname(), os.getpid())
    return f"{attempt}.{launch}" if launch else attempt
