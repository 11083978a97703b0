"""A question that may never be answered, such as one to a file system: it is put in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Asked(Generic[T]):
    """Asked at once. One that hangs in the kernel costs its thread, which ends with the process; `ask` never raises."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._begun = time.monotonic()
        self._answer: T | None = None
        self._took = 0.0

        def put() -> None:
            self._answer = ask()
            self._took = time.monotonic() - self._begun

        self._thread = threading.Thread(target=put, name="asked", daemon=True)
        self._thread.start()

    def answer(self, patience: float) -> T | None:
        """None when it is still owed after `patience` seconds; may be called again."""
        self._thread.join(max(0.0, patience))
        return None if self._thread.is_alive() else self._answer

    @property
    def waited(self) -> float:
        """Seconds that the answer took, or that it has been owed for."""
        return time.monotonic() - self._begun if self._thread.is_alive() else self._took


def answers(asked: list[Asked[T]], patience: float) -> list[T | None]:
    """Of all of them, `patience` seconds together."""
    until = time.monotonic() + patience
    return [one.answer(until - time.monotonic()) for one in asked]
