"""The arguments of a Checkpointer, checked before anything is allocated or written."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

from transom_cli.ckpt.names import local_attempt, valid_attempt
from transom_cli.ckpt.publish import Keep
from transom_cli.ckpt.schedule import PersistRule
from transom_cli.ckpt.snapshot.protection import Protection, parse
from transom_cli.ckpt.tiers.objects import is_url
from transom_cli.errors import UsageError

LEAST_RATE = 1e6  # bytes a second


@dataclass(frozen=True)
class Options:
    directory: Path
    every: int  # steps between saves
    also: Mapping[Path, int]
    mirrors: Mapping[str, int]  # URLs of object storage
    upload_rate: float | None
    attempt: str  # the name under which checkpoints are written
    keep: Keep
    rule: PersistRule
    protection: Protection
    rate: float | None
    full_every: int | None  # None: every durable checkpoint is written in full
    steps: int = 0  # of the whole training, for `transom status`; 0: unknown


def parse_options(
    directory: str | os.PathLike[str] | None, every: int, keeping: Keep,
    also: Also | None = None, persist: int | str = 1, protect: str = "none", rate: float | None = None,
    upload_rate: float | None = None, full_every: int | None = None, steps: int | None = None,
) -> Options:  # fmt: skip
    """Check the arguments of a Checkpointer. Raises UsageError."""
    if not isinstance(every, Integral) or every < 1:
        raise UsageError(f"every={every!r} must be a number of steps, at least 1")
    if steps is not None and (not isinstance(steps, Integral) or steps < 1):
        raise UsageError(f"steps={steps!r} must be the number of steps of the whole training, at least 1, or None")
    rule, protection = PersistRule(persist, time.monotonic), parse(protect)
    for name, value in (("protect_rate", rate), ("upload_rate", upload_rate)):
        if value is not None and value < LEAST_RATE:
            raise UsageError(f"{name}={value!r} must be bytes a second, at least {LEAST_RATE:g}")
    if full_every is not None and (type(full_every) is not int or full_every < 2):
        raise UsageError(
            f"full_every={full_every!r} must be a number, at least 2, or None",
            "one of so many durable checkpoints is written in full, and of the others only what has changed",
            "full_every=10; None, the default, writes every checkpoint in full",
        )
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
        int(every),
        further,
        mirrors,
        upload_rate,
        attempt,
        keeping,
        rule,
        protection,
        rate,
        full_every,
        int(steps or 0),
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
