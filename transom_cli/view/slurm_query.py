"""Ask Slurm about the job of a view, but not each time while Slurm does not respond.

`transom status` is often called in a loop, a process each time. When Slurm does not answer one of them, a note in the
user's state folder spares the others the same query for ten seconds. So does an answer about a job that waits, and one
about a job that runs for half a minute.
"""

import contextlib
import json
import os
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from transom_cli.core.codec import BadRecord, build, plain
from transom_cli.errors import TransomError
from transom_cli.files import make_private, publish_text, replace_text
from transom_cli.layout import RunDir
from transom_cli.slurm.port import Job, JobState, NoSuchJob, Slurm, SlurmUnknown
from transom_cli.view import slurm_reasons
from transom_cli.view.model import RunView

OUTAGE = 10.0  # seconds for which a failed query counts for other processes
KEPT = 10.0  # seconds for which an answer about a waiting job counts for other processes
KEPT_RUNNING = 30.0  # the same of a job that runs
SLURM_TIMEOUT = 3.0  # seconds
SAME_SILENCE = 60.0  # seconds between two failed queries after which they are not of one silence


class Outage:
    """The note about a Slurm that does not respond. It is no lock: processes that start together all ask.

    environ: Names the Slurm by SLURM_CONF. cluster: The cluster to ask, if there are several.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str], cluster: str = "") -> None:
        which = zlib.crc32(f"{environ.get('SLURM_CONF', '')}\0{cluster}".encode("utf-8", "surrogateescape"))
        self._note = folder / f"slurm-silent-{which:08x}"
        self._answers = folder / f"slurm-jobs-{which:08x}.json"

    def recent(self) -> tuple[str, float, float] | None:
        """Return the error of a recent query, its time, and that of the first; None if this process is to ask.

        The first process to find an old note renews it before it asks, so that the others wait for its result.
        """
        found = self._read()
        if found is None:
            return None
        age = time.time() - found[1]
        if 0 <= age < OUTAGE:
            return found
        if age >= SAME_SILENCE:
            self.clear()
            return None
        with contextlib.suppress(OSError):
            os.utime(self._note)
        return None

    def _read(self) -> tuple[str, float, float] | None:
        try:
            at = self._note.stat().st_mtime
            since, _, error = self._note.read_text(encoding="utf-8", errors="replace").partition(" ")
            return error, at, float(since)
        except (OSError, ValueError):
            return None

    def note(self, error: str) -> float:
        """Record a failed query, and return the time of the first. If it cannot be written, each process asks."""
        found, now = self._read(), time.time()
        since = found[2] if found is not None else now
        with contextlib.suppress(OSError):
            make_private(self._note.parent)
            replace_text(self._note, f"{since:.3f} {error}")
        return since

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            self._note.unlink(missing_ok=True)

    def kept(self, job_id: int, within: float) -> tuple[Job, float] | None:
        """Return an answer about a job that waits or runs, and when it was given; None if older than `within`."""
        answer = self._recent_answers().get(str(job_id), {})
        if answer.keys() - {"asked_at"} != {field.name for field in fields(Job)}:  # another version of transom wrote it
            return None
        if time.time() - answer["asked_at"] >= within:
            return None
        with contextlib.suppress(BadRecord):
            return build(Job, answer), answer["asked_at"]
        return None

    def keep(self, job: Job) -> None:
        """Keep an answer for other processes if the job waits or runs: then it rarely changes."""
        if job.completing or not (job.state is JobState.RUNNING or (job.state is JobState.PENDING and job.reason)):
            return
        answers = {**self._recent_answers(), str(job.job_id): {"asked_at": time.time(), **plain(job)}}
        with contextlib.suppress(OSError):
            self._answers.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            publish_text(self._answers, json.dumps(answers))

    def _recent_answers(self) -> dict[str, dict[str, Any]]:
        now = time.time()
        try:
            answers = json.loads(self._answers.read_text(encoding="utf-8"))
            kept = {JobState.PENDING.value: KEPT, JobState.RUNNING.value: KEPT_RUNNING}
            return {key: one for key, one in answers.items() if 0 <= now - one["asked_at"] < kept[one["state"]]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}


class _NoAnswer(NamedTuple):
    """at: when another process asked (Unix time); None: this one did. since: when the silence began, if it is one."""

    error: str
    at: float | None = None
    since: float | None = None


def with_slurm(view: RunView, connect: Callable[[RunDir, float], Slurm]) -> RunView:
    """Add Slurm's answer where the run's files do not say enough. connect: makes a client of the run's cluster."""
    if slurm_reasons.needs_operator_query(view):
        answer = _query(view, view.operator_job, connect)
        view = view if isinstance(answer, _NoAnswer) else slurm_reasons.with_operator_job(view, answer[0])
    if not slurm_reasons.needs_query(view):
        return view
    answer = _query(view, view.job_id, connect)
    if isinstance(answer, _NoAnswer):
        if answer.since is None and slurm_reasons.asks_in_passing(view):
            return view  # the operator knows better, also on a host without Slurm's commands
        return slurm_reasons.with_error(view, answer.error, answer.at, answer.since)
    view = slurm_reasons.with_answer(view, *answer)
    return _with_starvation(view, connect) if slurm_reasons.may_starve(view) else view


def _with_starvation(view: RunView, connect: Callable[[RunDir, float], Slurm]) -> RunView:
    """Say whether too few nodes are usable for the job, and which of them transom keeps away."""
    from transom_cli.health.history.files import history_dir, read_history
    from transom_cli.health.history.nodes import fold

    try:
        nodes = connect(RunDir(Path(view.path)), SLURM_TIMEOUT).nodes()
        active = fold(read_history(history_dir(os.environ), view.now), view.now).active
    except (TransomError, OSError):
        return view  # Slurm's own reason remains
    return slurm_reasons.with_starvation(view, nodes, {one.isolation.node: one.isolation.run for one in active})


def _query(view: RunView, job_id: int, connect: Callable[[RunDir, float], Slurm]) -> tuple[Job, float] | _NoAnswer:
    from transom_cli.health.history.files import history_dir

    outage = Outage(history_dir(os.environ).parent, os.environ, view.cluster)
    recent = outage.recent()
    if recent is not None:
        return _NoAnswer(*recent)
    # of a job that changes state, an answer of 30 s ago would be wrong
    kept = outage.kept(job_id, KEPT_RUNNING if slurm_reasons.asks_in_passing(view) else KEPT)
    if kept is not None:
        return kept
    answer: tuple[Job, float] | _NoAnswer
    try:
        slurm = connect(RunDir(Path(view.path)), SLURM_TIMEOUT)
        job = slurm.job(job_id)
        if job.state is JobState.PENDING and job.reason == "Priority":
            job = replace(job, ahead=slurm.count_ahead(job))
        if slurm_reasons.asks_in_passing(view) or job.state is JobState.PENDING:
            outage.keep(job)
        answer = job, view.now
    except NoSuchJob as error:
        answer = _NoAnswer(error.what)
    except TransomError as error:
        answer = _NoAnswer(error.why.partition("\n")[0].removeprefix("Slurm said: ") or error.what)
        if isinstance(error, SlurmUnknown):
            return answer._replace(since=outage.note(answer.error))
    outage.clear()
    return answer
