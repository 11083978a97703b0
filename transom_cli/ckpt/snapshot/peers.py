"""The snapshot daemons of a job, as one of them calls them: one by one or all at once, itself by a plain call."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xxhash

from transom_cli.rpc.bulk import Hash
from transom_cli.rpc.client import Client
from transom_cli.rpc.errors import RpcError
from transom_cli.rpc.stream import STALL
from transom_cli.rpc.verbs import Call, Handler

CONNECT = 5.0  # seconds for a peer to take a connection and prove itself
AT_ONCE = 64

Answer = dict[str, Any]


def make_hash(seed: int) -> Hash:
    """Return the hash of bulk bytes between daemons (see `rpc.bulk`)."""
    return xxhash.xxh3_128(seed=seed)


def identity(node: str) -> str:
    """Return what a node's daemon proves to be, so that no other daemon can answer for it."""
    return f"memory/{node}"


class Peers:
    """Args:
    places: address and port by node, including this one's own.
    answer: how this node's own daemon answers.
    """

    def __init__(
        self, directory: str, own: str, places: Mapping[str, tuple[str, int]], key: bytes, answer: Handler
    ) -> None:
        self.own, self._places, self._key, self._answer = own, dict(places), key, answer
        self._directory = directory  # by which a daemon knows the training

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(sorted({self.own, *self._places}))

    def call(self, node: str, verb: str, timeout: float, into: memoryview | None = None, **request: object) -> Answer:
        """Return the answer of that node's daemon; its bulk bytes fill `into` exactly. Raises RpcError."""
        if node == self.own:
            return self._call_own(verb, into, request)
        if node not in self._places:
            raise RpcError(f"No snapshot daemon is known on {node}")
        address, port = self._places[node]
        stall = STALL if into is not None else None  # bulk bytes arrive steadily; any other reply may take long
        with Client.connect(
            address, port, self._key, identity(node), min(CONNECT, timeout),
            kind="snapshot daemon", stall=stall, make_hash=make_hash,
        ) as client:  # fmt: skip
            return client.call(verb, timeout, into, directory=self._directory, **request)

    def call_all(
        self, verb: str, timeout: float, nodes: Iterable[str] | None = None, **request: object
    ) -> dict[str, Answer]:
        """Return the answer of each node, or {"error": why there is none}."""
        called = tuple(self.nodes if nodes is None else nodes)

        def one(node: str) -> Answer:
            try:
                return self.call(node, verb, timeout, None, **request)
            except RpcError as error:
                return {"error": f"{error.what}: {error.why}" if error.why else error.what}

        if len(called) == 1:
            return {called[0]: one(called[0])}
        with ThreadPoolExecutor(min(AT_ONCE, max(1, len(called))), thread_name_prefix="peers") as pool:
            return dict(zip(called, pool.map(one, called), strict=True))

    def _call_own(self, verb: str, into: memoryview | None, request: dict[str, object]) -> Answer:
        try:
            reply = self._answer(Call(verb, request))
            if into is not None:
                at = 0
                for piece in reply.bulk:
                    into[at : at + len(piece)] = piece
                    at += len(piece)
                if at != len(into):
                    raise ValueError(f"{at} bytes, not {len(into)}")
        except Exception as error:
            raise RpcError(f"{verb} failed on this node", f"{type(error).__name__}: {error}") from error
        return reply.answer


class Membership:
    """The peers of the newest launch. They are replaced as a whole when another launch joins."""

    def __init__(self, current: Peers) -> None:
        self.current = current
