"""What each way to recover costs, in node-seconds without training. Pure.

A node-second is lost while a node of the run does not train: since it is not there, waits, starts up, or repeats steps
that were not saved. The estimate uses what this run has measured, and for how long jobs of its partition waited.
"""

from dataclasses import dataclass, replace

from transom_cli.plural import several

REQUEUE_DELAY = 120.0  # seconds before Slurm considers a requeued job again (its default)
PAYS = 1.5  # by this factor a growth must gain more than it costs
UNLIMITED = 86400.0  # seconds that are assumed to remain if the time limit is unknown
RECENT = 20  # jobs whose waits count

Waits = tuple[tuple[int, float], ...]  # nodes of a job, and seconds for which it waited; the last one to start first


@dataclass(frozen=True)
class Situation:
    """Measured when a launch has failed and its nodes are known. Times are in seconds.

    queued: for which jobs with as many nodes as the run waited, and missing: as the missing nodes; None: unknown.
    """

    nodes: int  # that the run had
    smaller: int  # on which it could continue now; 0: it cannot
    startup: float  # from the order to start a launch to its first step
    repeated: float  # of training that was not saved
    queued: float | None = None
    missing: float | None = None
    jobs: int = 0  # how many jobs these are
    left: float | None = None  # until the time limit; None: unknown
    top_up: bool = False  # the run asks Slurm for the missing nodes meanwhile

    @property
    def words(self) -> str:
        known = [f"start-up {self.startup:.0f} s", f"{self.repeated:.0f} s to repeat"]
        if self.queued is not None and self.missing is not None:
            waits = f"{self.queued:.0f} s in the queue, {self.missing:.0f} s for the missing nodes"
            known.append(f"{waits}, from {several(self.jobs, 'job')}")
        known.append("a day assumed to remain" if self.left is None else f"{self.left / 60:.0f} min remain")
        return ", ".join(known)


def of_relaunch(s: Situation) -> float:
    """On as many nodes as before: the same ones, or a ready spare among them."""
    return s.nodes * (s.startup + s.repeated)


def of_shrink(s: Situation) -> float:
    """The missing nodes are lost until they are back, if they are expected back, and then all start up once more."""
    left = UNLIMITED if s.left is None else s.left
    back = s.missing if s.top_up and s.missing is not None and s.missing < left else None
    missing = s.nodes - s.smaller
    return of_relaunch(s) + missing * (left if back is None else back) + (0.0 if back is None else s.nodes * s.startup)


def of_wait(s: Situation) -> float | None:
    """All nodes wait for the missing ones. None: no wait is known."""
    return None if s.missing is None else s.nodes * s.missing + of_relaunch(s)


def of_requeue(s: Situation) -> float | None:
    """The job waits in the queue for all nodes. None: no wait is known."""
    return None if s.queued is None else s.nodes * (REQUEUE_DELAY + s.queued) + of_relaunch(s)


def comparison(s: Situation) -> str:
    """Return the line that `transom explain` prints."""
    shrink = f"shrink to {several(s.smaller, 'node')}"
    choices = {shrink: of_shrink(s), "wait": of_wait(s), "requeue": of_requeue(s)}
    costs = (f"{name}: {_minutes(seconds)} node-min" for name, seconds in choices.items() if seconds is not None)
    return f"training time lost: {'; '.join(costs)} ({s.words})"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.{0 if seconds >= 600 else 1}f}"


def similar(waits: Waits, nodes: int) -> list[float]:
    """Return the waits of recent jobs with half to twice as many nodes, or else with more."""
    alike = [seconds for number, seconds in waits if nodes <= 2 * number <= 4 * nodes]
    return (alike or [seconds for number, seconds in waits if number > nodes])[:RECENT]


def in_queue(s: Situation, waits: Waits) -> Situation:
    """Add what the queue of the partition says: the median of similar jobs."""
    whole, part = similar(waits, s.nodes), similar(waits, s.nodes - s.smaller)
    if not whole or not part:
        return s
    queued, missing = (sorted(some)[len(some) // 2] for some in (whole, part))
    return replace(s, queued=queued, missing=missing, jobs=max(len(whole), len(part)))


def growth_pays(nodes: int, gained: int, startup: float, left: float) -> bool:
    """Whether `gained` more nodes train longer than the `nodes` that must start up for them do not."""
    return gained * (left - startup) > nodes * startup * PAYS
