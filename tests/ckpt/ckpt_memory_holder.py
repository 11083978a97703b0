"""A holder on this machine for tests of the lines: what it answers, and how it is asked."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from transom_cli.ckpt.snapshot.asking import Line
from transom_cli.ckpt.snapshot.lines import Answer, Server

SECRET, WRONG = os.urandom(32), os.urandom(32)
WHO = "holder/71/n1"
HERE = "127.0.0.1"
SOON = 20.0  # seconds: reached only when something is broken
SHORT = 0.5  # seconds of a stall that a test waits for


class Holder:
    """Give it views in ``shares``; "share" sends them, "fresh" those that ``fresh`` makes. "hold" waits for ``go``."""

    def __init__(self, rate: float | None = None, stall: float = SOON, allowed: frozenset[str] | None = None) -> None:
        self.shares: dict[str, Sequence[memoryview]] = {}
        self.fresh: Callable[[], Sequence[memoryview]] = list
        self.go = threading.Event()
        self.server = Server(SECRET, WHO, allowed, self.handle, rate, stall)
        self.port = self.server.start(HERE)

    def handle(self, name: str, arguments: dict[str, object]) -> Answer:
        if name == "share":
            return {"of": arguments["of"]}, self.shares[str(arguments["of"])]
        if name == "fresh":
            return {}, self.fresh()
        if name == "hold":
            self.go.wait(3 * SOON)  # longer than any test waits for something else
        if name == "exit":
            raise SystemExit(3)
        if name == "unfit":
            return {"x": object()}, []
        if name == "long":
            return {"x": "y" * (2 << 20)}, []
        if name == "gaps":
            return {}, [memoryview(bytes(8))[::2]]
        return arguments, []

    def line(
        self,
        port: int | None = None,
        secret: bytes = SECRET,
        who: str = WHO,
        stall: float = SOON,
        timeout: float = SOON,
    ) -> Line:
        return Line.connect(HERE, port or self.port, secret, who, timeout, stall)

    def counts(self) -> dict[str, int]:
        return {kind: count for kind, count in self.server.counts.items() if count}

    def still_answers(self) -> bool:
        with self.line() as line:
            return line.ask("echo", SOON, x=1) == {"x": 1}

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.go.set()
        self.server.stop()


class Asking(threading.Thread):
    """A question asked meanwhile: `outcome` is its answer or its error, once `done` has given it."""

    def __init__(self, line: Line, name: str, into: memoryview | None = None, **arguments: object) -> None:
        super().__init__(daemon=True)
        self._line, self._name, self._into, self._arguments = line, name, into, arguments
        self._outcome: object = None
        self.start()

    def run(self) -> None:
        try:
            self._outcome = self._line.ask(self._name, 3 * SOON, self._into, **self._arguments)
        except BaseException as error:
            self._outcome = error

    def done(self) -> object:
        self.join(2 * SOON)
        assert not self.is_alive(), "the question hangs"
        return self._outcome
