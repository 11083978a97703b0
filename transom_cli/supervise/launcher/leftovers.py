"""Ranks that were left behind on a node which did not answer, or could not do it, when their launch was ended.

Such a node carries no rank of the attempt any more. But one that was frozen or cut off comes back with its old ranks
alive, on its devices and on the shared file system, and nobody else would end them before the whole job ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from transom_cli.core.launcher import LaunchEnded
from transom_cli.supervise.launcher.revive import Journal

AGAIN = 10.0  # seconds between two tries

End = Callable[[int, tuple[str, ...], float], LaunchEnded]  # (launch, nodes, grace): as `Agents.end`


class Leftovers:
    """Repeats the end of a launch that is over, on one node, until the agent there says that nothing is left.

    What is ended is a launch by its number, and only one that `left` was told of: never the present one's ranks.
    """

    def __init__(self, end: End, journal: Journal) -> None:
        self._end, self._journal = end, journal
        self._left: set[tuple[str, int]] = set()
        self._over = threading.Event()

    def left(self, launch: int, ended: LaunchEnded, nodes: tuple[str, ...]) -> None:
        """What could not be ended on `nodes`, as the answer to the end of the launch tells. Returns at once."""
        stuck = {node for node, _ in ended.survivors}
        for node in nodes:
            if (node in ended.unheard or node in stuck) and (node, launch) not in self._left:
                self._left.add((node, launch))
                work = threading.Thread(target=self._try, args=(node, launch), name="leftovers", daemon=True)
                work.start()

    def on(self, node: str) -> bool:
        """Whether ranks of a former launch may still live there."""
        return any(known == node for known, _ in tuple(self._left))

    def stop(self) -> None:
        self._over.set()

    def _try(self, node: str, launch: int) -> None:
        told = ""
        while not self._over.wait(AGAIN):
            try:
                ended = self._end(launch, (node,), 0.0)
            except Exception:  # a fault of ours, or too many threads: as if the node were not heard
                continue
            if node in ended.unheard:
                continue
            words = _words(node, launch, ended)
            if words != told:
                told = words
                self._journal("leftovers", node=node, words=words)
            if not ended.survivors:
                self._left.discard((node, launch))
                return


def _words(node: str, launch: int, ended: LaunchEnded) -> str:
    lives = ", ".join(what for _, what in ended.survivors)
    left = f"of launch {launch} there lives on: {lives}" if lives else f"nothing of launch {launch} is left there"
    return f"{node} answers again: {left}"
