"""Reads all that a report tells from a run directory, of files that may be many no more than a report can show."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from transom_cli import __version__
from transom_cli.beats.spent import BadSpent, NodeSpent, decode
from transom_cli.core.goodput.curves import Loss
from transom_cli.files import json_lines
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.report.material import Examined, Found, Material
from transom_cli.report.nodes import FACTS
from transom_cli.supervise.handed import attempt_numbers
from transom_cli.supervise.journal import Folded
from transom_cli.supervise.ledger import WELL, read_book
from transom_cli.supervise.losses import read_losses
from transom_cli.ui.read import Reader

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

FILES = 4000  # of nodes' findings and examinations, the newest attempts first
TAIL = 64 << 10  # bytes of a node's findings
EXAMINATION = 16 << 20  # bytes of an examination's file


def gather(run: RunDir, *, patience: float = 0.0, now: float | None = None) -> Material:
    """patience: as in `ui.read.read_view`. now: as in `supervise.ledger.read_book`. Raises JournalError."""
    settings = _settings(run)
    job = settings.get("job") if isinstance(settings, Mapping) else None
    gpus = job.get("gpus_per_node") if isinstance(job, Mapping) else 0
    book = read_book(run, now, patience=patience, gpus=gpus if isinstance(gpus, int) else 0)
    view = Reader(run, patience).look(Folded(book.state, max((e.at for e in book.events), default=0.0), book.events))
    attempts = [run.attempt(*number) for number in sorted(attempt_numbers(run), reverse=True)]
    budget = _Budget(FILES)
    found: list[Found] = []
    examined: list[Examined] = []
    last: list[Loss] = []
    for attempt in attempts:
        if budget.spent:
            break
        found += _found(attempt, budget)
        examined += _examined(attempt, budget)
        last += _last(attempt)
    left = (f"Findings are those of the newest {FILES:,} files; those of earlier attempts were not read.",)
    return Material(
        book=book,
        view=replace(view, now=book.now),
        version=__version__,
        settings=settings,
        losses=tuple(loss for attempt in reversed(attempts) for loss in read_losses(attempt)),
        last=tuple(sorted(last, key=lambda one: tuple(map(int, one.attempt.split("."))))),
        found=tuple(found),
        examined=tuple(examined),
        left=left if budget.spent else (),
    )


class _Budget:
    """Files that may still be read."""

    def __init__(self, files: int) -> None:
        self._left = files

    @property
    def spent(self) -> bool:
        return self._left <= 0

    def of(self, paths: list[Path]) -> list[Path]:
        chosen = paths[: max(0, self._left)]
        self._left -= len(paths)
        return chosen


def _settings(run: RunDir) -> Mapping[str, Any] | str:
    try:
        told: dict[str, Any] = tomllib.loads(run.settings.read_text(encoding="utf-8", errors="surrogateescape"))
        return told
    except OSError as error:
        return f"run.toml cannot be read: {error.strerror}."
    except ValueError as error:
        return f"run.toml cannot be understood: {error}."


def _found(attempt: AttemptDir, budget: _Budget) -> list[Found]:
    told: dict[tuple[str, str, str, str], Found] = {}
    for path in budget.of(sorted(attempt.nodes.glob("*.jsonl"))):
        for record in json_lines(_tail(path)):
            wall, verdict, words = record.get("wall"), record.get("verdict"), record.get("words")
            if not isinstance(wall, (int, float)) or not isinstance(words, str) or verdict in WELL:
                continue
            one = Found(float(wall), attempt.name, path.stem, str(record.get("kind", "")), str(verdict), words)
            key = (one.node, one.kind, one.verdict, one.words)
            told[key] = replace(told[key], times=told[key].times + 1) if key in told else one
    return list(told.values())


def _tail(path: Path) -> bytes:
    """Without what stands before its last bytes: a line that is cut is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            return file.read()
    except OSError:
        return b""


def _examined(attempt: AttemptDir, budget: _Budget) -> Iterator[Examined]:
    for path in budget.of(sorted(attempt.health.glob("*.json"))):
        findings = _document(path).get("findings")
        for one in findings if isinstance(findings, list) else ():
            if isinstance(one, dict) and (one.get("verdict") != "pass" or one.get("check") == FACTS):
                words = (str(one.get(key, "")) for key in ("node", "check", "verdict", "evidence"))
                yield Examined(attempt.name, *words)


def _document(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_bytes()) if path.stat().st_size <= EXAMINATION else {}
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _last(attempt: AttemptDir) -> Iterator[Loss]:
    """The newest loss that an agent told: of the lowest rank of the newest launch that has one."""
    told = [(node, rank) for node in _spent(attempt) for rank in node.ranks if rank.loss is not None]
    if told:
        _, rank = min(told, key=lambda one: (-one[1].launch, one[1].rank))
        yield Loss(attempt.name, rank.launch, 0.0, rank.loss_step, rank.loss if rank.loss is not None else 0.0)


def _spent(attempt: AttemptDir) -> Iterator[NodeSpent]:
    """Of a few nodes: the lowest ranks are on the first ones of the launch, whose names tend to sort first."""
    for path in sorted(attempt.nodes.glob("*.spent"))[:4]:
        try:
            yield decode(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, BadSpent):
            continue
