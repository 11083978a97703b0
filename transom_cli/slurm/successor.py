"""The job that goes on in the place of one that cannot, or is not to, be requeued: found by its tag, never two.

It is submitted held, so that a submission whose answer was lost never starts beside another. Whoever finds several
lets the same one go on: launcher and operator may both be at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from transom_cli.slurm.known import still_there
from transom_cli.slurm.port import Job, JobCancelled, JobState, Slurm, SlurmUnknown, Submission


def find_successors(slurm: Slurm, tag: str, job_id: int) -> tuple[Job, ...]:
    """Jobs that have been submitted in the place of `job_id`; the one that goes on first."""
    found = [job for job in slurm.jobs() if tag in job.comment.split() and job.job_id != job_id]
    return tuple(sorted(found, key=lambda job: (job.state is JobState.CANCELLED, job.held, job.job_id)))


def exclusions(old: Job | None, exclude: Sequence[str] = (), drop: Sequence[str] = ()) -> tuple[str, ...]:
    """Those of the old job are kept, but for what is dropped."""
    kept = [node for node in (old.excluded if old else ()) if node not in drop]
    return tuple(dict.fromkeys([*kept, *exclude]))


def submit_successor(
    slurm: Slurm, submission: Submission, tag: str, num_nodes: int, exclude: Sequence[str], *further: str
) -> int:
    """`further`: more sbatch options. The job's id, which says nothing of whether it is the only one."""
    added = [f"--comment={tag}", f"--nodes={num_nodes}", "--hold", *further]
    if exclude:
        added.append(f"--exclude={','.join(exclude)}")
    return slurm.submit(replace(submission, options=(*submission.options, *added)))


def resubmit_own_job(slurm: Slurm, submission: Submission, tag: str, job_id: int, num_nodes: int) -> Job:
    """Called by the job itself, which is to end next. Returns its successor, still held.

    No other job can wait for this one to end and then release, so Slurm does: it starts the successor, once it is
    released, when this job has ended and all its nodes are free. After SlurmUnknown do it again.
    """
    found = find_successors(slurm, tag, job_id)
    if not found:
        old = slurm.job(job_id)
        if old.state is JobState.CANCELLED:
            raise JobCancelled(f"Job {job_id} was cancelled", "its state in Slurm is CANCELLED (scancel)")
        first = f"--dependency=afterany:{job_id}"
        submit_successor(slurm, submission, tag, num_nodes, still_there(slurm, exclusions(old)), first)
        found = find_successors(slurm, tag, job_id)
    if not found:
        raise SlurmUnknown("Slurm does not show the job that it has just taken", "", "squeue --me")
    for extra in (job for job in found[1:] if job.held):
        slurm.cancel(extra.job_id)
    return found[0]
