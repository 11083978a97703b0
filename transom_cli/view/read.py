"""Reads a run directory into a `RunView`: journal, heartbeat tables and lease."""

import os
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transom_cli.ckpt.names import SEALED
from transom_cli.core.category import OWN_ERRORS
from transom_cli.core.operator.job import held_words
from transom_cli.core.operator.state import Phase, State
from transom_cli.core.progress import OwnCheckpoint
from transom_cli.diagnose.clue import NO_NUMBER, Trouble
from transom_cli.errors import printable
from transom_cli.files import read_json
from transom_cli.heartbeat.table import RankBeat
from transom_cli.layout import AttemptDir, RunDir, parse_attempt
from transom_cli.ownership import other_owner
from transom_cli.slurm.port import slurm_seconds
from transom_cli.supervise.attempt_files import (
    bad_loss_of,
    newest_checkpoint,
    read_bad_resume,
    read_logged,
    read_reports,
    saves_fail,
)
from transom_cli.supervise.handoff_record import Handoff, newest_handoff
from transom_cli.supervise.journal import Folded, Folding
from transom_cli.supervise.lease import STALE, highest_epoch, operator_alive, read_holder
from transom_cli.supervise.own_checkpoints import newest_own
from transom_cli.toml import read_toml
from transom_cli.view.model import FRESH, NodeView, Preflight, RunView, Standbys, build_view
from transom_cli.view.node_state import NodeSight, NodeViews, blind_nodes, seen_by_nodes
from transom_cli.view.outlook import next_steps, rank_operation, step_time
from transom_cli.view.read_memory import Memory, read_memory
from transom_cli.view.read_nodes import NodeReader
from transom_cli.view.text import span

LATE = 5.0  # seconds a node's table may lag behind the newest one and still count as current
MANY = 128  # nodes
MEMORY_EVERY = 10.0  # seconds between reading the memory of so many nodes
OWN_EVERY = 10.0  # seconds between two looks at the trainer's own checkpoints
_OF_LOSS = frozenset(trouble.value for trouble in Trouble)
_ROOM = 1 << 20  # bytes: with less, heartbeats and logs fail
MAX_JOURNALS = 1 << 20  # bytes of journals that are read for goodput: a tenth of a second
SILENT, FIRST_STEP = 10.0, 1800.0  # seconds; the defaults of `detect`
_LAUNCH = re.compile(r"\btransom(?:_cli)?\s+(?:attempt-launcher|launch)\b")

# --- settings ---


@dataclass(frozen=True)
class RunSettings:
    """What the screens need from run.toml. It is read without the settings model, whose import takes long."""

    checkpoints: Path
    steps: int | None = None  # length of the training
    limit: int | None = None  # time limit of an attempt in seconds
    warned: bool = True  # the ranks get a signal before the time limit
    node_silent: float = SILENT
    first_step: float = FIRST_STEP
    cluster: str = ""  # the cluster of the job, if there are several
    launcher: bool = True  # the batch script starts transom's launcher
    requirements: str = ""  # on nodes, besides their number
    gpus: int = 0  # per node; 0 if unknown
    preflight: bool = True  # nodes are checked before the ranks start
    probe: bool = True  # the preflight ends with a probe


def read_run_settings(run: RunDir) -> RunSettings:
    """Return defaults if run.toml cannot be read."""
    settings = read_toml(run.settings)
    job, detect = _section(settings, "job"), _section(settings, "detect")
    steps, directory = settings.get("steps"), _section(settings, "checkpoint").get("directory")
    gpus = job.get("gpus_per_node")
    return RunSettings(
        checkpoints=Path(directory) if isinstance(directory, str) and directory else run.checkpoints,
        steps=steps if isinstance(steps, int) else None,
        limit=_seconds(job.get("time")),
        warned=job.get("signal_before") != 0,
        preflight=_section(settings, "health").get("preflight") != "off",
        probe=_section(settings, "health").get("probe") is not False,
        node_silent=_number(detect.get("node_silent"), SILENT),
        first_step=_number(detect.get("first_step"), FIRST_STEP),
        cluster=str(job.get("cluster", "")),
        launcher=_has_launcher(run),
        requirements=", ".join(f"{name} `{job[name]}`" for name in ("reservation", "constraint") if job.get(name)),
        gpus=gpus if isinstance(gpus, int) else 0,
    )


def _has_launcher(run: RunDir) -> bool:
    """Whether the script is one of ours, or calls `transom launch` itself."""
    try:
        return _LAUNCH.search(run.script.read_text(errors="replace")) is not None
    except OSError:
        return True


def operator_job(run: RunDir) -> int:
    """Return the Slurm job last submitted to be the run's operator; 0 if none was."""
    try:
        return int(run.operator_job.read_text())
    except (OSError, ValueError):
        return 0


def _section(settings: dict[str, Any], name: str) -> dict[str, Any]:
    section = settings.get(name)
    return section if isinstance(section, dict) else {}


def _number(value: object, default: float) -> float:
    return float(value) if isinstance(value, (int, float)) else default


def _seconds(time: object) -> int | None:
    if not isinstance(time, str) or not time:
        return None
    try:
        return slurm_seconds(time)
    except ValueError:
        return None


# --- the view ---


def read_view(run: RunDir, patience: float = 0.0) -> RunView:
    """Read a run once.

    Args:
        patience: Seconds to watch the lease of an operator on another host, if its file alone does not tell.
    """
    return Reader(run, patience).look()


def missing_files(run: RunDir) -> tuple[str, ...]:
    """Return the names of the files that are gone, and without which no further job of the run can be submitted."""
    return tuple(path.name for path in run.needed if not path.exists())


def _standbys(attempt: AttemptDir) -> Standbys | None:
    said: dict[str, Any] = read_json(attempt.standbys)
    try:
        nodes = {str(node): int(count) for node, count in said["nodes"].items()}
        return Standbys(int(said["launch"]), int(said["ranks"]), nodes, printable(str(said["words"])))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def read_brief(run: RunDir, folded: Folded) -> RunView:
    """Read what `transom list` shows of a run that is not over, without the files of its nodes.

    The step is that of the journal, which is up to a minute old.
    """
    state, alive = folded.state, _operator_lives(run, 0.0)
    attempt = run.attempt(state.job.id, state.job.restarts)
    reports = _standing(read_reports(attempt)) if state.job.id else []
    checks = bool(state.job.id) and not state.launch.started and not state.phase.over
    preflight = _read_preflight(attempt, state, probe=True) if checks else None
    if preflight is not None and state.phase is Phase.PENDING:  # the operator asks Slurm less often
        state = state.in_phase(Phase.STARTING, state.since)
    behind = not alive or state.phase in (Phase.PENDING, Phase.STARTING)
    built = build_view(run.run_id, state, {}, time.time(), operator=alive)
    view = replace(
        built,
        step=built.step if built.steps_since_start else max(built.step, built.durable),
        path=str(run.path),
        nodes_at=_newest_table(attempt) if state.job.id and behind else None,
        saves_fail=saves_fail(run, state),
        reports=tuple(str(one.get("words", "")) for one in reports),
        submitted=folded.times.submitted,
        operator_job=0 if alive else operator_job(run),
        owner=other_owner(run),
        preflight=preflight,
        disk_full=not state.phase.over and _is_full(run.path),
        missing_files=missing_files(run),
    )
    if behind and view.nodes_at is not None and view.now - view.nodes_at < FRESH:
        return Reader(run).look(folded)  # the journal is behind the nodes
    held = None if alive else _launcher_hold(run, state)
    return held_view(view, held) if held is not None else view


def _standing(found: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the anomalies of the training that its launcher reports now."""
    standing = found.get("standing")
    return [one for one in standing if isinstance(one, dict)] if isinstance(standing, list) else []


def reports_of_loss(found: Mapping[str, object], *, but: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return what a run that is over leaves to be known: its loss was not finite, or far too high, to the end."""
    kinds = _OF_LOSS.difference(but)
    return tuple(str(one.get("words", "")) for one in _standing(found) if str(one.get("what")) in kinds)


def _with_bad_loss(run: RunDir, view: RunView, checkpoints: Path) -> RunView:
    """Add what a run that is over leaves to be known about its loss, and about a resume from its newest checkpoint."""
    bad = bad_loss_of(run)
    doubtful = read_bad_resume(bad, checkpoints)
    found = read_reports(run.attempt(view.job_id, view.restarts))
    reports = reports_of_loss(found)
    if doubtful is not None:  # it says the same, and more
        reports = (*reports_of_loss(found, but=NO_NUMBER), doubtful.words)
    return replace(view, reports=reports, bad_loss=bad, bad_resume=doubtful)


def _left(node: NodeView) -> NodeView:
    """A node whose ranks ended, in a planned leave or because the run is being stopped, is no suspect."""
    gone = node.state == "suspect" and node.alive < node.ranks
    return replace(node, state="waiting", note="its ranks have left") if gone else node


def _silent(node: NodeView, seconds: float) -> NodeView:
    """Return a node of a run without any heartbeats: it is not behind the newest table, and not known to be ok."""
    quiet = node.role == "ranks" and node.state in ("ok", "slow")
    return replace(node, state="silent", note=f"no heartbeat for {span(seconds)}") if quiet else node


def _root_line(run: RunDir, view: RunView) -> str:
    from transom_cli.view.logs import find_root

    found = find_root(run, view)
    return shlex.quote(found.place) if found is not None else ""


def _read_preflight(attempt: AttemptDir, state: State, *, probe: bool) -> Preflight | None:
    """Return how many nodes the launcher's preflight has checked; None if it has not begun, or is over."""
    count = read_json(attempt.preflight)
    checked, of = count.get("checked"), count.get("of")
    if not isinstance(checked, int) or not isinstance(of, int) or (attempt.health / "preflight.json").exists():
        return None
    return Preflight(state.job.running_since or state.since, checked, of, probes=probe and checked == of)


def _newest_table(attempt: AttemptDir) -> float | None:
    """Return when the newest heartbeat table of an attempt was written."""
    if (together := _mtime(attempt.path / "heartbeats")) is not None and time.time() - together < FRESH:
        return together  # the launcher's file of all tables
    try:
        with os.scandir(attempt.nodes) as entries:
            return max((one.stat().st_mtime for one in entries if one.name.endswith(".beats")), default=together)
    except OSError:
        return together


def with_goodput(run: RunDir, view: RunView) -> RunView:
    """Add goodput, unless nothing is known yet or the journals are too long to read for a status screen.

    Of a run that is over, also the last step that the report shows: the last tables may be of an attempt without any.
    """
    from transom_cli.supervise.record_reader import read_run_record  # `transom list` does without it
    from transom_cli.view.explain import newest_step
    from transom_cli.view.goodput import account_now, summary

    try:
        journals = [run.journal, *run.attempts.glob("*/*.jsonl")]
        if sum(path.stat().st_size for path in journals if path.exists()) > MAX_JOURNALS:
            return view
        book = read_run_record(run, view.now)
    except OSError:
        return view
    account = account_now(book, view)
    share = account.whole.goodput if account.steps_seen else None
    if view.over and not view.steps_since_start:
        view = replace(view, step=max(view.step, newest_step(book)))
    return replace(view, goodput=share, goodput_summary=summary(account))


def _is_full(folder: Path) -> bool:
    """Whether nothing can be written in a folder, for want of space or of inodes."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _ROOM or (found.f_files > 0 and found.f_favail == 0)


class Reader:
    """Reads a run repeatedly: only what is new in the journal, and tables within `budget` seconds per look."""

    def __init__(self, run: RunDir, patience: float = 0.0, budget: float = float("inf")) -> None:
        self._run, self._patience, self._budget = run, patience, budget
        self._journal, self._nodes = Folding(run.journal), NodeReader(budget)
        self._settings, self._views = read_run_settings(run), NodeViews()
        self._memory_at, self._memory_of, self._memory = float("-inf"), "", Memory()
        self._own_at = float("-inf")
        self._root_of, self._root_line = ("-", 0), ""
        self._own: OwnCheckpoint | None = None

    def look(self, journal: Folded | None = None) -> RunView:
        """Read the run now. journal: if the caller has just read it."""
        run, settings = self._run, self._settings
        folded = journal or self._journal.more()
        state = folded.state
        alive = _operator_lives(run, self._patience)
        sights, newest = self._nodes.read(run.attempt(state.job.id, state.job.restarts)) if state.job.id else ({}, None)
        if newest is not None and time.time() - newest < FRESH:
            state = seen_by_nodes(state, sights)
            folded = replace(folded, state=state)
        current = {node: s.table for node, s in sights.items() if s.table is not None and s.behind <= LATE}
        tables = current or {node: s.table for node, s in sights.items() if s.table is not None}
        view = build_view(run.run_id, state, tables, time.time(), operator=alive)
        if state.phase.over:  # of the tables, only the last step and loss still count
            sights, newest = {}, None
        view = replace(
            view,
            path=str(run.path),
            checkpoints=str(settings.checkpoints),
            steps=settings.steps,
            nodes_at=newest,
            saves_fail=saves_fail(run, state),
            cluster=settings.cluster,
            requirements=settings.requirements,
            owner=other_owner(run),
            disk_full=not view.over and _is_full(run.path),
        )
        logged = read_logged(run.attempt(state.job.id, state.job.restarts)) if state.job.id else {}
        view = _with_operator(run, _with_logged(view, logged))
        if not view.over:
            self._read_memory(state, view.now)
        view = _with_history(view, folded, sights, settings, logged.get("listens"), self._memory.step)
        if view.durable_age is not None and view.durable_age < LATE and not view.steps_since_start:
            view = replace(view, step=max(view.step, view.durable))  # heartbeats may lag behind a save
        if not alive and not view.over and (there := newest_checkpoint(settings.checkpoints)) > view.durable:
            view = replace(view, durable=there, durable_age=None)  # saved since the last operator looked
        view = replace(view, own_checkpoint=self._newest_own(view))
        if not view.over:
            view = self._with_nodes(self._with_memory(view, sights), state, sights)
            if settings.preflight and not state.launch.started and _runs(state):
                attempt = run.attempt(state.job.id, state.job.restarts)
                view = replace(view, preflight=_read_preflight(attempt, state, probe=settings.probe))
        elif state.job.id:
            view = _with_bad_loss(run, view, settings.checkpoints)
        if view.leaving is not None or state.phase is Phase.STOPPING:
            view = replace(view, node_views=tuple(_left(one) for one in view.node_views))
        if view.unheard is not None:
            view = replace(view, node_views=tuple(_silent(one, view.unheard) for one in view.node_views))
        categories = [one.category for one in view.incidents[:1]]
        own = state.phase is Phase.RECOVERING and not OWN_ERRORS.isdisjoint(categories)
        if own or state.phase is Phase.FAILED or view.failing or view.crash_loop is not None:
            view = replace(view, root_line=self._root(view))
        if state.phase is not Phase.DONE:
            view = replace(view, missing_files=missing_files(run))
        held = None if alive or view.over else _launcher_hold(run, state)
        return held_view(view, held) if held is not None else view

    def _root(self, view: RunView) -> str:
        """Read the logs once for each incident."""
        newest = (view.incidents[0].id, len(view.incidents[0].marks)) if view.incidents else ("", 0)
        if self._root_of != newest:
            self._root_of, self._root_line = newest, _root_line(self._run, view)
        return self._root_line

    def _newest_own(self, view: RunView) -> OwnCheckpoint | None:
        """Look only where the trainer has made steps, and its checkpoints on disk are not the Checkpointer's."""
        if view.step < 0 or (view.durable >= 0 and not (self._settings.checkpoints / SEALED).exists()):
            return None
        if time.monotonic() - self._own_at >= OWN_EVERY:
            self._own_at, self._own = time.monotonic(), newest_own(self._run, self._settings.checkpoints)
        return self._own

    def _read_memory(self, state: State, wall: float) -> None:
        """With a budget, the files of many nodes are read only every `MEMORY_EVERY` seconds."""
        now = time.monotonic()
        rare = self._budget < float("inf") and len(state.job.nodes) > MANY and self._memory_of == state.attempt
        if not rare or now - self._memory_at >= MEMORY_EVERY:
            self._memory = read_memory(self._run, state, wall)
            self._memory_at, self._memory_of = now, state.attempt

    def _with_memory(self, view: RunView, sights: Mapping[str, NodeSight]) -> RunView:
        last = _last_step(view, sights)
        view = self._memory.added_to(view, last[0] if last is not None else None)
        first = max(view.durable, view.memory) < 0 and not view.starts and not view.incidents
        busy = None if view.operations else rank_operation(_live_ranks(sights), first=first)
        return view if busy is None else replace(view, operations=(busy,))

    def _with_nodes(self, view: RunView, state: State, sights: Mapping[str, NodeSight]) -> RunView:
        """Add each node, and what the launcher of the current attempt reports."""
        attempt = self._run.attempt(state.job.id, state.job.restarts)
        found = read_reports(attempt) if state.job.id else {}
        phases, lines, reports = found.get("phases"), found.get("lines"), _standing(found)
        slow = {node: str(one.get("words", "")) for one in reversed(reports) for node in _culprits(one)}
        return replace(
            view,
            nccl=self._behind_in_nccl(state, sights) if view.phase in ("training", "starting") else (),
            standbys=_standbys(attempt) if state.job.id and not state.phase.over else None,
            node_views=self._views.of(state, sights, slow, self._settings.node_silent),
            reports=tuple(str(one.get("words", "")) for one in reports),
            step_breakdown=phases if isinstance(phases, dict) else None,
            step_breakdown_lines=tuple(str(line) for line in lines) if isinstance(lines, list) else (),
        )

    def _behind_in_nccl(self, state: State, sights: Mapping[str, NodeSight]) -> tuple[str, ...]:
        launches = {rank.launch for rank in _live_ranks(sights)}
        attempt = self._run.attempt(state.job.id, state.job.restarts)
        return self._nodes.nccl(attempt, launches.pop()) if launches else ()


def _runs(state: State) -> bool:
    return state.job.state == "RUNNING" or state.phase is Phase.STARTING


def _operator_lives(run: RunDir, patience: float) -> bool:
    """An operator on another host that has just renewed its lease is not watched any longer."""
    holder = read_holder(run)
    if holder is not None and patience and not holder.released and not holder.here():
        age = time.time() - (_mtime(run.lease) or 0.0)
        if 0.0 <= age < STALE and holder.epoch == highest_epoch(run):
            return True
    return operator_alive(run, patience=patience) is not None


def _mtime(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _with_operator(run: RunDir, view: RunView) -> RunView:
    """Add the last sign of life of an operator: its lease, or the last line of its journal."""
    holder = read_holder(run)
    signs = [at for at in (_mtime(run.lease), _mtime(run.journal) if holder else None) if at is not None]
    host, job = holder.host if holder else "", operator_job(run)
    return replace(view, operator_host=host, operator_at=max(signs, default=None), operator_job=job)


def _with_logged(view: RunView, line: Mapping[str, object]) -> RunView:
    """Add what the trainer's log shows."""
    epoch, lr = (float(one) if isinstance(one := line.get(name), float) else None for name in ("epoch", "lr"))
    framework, speed = (printable(str(line.get(name, ""))) for name in ("framework", "speed"))
    return replace(view, framework=framework, epoch=epoch, learning_rate=lr, speed=speed)


def _with_history(
    view: RunView,
    folded: Folded,
    sights: Mapping[str, NodeSight],
    settings: RunSettings,
    listens: object,
    memory: int,
) -> RunView:
    """Add times from the journal, the step time, and what comes next."""
    state, past = folded.state, folded.times
    last = _last_step(view, sights)
    runs = past.running is not None and state.job.state == "RUNNING"
    limit = past.running + settings.limit if runs and past.running is not None and settings.limit else None
    hung = past.launched + settings.first_step if past.launched is not None else None
    leaving = view.leaving
    if leaving is not None and leaving.why == "time_limit" and limit is not None:
        leaving = replace(leaving, until=limit)
    return replace(
        view,
        leaving=leaving,
        submitted=past.submitted,
        step_time=step_time(past.steps, last),
        blind=blind_nodes(state, sights, past.launched if settings.launcher else None, view.now),
        durable_age=max(0.0, view.now - past.durable) if past.durable is not None else None,
        next_steps=next_steps(
            state,
            None if state.restarting else limit,  # the attempt is over
            warned=settings.warned,
            hung_at=hung,
            operator=view.operator,
            launcher=settings.launcher,
            listens=listens if isinstance(listens, bool) else None,
            preflight=settings.preflight,
            memory=memory,
        ),
    )


def _live_ranks(sights: Mapping[str, NodeSight]) -> list[RankBeat]:
    """Return the live ranks of the newest launch."""
    ranks = [r for sight in sights.values() if sight.table is not None for r in sight.table.ranks]
    launch = max((r.launch for r in ranks), default=0)
    return [r for r in ranks if r.launch == launch and r.proc not in "XZ"]


def _last_step(view: RunView, sights: Mapping[str, NodeSight]) -> tuple[float, int] | None:
    """Return the newest step and when it finished, by the file system's clock."""
    moved = [s.behind + r.age for s in sights.values() if s.table is not None for r in s.table.ranks if r.count]
    return (view.nodes_at - min(moved), view.step) if moved and view.nodes_at is not None else None


def _culprits(report: Mapping[str, object]) -> list[str]:
    """Return the nodes that a report of slowness names."""
    clue = report.get("clue")
    culprits = clue.get("culprits") if isinstance(clue, dict) else None
    named = [c.get("node") for c in culprits if isinstance(c, dict)] if isinstance(culprits, list) else []
    return [node for node in named if isinstance(node, str) and node]


def _launcher_hold(run: RunDir, state: State) -> Handoff | None:
    """Return a hold by the launcher that no operator has recorded yet."""
    handed = newest_handoff(run)
    if handed is None or handed.how != "held" or parse_attempt(handed.attempt)[0] in state.past_jobs:
        return None
    return handed if parse_attempt(handed.attempt) >= (state.job.id, state.job.restarts) else None


def held_view(view: RunView, handed: Handoff) -> RunView:
    """Show a hold by the launcher. Slurm was not asked, so its state is left out."""
    return replace(
        view,
        job_id=handed.job_id,
        restarts=handed.restarts,
        slurm_state="",
        slurm_reason="",
        phase=Phase.HELD.value,
        since=handed.wall,
        verdict=held_words(handed.why),
        next_steps=(),
    )
