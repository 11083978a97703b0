"""Diagnoses log files: which of them, read with which rules, and what comes of it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from transom_cli.diagnose.logs import errorfile, grammar
from transom_cli.diagnose.logs.cause import Incident, incidents
from transom_cli.diagnose.logs.collector import collected
from transom_cli.diagnose.logs.hit import Hit
from transom_cli.diagnose.logs.hits import hit_of, hits_of
from transom_cli.diagnose.logs.reading import Found
from transom_cli.diagnose.logs.rulebook import Rulebook
from transom_cli.diagnose.logs.survival import went_on

MOST = 200_000  # files of a folder
_LARGEST = 4 << 20  # bytes of an error file
_PROBE = 4096  # bytes that are looked at to tell a log from something else
_BINARY = (
    ".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", ".npy", ".npz", ".arrow", ".parquet", ".pkl", ".so",
)  # fmt: skip
_PACKED = (
    ".tar", ".tgz", ".zip", ".xz", ".zst", ".bz2", ".whl", ".png", ".jpg", ".pdf", ".mp4", ".db", ".sqlite", ".pyc",
)  # fmt: skip
_SOURCE = (
    ".py", ".pyi", ".ipynb", ".c", ".cc", ".cpp", ".cu", ".h", ".hpp", ".rs", ".go", ".js", ".sh", ".sbatch", ".slurm",
)  # fmt: skip
_SETTINGS = (".toml", ".yaml", ".yml", ".ini", ".cfg", ".conf", ".md", ".rst", ".html", ".css", ".xml", ".csv", ".tsv")
_NO_LOG = frozenset((*_BINARY, *_PACKED, *_SOURCE, *_SETTINGS, ".jsonl", ".beats", ".lock", ".pid"))
"""Not looked at in a folder, though when they are named: what says "ValueError" in a program is no failure of it."""


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
            hits += _error_file(path, book, name) if path.suffix == ".json" else hits_of(path, book, name)
        except (OSError, EOFError, zlib.error) as error:
            unread.append((name, getattr(error, "strerror", None) or str(error)))
        else:
            read[name] = path
    ranks = {rank for rank, _ in map(grammar.of_file, read) if rank is not None}
    ranks |= {hit.record.rank for hit in hits if hit.record.rank is not None}
    found = incidents(hits, lambda hit: went_on(hit, read[hit.file]), frozenset(ranks))
    return Diagnosed(found, tuple(read), tuple(unread))


def _error_file(path: Path, book: Rulebook, name: str) -> tuple[Hit, ...]:
    """What torchelastic has written of a rank's end; () for any other JSON."""
    if path.stat().st_size > _LARGEST:
        return ()
    told = errorfile.parse(path.read_text(encoding="utf-8", errors="replace"))
    if told is None:
        return ()
    line = told.message.encode().replace(b"\n", b" ")
    hits = collected(iter(filter(None, [hit_of(Found(line, 1, 0), book)])), name)
    return tuple(replace(hit, record=replace(hit.record, at=told.at)) for hit in hits)


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
            if one.suffix.lower() not in _NO_LOG and _is_text(one):
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
