"""Gives nodes back that somebody drains and that carry no rank any more: he waits for them, and the job does not need
them. The job is shrunk off them; what still runs there, an agent, ends with that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from transom_cli.core.launcher import State
from transom_cli.errors import TransomError
from transom_cli.slurm.guards import backoff
from transom_cli.slurm.port import Slurm, SlurmUnknown
from transom_cli.supervise.launcher.log import say
from transom_cli.supervise.launcher.plan import Allocation
from transom_cli.supervise.launcher.revive import Journal


class GiveBack:
    """One try for each node. A refusal stands: Slurm 22.05 without accounting allows one shrink a start, and none off
    the node of the batch script. A Slurm that does not answer is asked again.
    """

    def __init__(self, allocation: Allocation, slurm: Callable[[], Slurm], journal: Journal) -> None:
        self._allocation, self._slurm, self._journal = allocation, slurm, journal
        self._seen: set[str] = set()
        self._one_by_one = threading.Lock()
        self._over = threading.Event()
        self.returned: tuple[str, ...] = ()  # not the job's any more

    def look(self, state: State, left: Callable[[str], bool]) -> None:
        """For when the present launch steps. left: ranks of a former launch may live on a node. Returns at once."""
        idle = (n for n in state.nodes.draining if n not in state.nodes.training and n not in self._seen)
        nodes = tuple(n for n in idle if not left(n))
        self._seen.update(nodes)
        if self._allocation.host in nodes:
            self._tell(self._allocation.host, "stays in the job until it ends: the batch script runs there")
        nodes = tuple(n for n in nodes if n != self._allocation.host)
        if nodes:
            threading.Thread(target=self._shrink, args=(nodes,), name="give-back", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def kept(self) -> tuple[str, ...]:
        """The job's nodes, as far as is known."""
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
                    self._tell(names, f"stays in the job until it ends: {error.why or error.what}")
                    return
                self.returned = (*self.returned, *nodes)
                self._tell(names, "is given back: it is being drained, and carries no rank any more")
                return

    def _tell(self, names: str, what: str) -> None:
        self._journal("give back", node=names, words=f"{names} {what}")
        say(f"transom: {names} {what}")
