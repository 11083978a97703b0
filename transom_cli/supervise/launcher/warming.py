"""Has spares read the training's programs and libraries before they are needed: `agent.warm` tells what and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from transom_cli.core.launcher import LadderState, Rung
from transom_cli.plural import several
from transom_cli.rpc.wire import CLIENT, LIMITS
from transom_cli.supervise.agent.warm import MOST
from transom_cli.supervise.launcher.revive import Journal

MAPPED = 10.0  # seconds for an agent to look at its ranks
WARM = 300.0  # seconds for a spare to read one message's files
MESSAGE = LIMITS[CLIENT] // 2  # bytes of file names in one


class Asking(Protocol):
    def ask(self, node: str, name: str, timeout: float, **arguments: object) -> Mapping[str, object]: ...


class Warming:
    """`state` is the launcher's, read from any thread. Whatever fails is journalled, and that is all."""

    def __init__(self, agents: Asking, journal: Journal, state: Callable[[], LadderState]) -> None:
        self._agents, self._journal, self._state = agents, journal, state

    def __call__(self, spare: str) -> bool:
        """Warm it, once the training steps: only then has it loaded what it needs. False: too early, ask again.

        For a thread of its own: takes as long as the spare reads.
        """
        state = self._state()
        if spare not in state.spares:
            return True  # it trains by now, or was given up
        if state.rung is not Rung.TRAINING or state.step < 0:
            return False
        self._journal("spare", node=spare, good=True, words=self._warm(spare, state.launch, state.nodes[0]))
        return True

    def _warm(self, spare: str, launch: int, node: str) -> str:
        answer = self._agents.ask(node, "mapped", MAPPED, launch=launch)
        files = answer.get("files")
        if not isinstance(files, list) or not files:
            return f"not warm: {answer.get('error') or f'no files of launch {launch} are known from {node}'}"
        count = size = 0
        for part in parts((str(path), int(length)) for path, length in files):
            answer = self._agents.ask(spare, "warm", WARM, files=part)
            if not answer.get("ok"):
                return f"not warm: {answer.get('error')}"
            count, size = count + int(str(answer.get("files"))), size + int(str(answer.get("bytes")))
        return f"warm: {several(count, 'file')}, {size / 1e6:.0f} MB"


def parts(files: Iterable[tuple[str, int]], message: int = MESSAGE, most: int = MOST) -> Iterator[list[str]]:
    """The paths in lists that fit into a message each; of files that would make more than `most` bytes, none."""
    part: list[str] = []
    length = total = 0
    for path, size in files:
        if total + size > most:
            continue
        total += size
        more = len(json.dumps(path)) + 1
        if part and length + more > message:
            yield part
            part, length = [], 0
        part.append(path)
        length += more
    if part:
        yield part
