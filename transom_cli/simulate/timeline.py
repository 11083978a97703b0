"""Simulated time: what happens when. Pure.

A heap of calls is all that state machines need: they are handed events and return actions. simpy's processes, which
wait inside generators, would have to be interrupted at every fault, and it would be one more dependency on login nodes.
"""

import heapq
from collections.abc import Callable
from random import Random
from typing import Any


class Timeline:
    """Calls in order of time; calls at the same time in the order in which they were planned."""

    def __init__(self, begin: float, seed: str) -> None:
        self.begin = self.now = begin
        self.random = Random(seed)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0

    def at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        self._planned += 1
        heapq.heappush(self._heap, (max(when, self.now), self._planned, call, args))

    def after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay, call, *args)

    def run(self, until: float, over: Callable[[], bool]) -> None:
        while self._heap and self._heap[0][0] <= until and not over():
            self.now, _, call, args = heapq.heappop(self._heap)
            call(*args)
        self.now = max(self.now, until) if not over() else self.now


class Alarm:
    """Ticks a decider at its own deadline. A deadline that has passed counts once, until the next event."""

    def __init__(self, timeline: Timeline, tick: Callable[[], None]) -> None:
        self._timeline, self._tick = timeline, tick
        self._due: float | None = None
        self._number = 0

    def set(self, due: float | None) -> None:
        if due == self._due:
            return
        self._due, self._number = due, self._number + 1
        if due is not None:
            self._timeline.at(due, self._ring, self._number)

    def _ring(self, number: int) -> None:
        if number == self._number:
            self._due = None
            self._tick()
