"""The arguments of a Checkpointer, checked before anything is allocated or written."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from transom_cli.ckpt.names import local_attempt, valid_attempt
from transom_cli.ckpt.publish import Keep
from transom_cli.ckpt.schedule import schedule
from transom_cli.ckpt.schedule.cadence import span
from transom_cli.ckpt.schedule.plan import AUTO
from transom_cli.ckpt.snapshot.protection import Protection, parse
from transom_cli.ckpt.tiers.objects import is_url
from transom_cli.errors import UsageError

LEAST_RATE = 1e6  # bytes a second


_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smh])")


class PersistRule:
    """Which saves become durable: every n-th, the first after some time, or as the schedule finds best.

    Rank 0 decides for all ranks.
    """

    def __init__(self, persist: int | str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises UsageError."""
        self._every: int | None = None
        self._auto = persist == AUTO
        self._seconds = 0.0
        self._hurry = False
        self._count, self._clock, self._last = 0, clock, clock()
        found = _TIME.fullmatch(persist) if isinstance(persist, str) else None
        if found is not None and float(found[1]) > 0:
            self._seconds = float(found[1]) * _SECONDS[found[2]]
        elif type(persist) is int and persist >= 1:
            self._every = persist
        elif not self._auto:
            raise UsageError(
                f"persist={persist!r} is neither a number of saves nor a time nor {AUTO!r}",
                "it says how often a snapshot is made durable as well",
                'persist=10 (every tenth), or persist="10m" (also "30s", "1h")',
            )

    @property
    def words(self) -> str:
        """Which saves become durable; "" if the schedule decides."""
        if self._auto:
            return ""
        if self._every is None:
            return f"the first after {span(self._seconds)} is made durable"
        return "each is made durable" if self._every == 1 else f"one of {self._every} is made durable"

    def hurry(self) -> None:
        """Make the next save durable: training resumed from memory alone.

        If it were killed again and again before the n-th save, nothing would ever become durable.
        """
        self._hurry = True

    def left(self, found: int) -> tuple[int | None, float]:
        """Saves until one becomes durable, including that one; or None, and the seconds until the first one does.

        Args:
            found: as for `due`.
        """
        every = self.every(found)
        if every is not None:
            return 1 if self._hurry else max(1, every - self._count), 0.0
        return None, 0.0 if self._hurry else max(0.0, self._last + self._seconds - self._clock())

    def every(self, found: int) -> int | None:
        """One of how many saves becomes durable; None if the clock decides."""
        return found if self._auto else self._every

    def due(self, requested: bool, found: int) -> bool:
        """Whether this save becomes durable. Call it once for each committed save.

        Args:
            requested: make it durable in any case.
            found: one of how many saves the schedule finds best.
        """
        self._count += 1
        every = self.every(found)
        late = self._count >= every if every is not None else self._clock() - self._last >= self._seconds
        due = requested or self._hurry or late
        if due:
            self._count, self._last, self._hurry = 0, self._clock(), False
        return due


@dataclass(frozen=True)
class Options:
    directory: Path
    also: Mapping[Path, int]
    mirrors: Mapping[str, int]  # URLs of object storage
    upload_rate: float | None
    attempt: str  # the name under which checkpoints are written
    keep: Keep
    persist: int | str
    rule: PersistRule
    protection: Protection
    rate: float | None
    overlapped: bool
    prove: bool
    full_every: int | None  # None: every durable checkpoint is written in full


def parse_options(
    directory: str | os.PathLike[str] | None, every: int | str, overhead: float, keeping: Keep,
    also: Also | None, copy: str, prove: bool, persist: int | str | None, protect: str, rate: float | None,
    upload_rate: float | None, full_every: int | None = None,
) -> Options:  # fmt: skip
    """Check the arguments of a Checkpointer. Raises UsageError."""
    schedule.check(every, overhead)
    if persist is None:
        persist = AUTO if every == AUTO else 1
    rule, protection = PersistRule(persist), parse(protect)
    for name, value in (("protect_rate", rate), ("upload_rate", upload_rate)):
        if value is not None and value < LEAST_RATE:
            raise UsageError(f"{name}={value!r} must be bytes a second, at least {LEAST_RATE:g}")
    if full_every is not None and (type(full_every) is not int or full_every < 2):
        raise UsageError(
            f"full_every={full_every!r} must be a number, at least 2, or None",
            "one of so many durable checkpoints is written in full, and of the others only what has changed",
            "full_every=10; None, the default, writes every checkpoint in full",
        )
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
    further, mirrors = check_also(also, place)
    return Options(
        place,
        further,
        mirrors,
        upload_rate,
        attempt,
        keeping,
        persist,
        rule,
        protection,
        rate,
        copy == "overlapped",
        prove,
        full_every,
    )


def _attempt() -> str:
    """The name under which this process writes: its attempt and launch, or this process outside transom."""
    attempt, launch = os.environ.get("TRANSOM_ATTEMPT"), os.environ.get("TRANSOM_LAUNCH")
    if not attempt:
        return local_attempt(socket.gethostname(), os.getpid())
    return f"{attempt}.{launch}" if launch else attempt


Also = Mapping[str | os.PathLike[str], int]


def check_also(also: Also | None, main: Path) -> tuple[dict[Path, int], dict[str, int]]:
    """Return absolute paths and URLs, each with n: every n-th durable checkpoint is copied there. Raises UsageError."""
    found: dict[Path, int] = {}
    urls: dict[str, int] = {}
    seen = {main.resolve()}
    for where, every in (also or {}).items():
        if type(every) is not int or every < 1:
            raise UsageError(
                f"also={{{str(where)!r}: {every!r}}} must be a number, at least 1",
                "every n-th durable checkpoint is copied into that directory",
                'also={"/archive/my-run": 10} copies every tenth',
            )
        if is_url(where):
            urls[str(where).rstrip("/")] = every
            continue
        path = Path(where).absolute()
        if path.resolve() in seen:
            raise UsageError(
                f"also={{{str(where)!r}: {every}}} must be another directory",
                f"checkpoints are kept there already: {main} is the main directory",
            )
        seen.add(path.resolve())
        found[path] = every
    if urls:
        _check_storage(urls)
    return found, urls


def _check_storage(urls: Iterable[str]) -> None:
    """Raise UsageError where no package for such a URL is installed. No call is made to the storage."""
    for url in urls:
        try:
            import fsspec

            fsspec.get_filesystem_class(url.partition("://")[0])
        except (ImportError, ValueError) as error:
            raise UsageError(
                f"also={{{url!r}: ...}} cannot be used", str(error), "in the clone of transom: pip install '.[object]'"
            ) from None
