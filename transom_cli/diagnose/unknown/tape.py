"""Parts each rank's log, in one pass and in bounded memory, into its end and a sample of what came before. Pure.

The end is where a failure may be; what came before was healthy. Of that the first lines are kept, where libraries say
what they are, and of the rest a share that halves whenever the sample is full: evenly over the whole run.
"""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass, field

END = 400  # lines of each file
NEAR = 120.0  # seconds before the last line of all, where lines have a time
FIRST = 4000  # lines of all files together
SAMPLE = 40000


@dataclass(frozen=True)
class Line:
    """A line of a log. rank: None where that is not known. at: wall clock in seconds, None where it has no time."""

    text: str
    file: str = ""
    lineno: int = 0
    rank: int | None = None
    at: float | None = None


@dataclass
class Tape:
    """Feed it the lines of all files, each file's in its own order."""

    end: int = END
    first: int = FIRST
    sample: int = SAMPLE
    _ends: dict[str, deque[Line]] = field(default_factory=dict)
    _first: list[str] = field(default_factory=list)
    _sample: list[tuple[int, str]] = field(default_factory=list)
    _share: int = 1
    _seen: int = 0

    def add(self, line: Line) -> None:
        ends = self._ends.get(line.file)
        if ends is None:
            ends = self._ends[line.file] = deque(maxlen=self.end)
        if len(ends) == self.end:
            self._keep(ends[0].text)
        ends.append(line)

    def near(self, seconds: float = NEAR) -> tuple[Line, ...]:
        """The end of each file, without what is known to be older than `seconds` before the last line of all."""
        every = [line for ends in self._ends.values() for line in ends]
        last = max((line.at for line in every if line.at is not None), default=None)
        return tuple(x for x in every if x.at is None or last is None or x.at >= last - seconds)

    def healthy(self) -> tuple[str, ...]:
        """Of what came before those ends. Empty where the logs are shorter than that: then only past runs can tell."""
        return (*self._first, *(text for _, text in self._sample))

    def _keep(self, text: str) -> None:
        if len(self._first) < self.first:
            self._first.append(text)
            return
        self._seen += 1
        lot = zlib.crc32(self._seen.to_bytes(8, "little"))  # no period of the log's own can follow it
        if lot % self._share:
            return
        self._sample.append((lot, text))
        while len(self._sample) > self.sample:
            self._share *= 2
            self._sample = [kept for kept in self._sample if kept[0] % self._share == 0]
