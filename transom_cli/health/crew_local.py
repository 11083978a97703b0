"""A crew of processes that this one starts: of this node alone, or of others by ssh, or in network namespaces."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence

from transom_cli.health.crew import Message
from transom_cli.health.crew_pipes import EXAMINER, PACKAGE, Pipes, interpreter, line_of

Reach = Callable[[str, list[str]], list[str]]  # a node and the examiner's command line: how it is started there


def here(_node: str, argv: list[str]) -> list[str]:
    return argv


def by_ssh(node: str, argv: list[str]) -> list[str]:
    """Nothing is asked on a terminal. ssh gives the words to a shell, so they are quoted for one."""
    return ["ssh", "-oBatchMode=yes", "-oConnectTimeout=5", "--", node, shlex.join(["exec", *argv])]


class LocalCrew(Pipes):
    """`reach` gives the command line that starts an examiner on a node. env: by node, more of its environment."""

    def __init__(
        self, nodes: Sequence[str], reach: Reach = here, env: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        super().__init__()
        self._nodes = tuple(nodes)
        argv = [*interpreter(), "-m", EXAMINER]
        self._ask = {}
        for node in self._nodes:
            whole = {**os.environ, "PYTHONPATH": _path(), **(env or {}).get(node, {})}
            self._ask[node] = self.add(reach(node, [*argv, "--node", node]), whole)

    @property
    def nodes(self) -> tuple[str, ...]:
        return self._nodes

    def gone(self) -> tuple[str, ...]:
        """Nodes whose examiner has ended; all that it has said can be received before this tells of it."""
        return tuple(node for node, ask in self._ask.items() if self.ended(ask))

    def send(self, message: Message, to: Sequence[str] = ()) -> None:
        for node in to or self._nodes:
            self._ask[node].put(line_of(message))


def _path() -> str:
    """This very package, from wherever the process is started."""
    return os.pathsep.join(filter(None, (str(PACKAGE), os.environ.get("PYTHONPATH"))))
