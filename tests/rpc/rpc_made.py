"""A server with bulk replies for the tests: what it answers, and a call in a thread of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

import xxhash

from transom_cli.rpc.bulk import PIECE, Hash
from transom_cli.rpc.client import Client
from transom_cli.rpc.server import Server
from transom_cli.rpc.throttle import Throttle
from transom_cli.rpc.verbs import Call, Reply

SECRET, WRONG = os.urandom(32), os.urandom(32)
WHO = "snapshots/71/n1"
HERE = "127.0.0.1"
SOON = 20.0  # seconds: reached only when something is broken
SHORT = 0.5  # seconds of a stall that a test waits for


def make_hash(seed: int) -> Hash:
    return xxhash.xxh3_128(seed=seed)


def slow_down(server: Server, rate: float) -> None:
    """Limit the bytes of bulk that a server sends per second, after a first burst."""
    throttle, go_on = Throttle(rate), server._go_on

    def wait() -> None:
        server._stopping.wait(throttle.take(PIECE))
        go_on()

    server._go_on = wait  # type: ignore[method-assign]


class BulkServer:
    """Give it views in ``shares``; "share" sends them, "fresh" those that ``fresh`` makes. "hold" waits for ``go``."""

    def __init__(self, rate: float | None = None, stall: float = SOON, allowed: frozenset[str] | None = None) -> None:
        self.shares: dict[str, Sequence[memoryview]] = {}
        self.fresh: Callable[[], Sequence[memoryview]] = list
        self.go = threading.Event()
        self.tcp = Server(SECRET, WHO, allowed, self.handle, stall=stall, make_hash=make_hash)
        if rate is not None:
            slow_down(self.tcp, rate)
        self.port = self.tcp.start(HERE)

    def handle(self, call: Call) -> Reply:
        name, fields = call.verb, call.request
        if name == "share":
            return Reply({"of": fields["of"]}, self.shares[str(fields["of"])])
        if name == "fresh":
            return Reply({}, self.fresh())
        if name == "hold":
            self.go.wait(3 * SOON)  # longer than any test waits for something else
        if name == "exit":
            raise SystemExit(3)
        if name == "unfit":
            return Reply({"x": object()})
        if name == "long":
            return Reply({"x": "y" * (2 << 20)})
        if name == "gaps":
            return Reply({}, [memoryview(bytes(8))[::2]])
        return Reply(fields)

    def connect(
        self,
        port: int | None = None,
        secret: bytes = SECRET,
        who: str = WHO,
        stall: float = SOON,
        timeout: float = SOON,
    ) -> Client:
        return Client.connect(
            HERE, port or self.port, secret, who, timeout, kind="snapshot daemon", stall=stall, make_hash=make_hash
        )

    def counts(self) -> dict[str, int]:
        return {kind: count for kind, count in self.tcp.counts.items() if count}

    def still_answers(self) -> bool:
        with self.connect() as client:
            return client.call("echo", SOON, x=1) == {"x": 1}

    def __enter__(self) -> BulkServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.go.set()
        self.tcp.stop()


class Calling(threading.Thread):
    """A call in the background. `done` returns its reply or its error."""

    def __init__(self, client: Client, verb: str, into: memoryview | None = None, **fields: object) -> None:
        super().__init__(daemon=True)
        self._client, self._verb, self._into, self._fields = client, verb, into, fields
        self._outcome: object = None
        self.start()

    def run(self) -> None:
        try:
            self._outcome = self._client.call(self._verb, 3 * SOON, self._into, **self._fields)
        except BaseException as error:
            self._outcome = error

    def done(self) -> object:
        self.join(2 * SOON)
        assert not self.is_alive(), "the call hangs"
        return self._outcome
