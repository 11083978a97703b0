"""What the batch script's output, one file for all attempts of a job, has of one attempt's last launch. Pure.

It holds our own lines beside the script's, and what slurmstepd says of a job that we have requeued: none of these tells
why a launch failed.
"""

from __future__ import annotations

OURS = b"transom: "  # how each of the launcher's lines begins
LAUNCH = b"transom: launch %d of attempt %s: "
_ANY_LAUNCH = b"transom: launch "
_REQUEUED = b"DUE TO JOB REQUEUE ***"  # slurmstepd's last word for an attempt
_ERROR, _HINT = b"error: ", b"hint: "  # how transom's commands tell an error (`errors.TransomError`)


def of_attempt(data: bytes, attempt: str) -> bytes:
    """As many lines as `data` has, so that a line keeps its number; empty ones for those that do not count.

    What is before the attempt's last launch does not; where it has begun none (the script failed before), what is
    before the last line of an earlier attempt's launcher does not. Of a script without a launcher all is kept.
    """
    lines = data.split(b"\n")
    first = max((n + 1 for n, line in enumerate(lines) if _REQUEUED in line), default=0)
    launches = [n for n, line in enumerate(lines) if line.startswith(_ANY_LAUNCH)]
    if launches:
        ours = b" of attempt %s: " % attempt.encode() in lines[launches[-1]]
        said = [n for n, line in enumerate(lines) if line.startswith(OURS)]
        first = max(first, (launches if ours else said)[-1] + 1)
    return b"\n".join(b"" if n < first or line.startswith(OURS) else line for n, line in enumerate(lines))


def error_in(data: bytes) -> bytes:
    """The line that says what went wrong, where one of transom's own errors is the end of it; else none."""
    lines = [line for line in data.split(b"\n") if line.strip()]
    at = max((n for n, line in enumerate(lines) if line.startswith(_ERROR)), default=-1)
    rest = lines[at + 1 :]
    if at < 0 or not all(line.startswith((b" ", _HINT)) for line in rest):
        return b""
    return lines[at].removeprefix(_ERROR)
