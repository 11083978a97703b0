"""The successor of a job that cannot, or must not, be requeued: found by its tag, and never two of them.

A successor is submitted held, so a submission whose answer was lost never starts beside another one. Operator and
launcher may both be at work: if there are several successors, both choose the same one.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from transom_cli.slurm.port import (
    Job,
    JobCancelled,
    JobState,
    Node,
    NoSuchJob,
    Slurm,
    SlurmRefused,
    SlurmUnknown,
    Submission,
)
from transom_cli.slurm.tags import is_other_runs, tagged

# sbatch rejects a job whose script requires an excluded node (--nodelist), or a node that no longer exists. For a job
# that is already submitted Slurm accepts the exclusion, and the job waits for that node (BadConstraints).
_EXCLUDES_REQUIRED_NODE = r"Invalid node name specified"
MAX_UNANSWERED = 2  # submissions without an answer and without a job that is found, before no further one is tried


def known_nodes(slurm: Slurm, names: Sequence[str]) -> list[Node]:
    """Return those of the named nodes that Slurm knows. Slurm rejects a whole list for one deleted node."""
    if not names:
        return []
    try:
        return slurm.nodes(names)
    except SlurmRefused:
        return [node for node in slurm.nodes() if node.name in names]


def existing_nodes(slurm: Slurm, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of nodes that still exist, in their order. Deleted nodes need no exclusion."""
    known = {node.name for node in known_nodes(slurm, names)}
    return tuple(name for name in names if name in known)


def submit_recorded(submit: Callable[[], int], on_submitted: Callable[[int], None], unanswered: int) -> int:
    """Submit, and pass the job ID to `on_submitted`, or 0 if the answer was lost.

    Args:
        unanswered: how many submissions for the same purpose had no answer and left no job that can be found.

    Raises:
        SlurmRefused: there were MAX_UNANSWERED of them; another one could leave one more unknown job.
    """
    if unanswered >= MAX_UNANSWERED:
        raise SlurmRefused(
            "No job of this run can be identified in Slurm",
            "two submissions had no answer, and squeue shows no job with this run's comment or batch script;"
            " a job that appears later is held: find it with `squeue --me` and cancel it with `scancel`",
        )
    try:
        job_id = submit()
    except SlurmUnknown as error:
        if not error.never_sent:
            on_submitted(0)
        raise
    on_submitted(job_id)
    return job_id


def runs_script(job: Job, script: Path) -> bool:
    """Return whether an untagged job was submitted with this batch script, the one in the run directory.

    A site's job_submit plugin may have rewritten the comment that held its tag.
    """
    ours = str(script.absolute())
    return not tagged(job.comment) and (job.command == ours or job.command.startswith(f"{ours} "))


def find_successors(slurm: Slurm, tag: str, job_id: int, script: Path, known: Sequence[int] = ()) -> tuple[Job, ...]:
    """Return the jobs that were submitted to succeed `job_id`, the one to continue with first.

    An untagged job counts by its `script`, or by an ID that sbatch returned (`known`), if it is newer than `job_id`
    and was not cancelled before it ran.
    """

    def follows(job: Job) -> bool:
        if tag in job.comment.split():
            return job.job_id != job_id
        ours = runs_script(job, script) or (job.job_id in known and not is_other_runs(job.comment, tag))
        return ours and job.job_id > job_id and (not job.state.ended or bool(job.nodes))

    jobs = {job.job_id: job for job in slurm.jobs()}
    for number in known:
        if number > job_id and number not in jobs:
            with contextlib.suppress(NoSuchJob):
                jobs[number] = slurm.job(number)
    found = [job for job in jobs.values() if follows(job)]
    return tuple(sorted(found, key=lambda job: (job.state is JobState.CANCELLED, job.held, job.job_id)))


def exclusions(old: Job | None, exclude: Sequence[str] = (), drop: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the old job's exclusions without `drop`, and `exclude`."""
    kept = [node for node in (old.excluded if old else ()) if node not in drop]
    return tuple(dict.fromkeys([*kept, *exclude]))


def submit_successor(
    slurm: Slurm, submission: Submission, tag: str, num_nodes: int, exclude: Sequence[str], *further: str
) -> int:
    """Submit a held successor and return its job ID. It need not be the only one.

    A --begin in the script (now+1hour) was meant for the first start only.

    Args:
        further: additional sbatch options.
    """
    added = (*submission.options, f"--comment={tag}", f"--nodes={num_nodes}", "--hold", "--begin=now", *further)
    excluding = (f"--exclude={','.join(exclude)}",) if exclude else ()
    try:
        return slurm.submit(replace(submission, options=(*added, *excluding)))
    except SlurmRefused as refused:
        if not exclude or not re.search(_EXCLUDES_REQUIRED_NODE, refused.why, re.IGNORECASE):
            raise
        job_id = slurm.submit(replace(submission, options=added))
        try:
            slurm.update_pending(job_id, exclude=exclude)
        except SlurmRefused:
            slurm.cancel(job_id)
            raise refused from None
        return job_id


def resubmit_own_job(slurm: Slurm, submission: Submission, tag: str, job_id: int, num_nodes: int) -> Job:
    """Submit the successor of the calling job, which is about to end. Returns the successor, still held.

    Nothing can wait for this job to end and then release the successor, so Slurm does it: a dependency starts the
    released successor when this job has ended and all its nodes are free. After SlurmUnknown, call this again.
    """
    found = find_successors(slurm, tag, job_id, submission.script)
    if not found:
        old = slurm.job(job_id)
        if old.state is JobState.CANCELLED:
            raise JobCancelled(f"Job {job_id} was cancelled", "its state in Slurm is CANCELLED (scancel)")
        first = f"--dependency=afterany:{job_id}"
        submitted = submit_successor(slurm, submission, tag, num_nodes, existing_nodes(slurm, exclusions(old)), first)
        found = find_successors(slurm, tag, job_id, submission.script) or (slurm.job(submitted),)
    for extra in (job for job in found[1:] if job.held):
        slurm.cancel(extra.job_id)
    return found[0]
