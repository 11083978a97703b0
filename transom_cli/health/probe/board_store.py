"""A group's board as the store over which torch's backends find each other."""

from __future__ import annotations

import time
from datetime import timedelta

import torch.distributed as dist

from transom_cli.health.probe.board import Board


class Late(RuntimeError):
    """The deadline came first."""


class BoardStore(dist.Store):
    """end: when, by the monotonic clock, nobody waits any longer."""

    def __init__(self, board: Board, prefix: str, end: float) -> None:
        super().__init__()
        self._board, self._prefix, self._end = board, prefix, end

    def set(self, key: str, value: str | bytes) -> None:
        self._board.set(f"{self._prefix}/{key}", value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        return self._values([key])[0]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._values(keys, timeout)

    def check(self, keys: list[str]) -> bool:
        return None not in self._board.get([f"{self._prefix}/{key}" for key in keys], 0.0)

    def _values(self, keys: list[str], timeout: timedelta | None = None) -> list[bytes]:
        left = max(self._end - time.monotonic(), 0.0)
        wait = left if timeout is None else min(left, timeout.total_seconds())
        values = self._board.get([f"{self._prefix}/{key}" for key in keys], wait)
        if None in values:
            raise Late(f"nobody wrote {', '.join(keys)} within {wait:.1f} s")
        return [value for value in values if value is not None]
