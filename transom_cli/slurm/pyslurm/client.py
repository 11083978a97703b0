"""The `Slurm` protocol on pyslurm: a call costs a fraction of what starting a command does (docs/slurm.md).

Every call that pyslurm lacks, and every one whose worker dies over it, is done by the command line instead; all of
them may be done twice. What went that way, and why, is kept in `detours`. Held to the same contract suite as the rest.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from transom_cli.slurm import cli, parse
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.port import Job, Node, NoSuchJob, SlurmUnknown, Start, Submission
from transom_cli.slurm.pyslurm.match import why_unfit
from transom_cli.slurm.pyslurm.process import Worker, WorkerHung, WorkerLost
from transom_cli.slurm.runner import Runner, classify

T = TypeVar("T")
log = logging.getLogger("transom.pyslurm")

_WORKER = Path(__file__).with_name("worker.py")
_START = 10.0  # seconds to start and import in, at most: it takes a fraction of one, and no controller is asked for it
_LOST_AT_MOST = 3  # times in a row; then the command line is better company

SUBMIT = (
    "sbatch also reads #SBATCH lines, SBATCH_* variables and the site's cli_filter, and sets what srun reads in the job"
)
HISTORY = "of a requeued job pyslurm tells the last start alone"
ONE_STEP = "one step of a job is signalled by its name"
NODE_COUNT = "pyslurm cannot change how many nodes a job waits for"
CROWD = 300  # jobs; beyond it squeue, for which the controller picks out a user's own, is the cheaper one
CROWDED = f"pyslurm loads the jobs of all users, which were more than {CROWD}"
NOTHING = "pyslurm takes an empty text for no change"
ALWAYS = {"submit": SUBMIT, "history": HISTORY}  # by call, why it is never asked for


class PySlurm:
    """``python``: one that has pyslurm. ``any_release``: use it also where it was made for another Slurm.

    Starts nothing until it is asked something. `runner` gives the deadline, and how the command line is called.
    """

    def __init__(self, python: str, runner: Runner | None = None, *, any_release: bool = False) -> None:
        self._runner = runner or Runner()
        self._cli = CliSlurm(self._runner)
        argv = [*self._runner.prefix, python, str(_WORKER)]
        self._worker = Worker(argv, self._runner.environment({"LC_ALL": "C.UTF-8"}))
        self._fits = any_release
        self._begun = False  # it has answered once
        self._lost = 0
        self._crowd = 0  # jobs in the cluster, of all users
        self.given_up = ""  # why pyslurm is not asked any more
        self.detours: dict[str, str] = {}  # by call, why its last one went by the command line

    def close(self) -> None:
        self._worker.end()

    def about(self) -> tuple[str, str, str]:
        """Versions of pyslurm, of its Python and of the cluster, asked now. SlurmUnknown where it does not work."""
        pyslurm, python = self.versions()
        try:
            cluster = _value(self._ask("cluster", {}), "cluster")
        except WorkerLost as error:
            raise SlurmUnknown("pyslurm does not work here", str(error)) from error
        return pyslurm, python, str(cluster["release"])

    def versions(self) -> tuple[str, str]:
        """Of pyslurm and of its Python, without a word to the cluster. SlurmUnknown where it cannot be imported."""
        try:
            hello = _value(self._hello(), "hello")
        except WorkerLost as error:
            raise SlurmUnknown("pyslurm does not work here", str(error)) from error
        return str(hello["pyslurm"]), str(hello["python"])

    def submit(self, submission: Submission) -> int:
        return self._cli.submit(submission)

    def jobs(self) -> list[Job]:
        if self._crowd > CROWD:
            return self._detour("jobs", CROWDED, self._cli.jobs)

        def read(found: Any) -> list[Job]:
            self._crowd = int(found["of"])
            return [_job(row, "pyslurm Jobs.load") for row in found["mine"]]

        return self._either("jobs", {}, read, self._cli.jobs)

    def job(self, job_id: int) -> Job:
        return self._either("job", {"job_id": job_id}, _one_job, lambda: self._cli.job(job_id))

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        if names:
            cli.hosts(names)
        return self._either("nodes", {"names": list(names)}, _nodes, lambda: self._cli.nodes(names))

    def requeue(self, job_id: int) -> None:
        with cli.unless_done(cli.PENDING_ALREADY):
            self._order("requeue", {"job_id": job_id, "hold": False}, lambda: self._cli.requeue(job_id))

    def requeue_hold(self, job_id: int) -> None:
        with cli.unless_done(cli.PENDING_ALREADY):
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

    def release(self, job_id: int) -> None:
        with cli.unless_done(cli.RELEASED_IN_VAIN):
            self._order("release", {"job_id": job_id}, lambda: self._cli.release(job_id))

    def start_now(self, job_id: int) -> None:
        with cli.unless_done(cli.STARTED_ALREADY):
            self._order("update", {"job_id": job_id, "begin_time": "now"}, lambda: self._cli.start_now(job_id))

    def set_comment(self, job_id: int, comment: str) -> None:
        def instead() -> None:
            self._cli.set_comment(job_id, comment)

        if not comment or "\0" in comment:
            return self._detour("set_comment", NOTHING, instead)
        return self._order("update", {"job_id": job_id, "comment": comment}, instead)

    def cancel(self, job_id: int) -> None:
        with contextlib.suppress(NoSuchJob), cli.unless_done(cli.OVER_ALREADY):
            self._order("cancel", {"job_id": job_id}, lambda: self._cli.cancel(job_id))

    def signal(self, job_id: int, name: str, *, step: str = "", batch: bool = False) -> None:
        def instead() -> None:
            self._cli.signal(job_id, name, step=step, batch=batch)

        if step:
            return self._detour("signal", ONE_STEP, instead)
        return self._order("signal", {"job_id": job_id, "name": name, "batch": batch}, instead)

    def drain(self, node: str, reason: str) -> None:
        if not self._node(node).drain:
            given = {"name": node, "state": "DRAIN", "reason": reason}
            self._order("update_node", given, lambda: self._cli.drain(node, reason))

    def undrain(self, node: str, *, reason: str) -> None:
        if cli.may_undrain(self._node(node), reason):
            given = {"name": node, "state": "UNDRAIN"}
            self._order("update_node", given, lambda: self._cli.undrain(node, reason=reason))

    def history(self, *job_ids: int) -> list[Start]:
        return self._cli.history(*job_ids)

    def _node(self, name: str) -> Node:
        return self.nodes((name,))[0]

    def _order(self, call: str, given: Mapping[str, Any], instead: Callable[[], None]) -> None:
        self._either(call, given, lambda _: None, instead)

    def _either(self, call: str, given: Mapping[str, Any], read: Callable[[Any], T], instead: Callable[[], T]) -> T:
        """By pyslurm; where it cannot, by `instead`. What Slurm itself says is raised, not asked again elsewhere."""
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
                self._give_up(f"{error}, at its very start")
            elif self._lost >= _LOST_AT_MOST:
                self._give_up(f"{error} ({self._lost} times in a row)")
            return self._detour(call, str(error), instead)
        self._lost = 0
        if self.given_up:
            return instead()
        if "lacks" in answer:
            return self._detour(call, parse.clean(str(answer["lacks"])), instead)
        return read(_value(answer, call))

    def _check_release(self) -> None:
        """Before the first call: another release's structures are not to be trusted, not even to crash."""
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
        log.warning("Slurm's commands are used from here on: %s", why)

    def _detour(self, call: str, why: str, instead: Callable[[], T]) -> T:
        if self.detours.get(call) != why:
            log.info("%s by the command line: %s", call, why)
        self.detours[call] = why
        return instead()


def _value(answer: Mapping[str, Any], call: str) -> Any:
    """The value, or the error by Slurm's words for it, which are the same as its commands'."""
    if "error" in answer:
        raise classify([f"pyslurm {call}"], 1, "", str(answer["error"]))
    if "lacks" in answer:
        raise SlurmUnknown(f"pyslurm cannot tell its {call}", parse.clean(str(answer["lacks"])))
    return answer["value"]


def _job(row: Mapping[str, Any], reading: str) -> Job:
    try:
        code, sent = (int(part) for part in row["Exit"])
        raw = {key: str(value) for key, value in row.items()}
        return parse.make_job(raw, (code, sent), parse.parse_nodes(raw.get("Excluded", ""), reading), reading)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise parse.nonsense(str(row), reading) from error


def _one_job(row: Any) -> Job:
    job = _job(row, "pyslurm Job.load")
    start = parse.expected_start(job, str(row["Start"]))
    return replace(job, cpus_per_task=int(row["CpusPerTask"]), output=str(row.get("Output", "")), start=start)


def _nodes(rows: Any) -> list[Node]:
    try:
        return [parse.make_node(row, row["Reason"], row["ReasonUser"]) for row in rows]
    except (KeyError, TypeError, AttributeError) as error:
        raise parse.nonsense(str(rows), "pyslurm Node.load") from error
