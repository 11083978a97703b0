"""The job steps of a user's own script: one launcher after the other in the same attempt.

They share the attempt's directory and journal. Launches and incidents are numbered on, so that no file of an earlier
step is overwritten. A step that is done leaves a record in the journal, and no outcome: the attempt continues.
"""

import contextlib
import fcntl
import os
from dataclasses import dataclass, replace

from transom_cli.core.codec import BadRecord, build
from transom_cli.core.events import OutcomeSeen, Taken
from transom_cli.errors import UsageError
from transom_cli.files import listed, read_lines
from transom_cli.layout import AttemptDir, RunDir

RECORD = "job_step"
_OF_AGENTS = (".endpoint", ".beats")


@dataclass(frozen=True)
class EarlierSteps:
    """What earlier job steps of the attempt have left.

    launches, incidents: how many there were.
    """

    steps: tuple[str, ...] = ()
    launches: int = 0
    incidents: int = 0
    given_up: tuple[str, ...] = ()  # nodes that must carry no rank any more
    taken: tuple[Taken, ...] = ()  # what was decided about failures, and when, by the wall clock


def earlier_steps(attempt: AttemptDir) -> EarlierSteps:
    launches, incidents, names = 0, 0, dict[str, None]()
    given_up, taken = dict[str, None](), list[Taken]()
    for record in read_lines(attempt.launcher_journal):
        kind, name = record.get("type"), str(record.get("incident", ""))
        if kind == "launch":
            launches = max(launches, int(record.get("launch", 0)) + 1)
        elif kind == "recovery" and name[:1] == "l" and name[1:].isdecimal():
            incidents = max(incidents, int(name[1:]))
        elif kind in (RECORD, "outcome") and record.get("job_step"):
            names[str(record["job_step"])] = None
            given_up.update(dict.fromkeys(map(str, record.get("given_up", ()))))
            with contextlib.suppress(BadRecord):
                about = {"at": record["wall"], "attempt": attempt.name, "status": "", "why": "", **record}
                taken += [replace(t, at=about["at"] + t.at) for t in build(OutcomeSeen, about).taken]
    return EarlierSteps(tuple(names), launches, incidents, tuple(given_up), tuple(taken))


def done_in(run: RunDir, name: str) -> str:
    """Return the attempt in which this job step was done, or ""."""
    for path in listed(run.attempts):
        attempt = AttemptDir(path)
        if any(r.get("type") == RECORD and r.get("job_step") == name for r in read_lines(attempt.launcher_journal)):
            return attempt.name
    return ""


def clear_agents(attempt: AttemptDir) -> None:
    """Remove where the agents of the step before listened, and their tables: its agents have ended."""
    for path in (*listed(attempt.nodes), attempt.heartbeats, attempt.outcome):
        if path.suffix in _OF_AGENTS or path in (attempt.heartbeats, attempt.outcome):
            with contextlib.suppress(OSError):
                path.unlink()


def lock(attempt: AttemptDir) -> int:
    """Keep other launchers out of the attempt as long as this process lives. Raises UsageError if one is there."""
    descriptor = os.open(attempt.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(
            "Another `transom launch` of this job is running",
            "job steps that run at the same time are not supported: both would use the same nodes",
            "start one after the other, or the smaller one with `srun`",
        ) from None
    except OSError:
        pass  # a file system without locks
    return descriptor
