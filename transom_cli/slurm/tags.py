"""Recognise a run's jobs by their comment: its first word is a tag, the rest is for people. Pure.

    transom:<run id>                       the first job of a run
    transom:<run id>:after-<attempt>       the successor of the job of that attempt
    <either> held: <reason>                a job that its launcher has held

A site's job_submit plugin may rewrite comments; `tagged` reports whether a tag is still there.
"""

_PREFIX = "transom:"
_AFTER = ":after-"
_HELD = "held:"
_MAX_REASON = 200  # characters


def run_tag(run_id: str) -> str:
    return f"{_PREFIX}{run_id}"


def successor_tag(tag: str, attempt: str) -> str:
    """Return the tag of the only job that may succeed this attempt. Operator and launcher both use it."""
    return f"{tag}{_AFTER}{attempt}"


def keep_comment(tag: str) -> str:
    """Return the comment of the job that keeps nodes for a restart. It is no tag: the job never trains."""
    return f"transom-keep:{tag.removeprefix(_PREFIX)}"


def tag_of(comment: str) -> str:
    return comment.partition(" ")[0]


def tagged(comment: str) -> bool:
    """Return whether the comment has the tag of any run."""
    return tag_of(comment).startswith(_PREFIX)


def of_run(comment: str, tag: str) -> bool:
    """Return whether a job with this comment belongs to the run with this tag."""
    return tag_of(comment) == tag or tag_of(comment).startswith(f"{tag}:")


def is_other_runs(comment: str, tag: str) -> bool:
    """Return whether the job certainly belongs to another run, although it has the ID of one of ours.

    A slurmctld that lost its state reuses job IDs. A comment without any tag proves nothing: people and sites change
    comments.
    """
    return tagged(comment) and not of_run(comment, tag.partition(_AFTER)[0])


def is_successor(comment: str, tag: str) -> bool:
    """Return whether a job with this comment succeeds another job of the run with this tag."""
    return tag_of(comment).startswith(f"{tag}{_AFTER}")


def replaces_job(comment: str, tag: str, job_id: int) -> bool:
    """Return whether a job with this comment succeeds the given job, whichever attempt was its last."""
    return tag_of(comment).startswith(successor_tag(tag, f"{job_id}."))


def held_comment(comment: str, tag: str, why: str) -> str:
    """Return the comment of a held job, with the reason. The job keeps its own tag, by which it is found."""
    return f"{tag_of(comment) if of_run(comment, tag) else tag} {_HELD} {one_line(why)}"


def has_hold_reason(comment: str) -> bool:
    return comment.partition(" ")[2].startswith(_HELD)


def one_line(text: str) -> str:
    """Shorten to one line without control characters, and without `=`, which `scontrol show job` is parsed by."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text.replace("=", ":")).split())
    return line if len(line) <= _MAX_REASON else line[: _MAX_REASON - 3] + "..."
