"""Reads a run's whole history: everything that a report shows, and time series for the live screen."""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transom_cli import __version__
from transom_cli.core.goodput.account import Loss, Point, goodput_series, step_times
from transom_cli.errors import TransomError
from transom_cli.files import json_lines, tail
from transom_cli.heartbeat.step_breakdown import BadStepBreakdown, NodeSteps, decode
from transom_cli.layout import RUN_ID, AttemptDir, RunDir
from transom_cli.ownership import other_owner
from transom_cli.supervise.attempt_files import read_losses
from transom_cli.supervise.handoff_record import attempt_numbers
from transom_cli.supervise.journal import Folded, fold
from transom_cli.supervise.record_reader import WELL, read_run_record
from transom_cli.toml import tomllib
from transom_cli.view.model import RunView
from transom_cli.view.read import Reader, read_brief, with_goodput
from transom_cli.view.report.model import FACTS, AgentFinding, CheckFinding, ReportData

FILES = 4000  # findings and health runs to read, the newest attempts first
TAIL = 64 << 10  # bytes of a node's findings
MAX_HEALTH_RUN = 16 << 20  # bytes of a health run's file
POINTS = 240  # of the goodput series
EARLIER = 5  # runs of the same name that a report compares

# --- a report ---


def read_report(run: RunDir, *, patience: float = 0.0, now: float | None = None) -> ReportData:
    """Read everything that a report shows.

    Args:
        patience: As in `view.read.read_view`.
        now: As in `supervise.ledger.read_run_record`.

    Raises:
        JournalError: The journal cannot be read.
    """
    settings = _settings(run)
    job = settings.get("job") if isinstance(settings, Mapping) else None
    gpus = job.get("gpus_per_node") if isinstance(job, Mapping) else 0
    book = read_run_record(run, now, patience=patience, gpus=gpus if isinstance(gpus, int) else 0)
    view = Reader(run, patience).look(Folded(book.state, 0.0, book.times))
    attempts = [run.attempt(*number) for number in sorted(attempt_numbers(run), reverse=True)]
    budget = _Budget(FILES)
    found: list[AgentFinding] = []
    checked: list[CheckFinding] = []
    last: list[Loss] = []
    for attempt in attempts:
        if budget.spent:
            break
        found += _agent_findings(attempt, budget)
        checked += _check_findings(attempt, budget)
        last += _last_loss(attempt)
    limit = f"Findings come from the newest {FILES:,} files; those of earlier attempts were not read."
    return ReportData(
        book=book,
        view=replace(view, now=book.now),
        version=__version__,
        settings=settings,
        losses=tuple(loss for attempt in reversed(attempts) for loss in read_losses(attempt)),
        last=tuple(sorted(last, key=lambda one: tuple(map(int, one.attempt.split("."))))),
        found=tuple(found),
        checked=tuple(checked),
        limits=(limit,) if budget.spent else (),
        earlier=tuple(_earlier_runs(run)),
    )


def _earlier_runs(run: RunDir) -> Iterator[RunView]:
    """Yield the runs of the same name that were submitted before, newest first, with goodput."""
    this = RUN_ID.fullmatch(run.run_id)
    found = ((RUN_ID.fullmatch(path.name), path) for path in run.path.parent.glob(f"{this['name']}-*")) if this else ()
    before = [(m["stamp"], path) for m, path in found if this and m and m["name"] == this["name"]]
    for _, path in sorted((one for one in before if this and one[0] < this["stamp"]), reverse=True)[:EARLIER]:
        earlier = RunDir(path)
        with contextlib.suppress(OSError, TransomError):
            if not other_owner(earlier):
                yield with_goodput(earlier, read_brief(earlier, fold(earlier.journal)))


class _Budget:
    """The number of files that may still be read."""

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
        settings: dict[str, Any] = tomllib.loads(run.settings.read_text(encoding="utf-8", errors="surrogateescape"))
        return settings
    except OSError as error:
        return f"Cannot read run.toml: {error.strerror}."
    except ValueError as error:
        return f"Cannot parse run.toml: {error}."


def _agent_findings(attempt: AttemptDir, budget: _Budget) -> list[AgentFinding]:
    found: dict[tuple[str, str, str, str], AgentFinding] = {}
    for path in budget.of(sorted(attempt.nodes.glob("*.jsonl"))):
        data = b""
        with contextlib.suppress(OSError):
            data = tail(path, TAIL)
        for record in json_lines(data):
            wall, verdict, message = record.get("wall"), record.get("verdict"), record.get("words")
            if not isinstance(wall, (int, float)) or not isinstance(message, str) or verdict in WELL:
                continue
            kind = str(record.get("kind", ""))
            one = AgentFinding(float(wall), attempt.name, path.stem, kind, str(verdict), message)
            key = (one.node, one.kind, one.verdict, one.message)
            found[key] = replace(found[key], times=found[key].times + 1) if key in found else one
    return list(found.values())


def _check_findings(attempt: AttemptDir, budget: _Budget) -> Iterator[CheckFinding]:
    for path in budget.of(sorted(attempt.health.glob("*.json"))):
        findings = _document(path).get("findings")
        for one in findings if isinstance(findings, list) else ():
            if isinstance(one, dict) and (one.get("verdict") != "pass" or one.get("check") == FACTS):
                values = (str(one.get(key, "")) for key in ("node", "check", "verdict", "evidence"))
                yield CheckFinding(attempt.name, *values)


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes()) if path.stat().st_size <= MAX_HEALTH_RUN else {}
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _last_loss(attempt: AttemptDir) -> Iterator[Loss]:
    """Yield the newest loss that an agent recorded: of the lowest rank of the newest launch that has one."""
    ranks = [rank for node in _step_breakdowns(attempt) for rank in node.ranks if rank.loss is not None]
    if ranks:
        rank = min(ranks, key=lambda one: (-one.launch, one.rank))
        yield Loss(attempt.name, rank.launch, 0.0, rank.loss_step, rank.loss if rank.loss is not None else 0.0)


def _step_breakdowns(attempt: AttemptDir) -> Iterator[NodeSteps]:
    """Read a few nodes: the lowest ranks are on the first nodes of a launch, whose names usually sort first."""
    for path in sorted(attempt.nodes.glob("*.spent"))[:4]:
        try:
            yield decode(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, BadStepBreakdown):
            continue


# --- time series ---


@dataclass(frozen=True)
class TimeSeries:
    """Series up to now. loss, step_time (seconds): about one point per minute. goodput: percent, 0 to 100."""

    loss: tuple[Point, ...] = ()
    step_time: tuple[Point, ...] = ()
    goodput: tuple[Point, ...] = ()


def read_time_series(run: RunDir, now: float | None = None) -> TimeSeries:
    """Read the series from the journals and the launchers' files; too slow for every look.

    Raises:
        OSError, JournalError: The run cannot be read.
    """
    book = read_run_record(run, now)
    attempts = [run.attempt(*number) for number in sorted(attempt_numbers(run))]
    losses = [(one.at, one.loss) for attempt in attempts for one in read_losses(attempt) if math.isfinite(one.loss)]
    launches = [launch for attempt in book.history.attempts for launch in attempt.launches]
    shares = goodput_series(book.account.spans, POINTS) if book.account.steps_seen else []
    return TimeSeries(
        tuple(sorted(losses)),
        tuple(sorted(point for launch in launches for point in step_times(launch))),
        tuple((at, 100 * share) for at, share in shares),
    )
