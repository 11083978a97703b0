"""The Slurm adapter on pyslurm: a call costs a fraction of starting a command (docs/slurm.md).

A call that pyslurm lacks, or during which its process dies, is made with Slurm's commands instead; all of these calls
are safe to repeat. `detours` records which calls went that way, and why. The same contract suite tests this adapter.

pyslurm's version names the Slurm release that it was built for (25.11.2: Slurm 25.11). It is linked with that release's
library, which can talk to controllers of the same release and of a few others.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from transom_cli.errors import TransomError
from transom_cli.plural import several
from transom_cli.slurm import cli, parse
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.port import BackendTrial, Job, Node, NoSuchJob, SlurmUnknown, Start, Submission
from transom_cli.slurm.pyslurm.process import Worker, WorkerHung, WorkerLost
from transom_cli.slurm.runner import Runner, classify
from transom_cli.start import own

_COMPATIBLE = {("25.11", "26.05")}  # (pyslurm's release, the cluster's): tested with the contract suite (docs/slurm.md)


def why_unfit(pyslurm: str, slurm: str) -> str:
    """Return why this pyslurm does not suit this Slurm, or "". Both as they name themselves ("25.11.2", "26.05.5")."""
    ours, theirs = _release(pyslurm), _release(slurm)
    if ours and theirs and (ours == theirs or (ours, theirs) in _COMPATIBLE):
        return ""
    return f"pyslurm {pyslurm} was built for another release of Slurm than the cluster's {slurm}"


def _release(version: str) -> str:
    found = re.match(r"(\d+)\.(\d+)", version)
    return f"{int(found[1])}.{int(found[2]):02}" if found else ""


T = TypeVar("T")
log = logging.getLogger("transom.pyslurm")

_WORKER = Path(__file__).with_name("worker.py")
_START = 10.0  # seconds to start and import pyslurm, which needs a fraction of one and no controller
_WITHOUT = 'use the commands: slurm.backend = "cli"'
_MAX_LOST = 3  # consecutive losses of the worker; then only the commands are used

SUBMIT = (
    "sbatch also reads #SBATCH lines, SBATCH_* variables and the site's cli_filter, and sets what srun reads in the job"
)
HISTORY = "pyslurm reports only the last start of a requeued job"
NODE_COUNT = "pyslurm cannot change how many nodes a job waits for"
MAX_JOBS = 300  # beyond that squeue is cheaper: the controller selects the user's own jobs for it
TOO_MANY_JOBS = f"pyslurm loads the jobs of all users, and there were more than {MAX_JOBS}"
NOTHING = "pyslurm treats an empty text as no change"
ALWAYS = {"submit": SUBMIT, "history": HISTORY}  # calls that never use pyslurm, and why


class PySlurm:
    """The `Slurm` protocol on pyslurm. Starts its worker process at the first call.

    Args:
        python: a Python that has pyslurm.
        runner: gives the deadline, and how Slurm's commands are called.
        any_release: use pyslurm even if it was built for another Slurm release.
    """

    def __init__(self, python: str, runner: Runner | None = None, *, any_release: bool = False) -> None:
        self._runner = runner or Runner()
        self._cli = CliSlurm(self._runner)
        argv = [*self._runner.prefix, *own(str(_WORKER), python=(python,))]
        self._worker = Worker(argv, self._runner.environment({"LC_ALL": "C.UTF-8"}))
        self._fits = any_release
        self._begun = False  # the worker has answered once
        self._lost = 0
        self._all_jobs = 0  # jobs of all users in the cluster
        self.given_up = ""  # why pyslurm is no longer used
        self.detours: dict[str, str] = {}  # by call: why the last one used the commands

    def close(self) -> None:
        self._worker.end()

    def about(self) -> tuple[str, str, str]:
        """Return the versions of pyslurm, its Python and the cluster. Raises SlurmUnknown if pyslurm does not work."""
        pyslurm, python = self.versions()
        try:
            cluster = _value(self._ask("cluster", {}), "cluster")
        except WorkerLost as error:
            raise SlurmUnknown("pyslurm does not work here", str(error), _WITHOUT) from error
        return pyslurm, python, str(cluster["release"])

    def versions(self) -> tuple[str, str]:
        """Return the versions of pyslurm and its Python, without a call to the cluster. Raises SlurmUnknown."""
        try:
            hello = _value(self._hello(), "hello")
        except WorkerLost as error:
            raise SlurmUnknown("pyslurm does not work here", str(error), _WITHOUT) from error
        return str(hello["pyslurm"]), str(hello["python"])

    def submit(self, submission: Submission) -> int:
        return self._cli.submit(submission)

    def jobs(self) -> list[Job]:
        if self._all_jobs > MAX_JOBS:
            return self._detour("jobs", TOO_MANY_JOBS, self._cli.jobs)

        def read(found: Any) -> list[Job]:
            self._all_jobs = int(found["of"])
            return [_job(row, "pyslurm Jobs.load") for row in found["mine"]]

        return self._either("jobs", {}, read, self._cli.jobs)

    def job(self, job_id: int) -> Job:
        return self._either("job", {"job_id": job_id}, _one_job, lambda: self._cli.job(job_id))

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        if names:
            cli.hosts(names)
        return self._either("nodes", {"names": list(names)}, _nodes, lambda: self._cli.nodes(names))

    def requeue(self, job_id: int) -> None:
        with cli.unless_done(cli.ALREADY_PENDING):
            self._order("requeue", {"job_id": job_id, "hold": False}, lambda: self._cli.requeue(job_id))

    def requeue_hold(self, job_id: int) -> None:
        with cli.unless_done(cli.ALREADY_PENDING):
            self._order("requeue", {"job_id": job_id, "hold": True}, lambda: self._cli.requeue_hold(job_id))

    def shrink(self, job_id: int, nodes: Sequence[str]) -> None:
        cli.hosts(nodes)
        given = {"job_id": job_id, "required_nodes": list(nodes)}
        self._order("update", given, lambda: self._cli.shrink(job_id, nodes))

    def update_pending(
        self, job_id: int, *, exclude: Sequence[str], num_nodes: int | None = None, num_tasks: int | None = None
    ) -> None:
        def instead() -> None:
            self._cli.update_pending(job_id, exclude=exclude, num_nodes=num_nodes, num_tasks=num_tasks)

        if not exclude or num_nodes is not None or num_tasks is not None:
            return self._detour("update_pending", NODE_COUNT if exclude else NOTHING, instead)
        cli.hosts(exclude)
        return self._order("update", {"job_id": job_id, "excluded_nodes": list(exclude)}, instead)

    def count_ahead(self, job: Job) -> int:
        return self._cli.count_ahead(job)

    def keep_nodes(self, job_id: int, nodes: Sequence[str], comment: str) -> int:
        return self._cli.keep_nodes(job_id, nodes, comment)

    def release(self, job_id: int) -> None:
        with cli.unless_done(cli.RELEASED_UNSTARTABLE):
            self._order("release", {"job_id": job_id}, lambda: self._cli.release(job_id))

    def start_now(self, job_id: int) -> None:
        with cli.unless_done(cli.ALREADY_STARTED):
            self._order("update", {"job_id": job_id, "begin_time": "now"}, lambda: self._cli.start_now(job_id))

    def set_comment(self, job_id: int, comment: str) -> None:
        def instead() -> None:
            self._cli.set_comment(job_id, comment)

        if not comment or "\0" in comment:
            return self._detour("set_comment", NOTHING, instead)
        return self._order("update", {"job_id": job_id, "comment": comment}, instead)

    def cancel(self, job_id: int) -> None:
        with contextlib.suppress(NoSuchJob), cli.unless_done(cli.ALREADY_ENDED):
            self._order("cancel", {"job_id": job_id}, lambda: self._cli.cancel(job_id))

    def drain(self, node: str, reason: str) -> None:
        if not self._node(node).drain:
            given = {"name": node, "state": "DRAIN", "reason": reason}
            self._order("update_node", given, lambda: self._cli.drain(node, reason))

    def undrain(self, node: str, *, reason: str) -> None:
        seen = self._node(node)
        if cli.may_undrain(seen, reason):
            given = {"name": node, "state": cli.state_without_drain(seen).upper()}
            self._order("update_node", given, lambda: self._cli.undrain(node, reason=reason))

    def history(self, *job_ids: int) -> list[Start]:
        return self._cli.history(*job_ids)

    def _node(self, name: str) -> Node:
        return self.nodes((name,))[0]

    def _order(self, call: str, given: Mapping[str, Any], instead: Callable[[], None]) -> None:
        self._either(call, given, lambda _: None, instead)

    def _either(self, call: str, given: Mapping[str, Any], read: Callable[[Any], T], instead: Callable[[], T]) -> T:
        """Call pyslurm, or `instead` if pyslurm cannot. An error from Slurm itself is raised, without a second call."""
        if self.given_up:
            return instead()
        try:
            if not self._begun:
                self._hello()
            if not self._fits:
                self._check_release()
            answer = self._ask(call, given)
        except WorkerLost as error:
            self._lost += 1
            if isinstance(error, WorkerHung) and not self._begun:
                self._give_up(f"{error}, at its start")
            elif self._lost >= _MAX_LOST:
                self._give_up(f"{error} ({self._lost} times in a row)")
            return self._detour(call, str(error), instead)
        self._lost = 0
        if self.given_up:
            return instead()
        if "lacks" in answer:
            return self._detour(call, parse.clean(str(answer["lacks"])), instead)
        return read(_value(answer, call))

    def _check_release(self) -> None:
        """Before the first call: the data structures of another release cannot be trusted, and may not even crash."""
        here, there = self._hello(), self._ask("cluster", {})
        if "lacks" in there:
            return self._give_up(parse.clean(str(there["lacks"])))
        why = why_unfit(str(_value(here, "hello")["pyslurm"]), str(_value(there, "cluster")["release"]))
        if why:
            self._give_up(why)
        self._fits = not why

    def _hello(self) -> dict[str, Any]:
        answer = self._worker.ask("hello", {}, min(_START, self._runner.timeout))
        self._begun = True
        return answer

    def _ask(self, call: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return self._worker.ask(call, given, self._runner.timeout)

    def _give_up(self, why: str) -> None:
        self.given_up = why
        self._worker.end()
        log.warning("using Slurm's commands from now on: %s", why)

    def _detour(self, call: str, why: str, instead: Callable[[], T]) -> T:
        if self.detours.get(call) != why:
            log.info("%s with Slurm's commands: %s", call, why)
        self.detours[call] = why
        return instead()


def _value(answer: Mapping[str, Any], call: str) -> Any:
    """Return the value, or raise the error for Slurm's message, which is the same as in its commands."""
    if "error" in answer:
        raise classify([f"pyslurm {call}"], 1, "", str(answer["error"]))
    if "lacks" in answer:
        raise SlurmUnknown(f"pyslurm cannot answer `{call}`", parse.clean(str(answer["lacks"])), _WITHOUT)
    return answer["value"]


def _job(row: Mapping[str, Any], reading: str) -> Job:
    try:
        code, sent = (int(part) for part in row["Exit"])
        raw = {key: str(value) for key, value in row.items()}
        return parse.make_job(raw, (code, sent), parse.parse_nodes(raw.get("Excluded", ""), reading), reading)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise parse.unexpected_output(str(row), reading) from error


def _one_job(row: Any) -> Job:
    job = _job(row, "pyslurm Job.load")
    start = parse.expected_start(job, str(row["Start"]))
    return replace(job, cpus_per_task=int(row["CpusPerTask"]), output=str(row.get("Output", "")), start=start)


def _nodes(rows: Any) -> list[Node]:
    try:
        return [parse.make_node(row, row["Reason"], row["ReasonUser"], row.get("ReasonAt", "")) for row in rows]
    except (KeyError, TypeError, AttributeError) as error:
        raise parse.unexpected_output(str(rows), "pyslurm Node.load") from error


def try_out(client: PySlurm) -> BackendTrial:
    """Try pyslurm once on this host, for `transom doctor`."""
    try:
        pyslurm, python, slurm = client.about()
        jobs = sum(not job.state.ended for job in client.jobs())
    except TransomError as error:
        return BackendTrial(why_not="; ".join(error.why.splitlines()) or error.what)
    if client.given_up:
        return BackendTrial(why_not=client.given_up)
    works = f"{pyslurm} on Python {python}, with Slurm {slurm}: {several(jobs, 'job')} of yours"
    return BackendTrial(works, detours={**ALWAYS, **client.detours})
