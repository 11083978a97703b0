"""The Slurm adapter on its own commands. This module holds every command line; `parse` reads every answer."""

import contextlib
import re
from collections.abc import Iterator, Sequence

from transom_cli.slurm import accounting, parse
from transom_cli.slurm.port import Job, Node, NoSuchJob, SlurmRefused, Start, Submission
from transom_cli.slurm.runner import Runner

# Refusals which mean that nothing remains to be done.
ALREADY_PENDING = r"Job is pending execution"
ALREADY_STARTED = r"Job is no longer pending execution"
RELEASED_UNSTARTABLE = r"Requested partition configuration not available"  # released, but cannot start
ALREADY_ENDED = r"already completing or completed"


class CliSlurm:
    """The `Slurm` protocol on squeue, scontrol, sbatch, scancel and sacct (22.05 and later).

    `jobs` leaves `Job.excluded` empty, since squeue has no column for it; `job` fills it in.
    """

    def __init__(self, runner: Runner | None = None) -> None:
        self._runner = runner or Runner()

    def submit(self, submission: Submission) -> int:
        options = list(submission.options)
        if submission.chdir is not None:
            options.append(f"--chdir={submission.chdir}")
        script = submission.script.absolute()  # an absolute path cannot be mistaken for an option
        argv = ["sbatch", "--parsable", *options, str(script), *submission.args]
        return parse.parse_submitted(self._runner.submit(argv, submission.env))

    def jobs(self) -> list[Job]:
        argv = ["squeue", "--me", "--all", "--noheader", "--states=all", f"--Format={parse.SQUEUE_FORMAT}"]
        return parse.parse_squeue(self._runner.run(argv))

    def job(self, job_id: int) -> Job:
        return parse.parse_show_job(self._runner.run(["scontrol", "show", "job", "-o", str(job_id)]))

    def count_ahead(self, job: Job) -> int:
        pending = ["squeue", "--noheader", "--states=PENDING", f"--partition={job.partition}", "--format=%A %Q"]
        lines = [line.split() for line in self._runner.run(pending).splitlines()]
        priorities = {int(line[0]): int(line[1]) for line in lines if len(line) == 2}
        own = priorities.get(job.job_id)
        return sum(one > own for one in priorities.values()) if own is not None else 0

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        only = [hosts(names)] if names else []
        return parse.parse_show_nodes(self._runner.run(["scontrol", "show", "node", "-o", *only]))

    def requeue(self, job_id: int) -> None:
        with unless_done(ALREADY_PENDING):
            self._runner.run(["scontrol", "requeue", str(job_id)])

    def requeue_hold(self, job_id: int) -> None:
        with unless_done(ALREADY_PENDING):
            self._runner.run(["scontrol", "requeuehold", str(job_id)])

    def shrink(self, job_id: int, nodes: Sequence[str]) -> None:
        self._runner.run(["scontrol", "update", f"jobid={job_id}", f"NodeList={hosts(nodes)}"])

    def update_pending(
        self, job_id: int, *, exclude: Sequence[str], num_nodes: int | None = None, num_tasks: int | None = None
    ) -> None:
        count = [f"NumNodes={num_nodes}"] if num_nodes is not None else []
        if num_tasks is not None:  # with a gres, a job waits for as many CPUs as it requested originally
            count += [f"NumTasks={num_tasks}", f"NumCPUs={num_tasks * self.job(job_id).cpus_per_task}"]
        excluded = hosts(exclude) if exclude else ""
        self._runner.run(["scontrol", "update", f"jobid={job_id}", *count, f"ExcNodeList={excluded}"])

    def keep_nodes(self, job_id: int, nodes: Sequence[str], comment: str) -> int:
        ours = ["squeue", "--me", "--all", "--noheader", "--states=PENDING,RUNNING", f"--Format={parse.TERMS_FORMAT}"]
        known = parse.parse_terms(self._runner.run(ours))
        for keeper in (number for number, text, _ in known if text == comment):
            return keeper
        terms = next((terms for number, _, terms in known if number == job_id), {})
        if not nodes or not self._others_wait(terms.get("partition", "")):
            return 0
        where = [f"--nodes={len(nodes)}", f"--nodelist={hosts(nodes)}", "--exclusive", "--time=1", "--chdir=/"]
        quiet = ["--no-requeue", "--output=/dev/null", "--mail-type=NONE", "--job-name=transom-keep"]
        same = [f"--{name}={value}" for name, value in terms.items()]
        argv = ["sbatch", "--parsable", *same, *where, *quiet, f"--comment={comment}", "--wrap=sleep 60"]
        return parse.parse_submitted(self._runner.submit(argv, {}))

    def _others_wait(self, partition: str) -> bool:
        """Return whether the partition has no idle node, or a pending job that only waits for nodes."""
        idle = ["sinfo", "--noheader", f"--partition={partition}", "--states=idle", "--format=%D"]
        if not self._runner.run(idle).strip():
            return True
        pending = ["squeue", "--noheader", "--states=PENDING", f"--partition={partition}", "--format=%r"]
        return bool({"Resources", "Priority"} & set(self._runner.run(pending).split()))

    def release(self, job_id: int) -> None:
        with unless_done(RELEASED_UNSTARTABLE):
            self._runner.run(["scontrol", "release", str(job_id)])

    def start_now(self, job_id: int) -> None:
        with unless_done(ALREADY_STARTED):
            self._runner.run(["scontrol", "update", f"jobid={job_id}", "StartTime=now"])

    def set_comment(self, job_id: int, comment: str) -> None:
        self._runner.run(["scontrol", "update", f"jobid={job_id}", f"Comment={comment}"])

    def cancel(self, job_id: int) -> None:
        with contextlib.suppress(NoSuchJob), unless_done(ALREADY_ENDED):
            self._runner.run(["scancel", str(job_id)])

    def drain(self, node: str, reason: str) -> None:
        if not self._node(node).drain:
            self._runner.run(["scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}"])

    def undrain(self, node: str, *, reason: str) -> None:
        seen = self._node(node)
        if may_undrain(seen, reason):
            self._runner.run(["scontrol", "update", f"nodename={node}", f"state={state_without_drain(seen)}"])

    def history(self, *job_ids: int) -> list[Start]:
        jobs = ",".join(map(str, job_ids))
        argv = ["sacct", "-D", "-X", "-P", "-n", "-o", accounting.SACCT_FORMAT, "-j", jobs]
        return accounting.parse_sacct(self._runner.run(argv, extra=accounting.SACCT_TIMES), *job_ids)

    def _node(self, name: str) -> Node:
        found = [node for node in self.nodes((name,)) if node.name == name]
        if not found:
            raise parse.unexpected_output("(no such node in the answer)", f"scontrol show node -o {name}")
        return found[0]


@contextlib.contextmanager
def unless_done(refusal: str) -> Iterator[None]:
    """Ignore a refusal that matches the regular expression: it means that nothing remains to be done."""
    try:
        yield
    except SlurmRefused as error:
        if not re.search(refusal, error.why, re.IGNORECASE):
            raise


def may_undrain(node: Node, reason: str) -> bool:
    """Return whether the node is drained. Raises SlurmRefused if it is drained for another reason."""
    if node.drain and node.reason != reason:
        raise SlurmRefused(
            f"Node {node.name} is drained for another reason, so it stays drained",
            f"its reason is: {node.reason} (set by {node.reason_user or 'unknown'})",
            f"scontrol show node {node.name}",
        )
    return node.drain


def state_without_drain(node: Node) -> str:
    """Return the state to ask for. A node that was lost while it was drained is also down (ReturnToService).

    If it responds again, `resume` clears both. If it does not, `undrain` keeps it down: jobs on it would fail.
    """
    return "resume" if node.state == "down" and not node.not_responding else "undrain"


def hosts(names: Sequence[str]) -> str:
    """Join names for Slurm. A name can never contain a range, a second name or another key."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            raise SlurmRefused(f"`{parse.clean(name)}` is not a node name", "", "sinfo -N")
    return ",".join(names)
