"""Diagnoses log files: which of them, read with which rules, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from transom_cli.diagnose.logs.cause import Incident, incidents
from transom_cli.diagnose.logs.hits import Hit, hits_of
from transom_cli.diagnose.logs.rulebook import Rulebook
from transom_cli.diagnose.logs.survival import went_on

MOST = 200_000  # files of a folder
_PROBE = 4096  # bytes that are looked at to tell a log from something else
_OTHER = (
    ".pt",
    ".pth",
    ".bin",
    ".safetensors",
    ".distcp",
    ".npy",
    ".npz",
    ".so",
    ".tar",
    ".zip",
    ".png",
    ".jpg",
    ".pdf",
)


@dataclass(frozen=True)
class Diagnosed:
    """incidents: the deciding one first. files: that were read. unread: those that could not be, and why."""

    incidents: tuple[Incident, ...]
    files: tuple[str, ...]
    unread: tuple[tuple[str, str], ...] = ()


def diagnose_logs(paths: Iterable[Path], book: Rulebook) -> Diagnosed:
    """Of files and folders, taken together as the logs of one job."""
    hits: list[Hit] = []
    read: dict[str, Path] = {}
    unread: list[tuple[str, str]] = []
    for path in logs_in(paths):
        name = str(path)
        try:
            hits += hits_of(path, book, name)
        except (OSError, EOFError) as error:
            unread.append((name, getattr(error, "strerror", None) or str(error)))
        else:
            read[name] = path
    found = incidents(hits, lambda hit: went_on(hit, read[hit.file]))
    return Diagnosed(found, tuple(read), tuple(unread))


def logs_in(paths: Iterable[Path]) -> Iterator[Path]:
    """Files as they are named; of folders all that are text, in order, no links followed out of them."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside = (one for one in sorted(path.rglob("*")) if one.is_file() and not one.is_symlink())
        for number, one in enumerate(inside):
            if number >= MOST:
                return
            if one.suffix not in _OTHER and _is_text(one):
                yield one


def _is_text(path: Path) -> bool:
    if path.suffix == ".gz":
        return True
    try:
        with path.open("rb") as file:
            head = file.read(_PROBE)
    except OSError:
        return True  # it is told as one that cannot be read
    odd = sum(byte < 9 or 13 < byte < 27 for byte in head)
    return odd * 10 <= len(head)  # a log may hold a run of NULs, of a node that went down
