"""Watches the allocation's nodes for the launcher: whether its spares are ready, and whether somebody drains a node."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping

from transom_cli.core.launcher import Event, NodesDraining, SpareChecked
from transom_cli.errors import TransomError
from transom_cli.slurm.port import Slurm

DRAIN_EVERY = 30.0  # seconds between two looks at the nodes' states in Slurm
WARM_EVERY = 1.0  # seconds between two tries to warm a spare, as long as it is too early
SPARE_EVERY = 10.0  # seconds between two looks at a spare
FAILS = 2  # looks in a row that a spare must fail not to count as ready any more

Probe = Callable[[str], Mapping[str, object]]  # an agent's answer, with "ok" in it, or an "error"
Warm = Callable[[str], bool]  # warm this spare; False: too early, ask again


class NodeWatch:
    """Daemon threads: one for the drains and one for each spare, which put what they see into `inbox`."""

    def __init__(self, inbox: queue.SimpleQueue[Event]) -> None:
        self._inbox = inbox
        self._end = threading.Event()
        self.started = False

    def start(
        self,
        nodes: tuple[str, ...],
        spares: tuple[str, ...],
        probe: Probe,
        slurm: Callable[[], Slurm],
        warm: Warm = lambda _: True,
    ) -> None:
        """`spares` are looked at by `probe`, and handed to `warm` once they are ready, in a thread of its own: it may
        take minutes. The drain of any of `nodes` is told, once for each reason.
        """
        self.started = True
        for spare in spares:
            self._thread(self._spare, spare, probe, warm)
        if nodes:
            self._thread(self._drains, nodes, slurm)

    def stop(self) -> None:
        self._end.set()

    def _thread(self, work: Callable[..., None], *about: object) -> None:
        threading.Thread(target=work, args=about, name="nodes", daemon=True).start()

    def _spare(self, node: str, probe: Probe, warm: Warm) -> None:
        """Its agent may come up late, or die and be started again: what is not ready may become so."""
        fails, good, warming = 0, False, False
        while True:
            answer = probe(node)
            fails = 0 if answer.get("ok") else fails + 1
            if not fails and not good:
                good = True
                self._inbox.put(SpareChecked(0.0, node, good=True))
                if not warming:
                    warming = True
                    self._thread(self._warm, node, warm)
            if fails >= FAILS and good:
                good = False
                self._inbox.put(SpareChecked(0.0, node, good=False, words=str(answer.get("error", ""))))
            if self._end.wait(1.0 if 0 < fails < FAILS else SPARE_EVERY):
                return

    def _warm(self, node: str, warm: Warm) -> None:
        while not warm(node) and not self._end.wait(WARM_EVERY):
            pass

    def _drains(self, nodes: tuple[str, ...], slurm: Callable[[], Slurm]) -> None:
        told: set[str] = set()
        while not self._end.wait(DRAIN_EVERY):
            with contextlib.suppress(TransomError):  # no answer is no drain
                for node in slurm().nodes(nodes):
                    if node.drain and node.name not in told:
                        told.add(node.name)
                        by = f" ({node.reason_user})" if node.reason_user else ""
                        words = f"{node.name} is being drained: {node.reason or 'no reason given'}{by}"
                        self._inbox.put(NodesDraining(0.0, (node.name,), words))
