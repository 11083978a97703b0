"""The job's memory holders, as one of them sees them: asked one by one or all at once, itself by a plain call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from transom_cli.ckpt.snapshot.asking import Line, LineFailed
from transom_cli.ckpt.snapshot.stream import STALL

CONNECT = 5.0  # seconds for a neighbour to take a connection and prove itself
AT_ONCE = 64

Answer = dict[str, Any]
Handler = Callable[[str, dict[str, object]], tuple[Answer, Sequence[memoryview]]]


def identity(node: str) -> str:
    """Whom an asker must reach, so that an answer of another node's holder is not taken for this one's."""
    return f"memory/{node}"


class Neighbours:
    """`places`: address and port by node, this one's own among them. `answer`: what this node's own holder does."""

    def __init__(
        self, directory: str, own: str, places: Mapping[str, tuple[str, int]], key: bytes, answer: Handler
    ) -> None:
        self.own, self._places, self._key, self._answer = own, dict(places), key, answer
        self._directory = directory  # by which a holder knows the training

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(sorted({self.own, *self._places}))

    def only(self, nodes: Iterable[str]) -> Neighbours:
        """Those of them, and this one."""
        places = {node: self._places[node] for node in nodes if node in self._places}
        return Neighbours(self._directory, self.own, places, self._key, self._answer)

    def ask(self, node: str, name: str, timeout: float, into: memoryview | None = None, **about: object) -> Answer:
        """Raises LineFailed. `into`: takes the bytes that come with the answer, exactly as many."""
        if node == self.own:
            return self._ask_own(name, into, about)
        if node not in self._places:
            raise LineFailed(f"no memory holder is known on {node}")
        address, port = self._places[node]
        # Where bytes come, they come steadily; else the answer may be long in the making.
        stall = STALL if into is not None else timeout
        with Line.connect(address, port, self._key, identity(node), min(CONNECT, timeout), stall) as line:
            return line.ask(name, timeout, into, directory=self._directory, **about)

    def ask_all(
        self, name: str, timeout: float, nodes: Iterable[str] | None = None, **about: object
    ) -> dict[str, Answer]:
        """By node its answer, or {"error": why there is none}."""
        asked = tuple(self.nodes if nodes is None else nodes)

        def one(node: str) -> Answer:
            try:
                return self.ask(node, name, timeout, None, **about)
            except LineFailed as error:
                return {"error": f"{error.what}: {error.why}" if error.why else error.what}

        if len(asked) == 1:
            return {asked[0]: one(asked[0])}
        with ThreadPoolExecutor(min(AT_ONCE, max(1, len(asked))), thread_name_prefix="neighbours") as pool:
            return dict(zip(asked, pool.map(one, asked), strict=True))

    def _ask_own(self, name: str, into: memoryview | None, about: dict[str, object]) -> Answer:
        try:
            answer, pieces = self._answer(name, about)
            if into is not None:
                at = 0
                for piece in pieces:
                    into[at : at + len(piece)] = piece
                    at += len(piece)
                if at != len(into):
                    raise ValueError(f"{at} bytes where {len(into)} were asked for")
        except Exception as error:
            raise LineFailed(f"{name} could not be done here", f"{type(error).__name__}: {error}") from error
        return answer
