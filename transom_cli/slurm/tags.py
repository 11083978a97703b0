"""How a run's jobs are known in Slurm: their comment's first word is a tag, what follows is for people. Pure.

transom:<run id>                       the first job of a run
transom:<run id>:after-<attempt>       the job that goes on in the place of that attempt's
<either> held: <reason>                a job that its launcher has held
"""

from __future__ import annotations

_OURS = "transom:"
_AFTER = ":after-"
_HELD = "held:"
_LONGEST = 200  # of a reason, in characters


def run_tag(run_id: str) -> str:
    return f"{_OURS}{run_id}"


def successor_tag(tag: str, attempt: str) -> str:
    """Of the one job that may follow on this attempt, whoever submits it: operator or launcher."""
    return f"{tag}{_AFTER}{attempt}"


def tag_of(comment: str) -> str:
    return comment.partition(" ")[0]


def of_run(comment: str, tag: str) -> bool:
    """Whether a job with this comment belongs to the run with this tag."""
    return tag_of(comment) == tag or tag_of(comment).startswith(f"{tag}:")


def is_anothers(comment: str, tag: str) -> bool:
    """Whether a job is surely another run's, though it has the number of one of ours: a slurmctld that has lost its
    state gives the numbers again. Any other comment says nothing: people change it, and sites take it away.
    """
    return tag_of(comment).startswith(_OURS) and not of_run(comment, tag.partition(_AFTER)[0])


def succeeds_job(comment: str, tag: str, job_id: int) -> bool:
    """Whether a job with this comment was submitted in the place of that job, whichever attempt was its last."""
    return tag_of(comment).startswith(successor_tag(tag, f"{job_id}."))


def held_comment(comment: str, tag: str, why: str) -> str:
    """The comment that tells why a job is held; its own tag stays, since it is found by it."""
    return f"{tag_of(comment) if of_run(comment, tag) else tag} {_HELD} {one_line(why)}"


def says_held(comment: str) -> bool:
    return comment.partition(" ")[2].startswith(_HELD)


def one_line(text: str) -> str:
    """One short line without control characters, nor the `=` by which `scontrol show job` is read."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text.replace("=", ":")).split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."
