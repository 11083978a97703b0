"""Nodes that the training has left: returned to Slurm if somebody drains them, and cleared of surviving ranks.

A node that did not answer, or could not end its ranks, carries no rank of the attempt any more. But if it was frozen or
cut off, it comes back with the old ranks alive, on its devices and on the shared file system, and nobody else would end
them before the whole job ends.
"""

import threading
from collections.abc import Callable

from transom_cli.core.launcher import LaunchEnded, State
from transom_cli.errors import TransomError
from transom_cli.slurm.guards import backoff
from transom_cli.slurm.port import Slurm, SlurmUnknown
from transom_cli.supervise.launcher.journal import JournalWriter, say
from transom_cli.supervise.launcher.plan import Allocation

AGAIN = 10.0  # interval in seconds between two tries to end orphans

End = Callable[[int, tuple[str, ...], float], LaunchEnded]  # (launch, nodes, grace): as `Agents.end`


class NodeRelease:
    """Returns nodes to Slurm that somebody drains and that carry no rank any more, by shrinking the job.

    A node is tried once, and a refusal is final: Slurm 22.05 without accounting allows one shrink per start, and never
    of the batch script's node. A Slurm that does not answer is asked again.
    """

    def __init__(self, allocation: Allocation, slurm: Callable[[], Slurm], journal: JournalWriter) -> None:
        self._allocation, self._slurm, self._journal = allocation, slurm, journal
        self._seen: set[str] = set()
        self._one_by_one = threading.Lock()
        self._over = threading.Event()
        self.returned: tuple[str, ...] = ()  # no longer in the job

    def look(self, state: State, orphaned: Callable[[str], bool]) -> None:
        """Release drained nodes; call while the launch steps. Returns at once.

        Args:
            orphaned: whether ranks of a former launch may survive on a node.
        """
        nodes = state.nodes
        idle = (n for n in nodes.draining if n not in nodes.training and n not in self._seen)
        free = tuple(n for n in idle if not orphaned(n))
        self._seen.update(free)
        if self._allocation.host in free:
            self._say(self._allocation.host, "stays in the job until it ends: the batch script runs there")
        free = tuple(n for n in free if n != self._allocation.host)
        if free:
            threading.Thread(target=self._shrink, args=(free,), name="release", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def kept(self) -> tuple[str, ...]:
        """The nodes that are still in the job, as far as is known."""
        return tuple(n for n in self._allocation.nodes if n not in self.returned)

    def _shrink(self, nodes: tuple[str, ...]) -> None:
        names, tries = ", ".join(nodes), 0
        with self._one_by_one:
            while not self._over.is_set():
                try:
                    self._slurm().shrink(self._allocation.job_id, [n for n in self.kept() if n not in nodes])
                except SlurmUnknown:
                    tries += 1
                    self._over.wait(backoff(tries))
                    continue
                except TransomError as error:
                    self._say(names, f"stays in the job until it ends: {error.why or error.what}")
                    return
                self.returned = (*self.returned, *nodes)
                self._say(names, "is given back: it is being drained, and runs no rank any more")
                return

    def _say(self, names: str, what: str) -> None:
        self._journal("give back", node=names, words=f"{names} {what}")
        say(f"transom: {names} {what}")


def release_nodes(slurm: Slurm, allocation: Allocation, nodes: tuple[str, ...]) -> None:
    """Shrink the job off dead nodes before it ends: it would hang in COMPLETING until SlurmdTimeout. Best effort."""
    living = tuple(n for n in allocation.nodes if n not in nodes)
    try:
        slurm.shrink(allocation.job_id, living)
    except TransomError as error:
        say(f"transom: {', '.join(nodes)} stays in the job until Slurm misses it: {error.why or error.what}")


class OrphanReaper:
    """Ends surviving ranks of a former launch, node by node, until the agent there confirms that none is left.

    A launch is ended by its number, and only if `watch` was called for it: never the present one.
    """

    def __init__(self, end: End, journal: JournalWriter) -> None:
        self._end, self._journal = end, journal
        self._orphans: set[tuple[str, int]] = set()  # node, launch
        self._over = threading.Event()

    def watch(self, launch: int, ended: LaunchEnded, nodes: tuple[str, ...]) -> None:
        """Take care of those `nodes` on which the launch may survive. Returns at once."""
        for node in nodes:
            if node in ended.left_behind and (node, launch) not in self._orphans:
                self._orphans.add((node, launch))
                threading.Thread(target=self._try, args=(node, launch), name="orphans", daemon=True).start()

    def on(self, node: str) -> bool:
        """Whether ranks of a former launch may survive there."""
        return any(known == node for known, _ in tuple(self._orphans))

    def stop(self) -> None:
        self._over.set()

    def _try(self, node: str, launch: int) -> None:
        said = ""
        while not self._over.wait(AGAIN):
            try:
                ended = self._end(launch, (node,), 0.0)
            except Exception:  # a bug here, or too many threads: treat the node as unheard
                continue
            if node in ended.unheard:
                continue
            survivors = ", ".join(what for _, what in ended.survivors)
            what = f"launch {launch} survives there: {survivors}"
            words = f"{node} answers again: {what if survivors else f'no process of launch {launch} remains there'}"
            if words != said:
                said = words
                self._journal("leftovers", node=node, words=words)
            if not survivors:
                self._orphans.discard((node, launch))
                return
