"""Ranks that the kernel killed for lack of memory: `rank-<n>.kernel.log` beside the rank's log has the kernel's lines.

The kernel names only process IDs. They are compared with those that heartbeats and exit records give the rank, and with
those that its own log names as killed (a DataLoader's worker). Lines about other processes are no evidence.
"""

import contextlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from transom_cli.diagnose.logs.matches import Hit
from transom_cli.files import publish_text, read_json
from transom_cli.health.checks.kernel import KernelLog
from transom_cli.heartbeat.table import RankBeat

NEAR = 30.0  # seconds between the kernel's line and the rank's end: much memory takes a while to free
RECENT = 120.0  # seconds from the line until the logs are read: the other ranks are ended in between
_KEPT = 256  # lines
_BATCHES = 20  # reads of the kernel log at once: one kill writes a line per process of the node
# From Linux 4.19 on, one line; before, the process that was killed had its own.
_KILLED = re.compile(r"(?:(?:Memory cgroup out|Out) of memory: )?Killed process (\d{1,10})\b")
_NAMED = re.compile(r"\b[Pp][Ii][Dd](?:\(s\))?[ :=]{1,2}(\d{1,10}(?:, \d{1,10}){0,63})\b")


class KernelKills:
    """Follows the kernel log from now on. If this user may not read it, nothing is found. Used by several threads."""

    def __init__(self, node: str, log: KernelLog | None = None, clock: Callable[[], float] = time.time) -> None:
        self._node, self._log, self._clock = node, log or KernelLog(), clock
        self._found: deque[tuple[float, int, str]] = deque(maxlen=_KEPT)  # when it was read, process ID, line
        self._lock = threading.Lock()

    def look(self) -> None:
        with self._lock:
            for _ in range(_BATCHES):
                lines = self._log.lines()
                if not lines:
                    return
                kills = ((match, line) for line in lines if (match := _KILLED.match(line)))
                self._found.extend((self._clock(), int(match[1]), line) for match, line in kills)

    def write(self, folder: Path, exits: Path, launch: int, rows: Sequence[RankBeat], hits: Iterable[Hit]) -> list[str]:
        """Write the kernel's lines about ranks of the launch, and return the names of the files.

        Args:
            folder: The launch's logs.
            exits: The launch's exit records.
            hits: What these logs say.
        """
        self.look()
        since = self._clock() - RECENT
        with self._lock:
            recent = [one for one in self._found if one[0] >= since]
        if not recent:
            return []
        named = _named(hits)
        names = []
        for row in (row for row in rows if row.launch == launch):
            ended = read_json(exits / f"rank-{row.rank}.json")
            at_end = ended.get("wall")
            near = [one for one in recent if not isinstance(at_end, float) or abs(one[0] - at_end) <= NEAR]
            own = {row.pid, ended.get("pid"), *named.get(row.rank, ())}
            lines = [f"{self._node} kernel: {line}\n" for _, pid, line in near if pid in own]
            if lines:
                with contextlib.suppress(OSError):  # the other logs are read all the same
                    publish_text(folder / (name := f"rank-{row.rank}.kernel.log"), "".join(lines))
                    names.append(name)
        return names


def _named(hits: Iterable[Hit]) -> dict[int | None, set[int]]:
    """Return the process IDs that each rank's log names where it reports a failure."""
    found: dict[int | None, set[int]] = {}
    for hit in hits:
        for numbers in _NAMED.findall(hit.record.text):
            found.setdefault(hit.record.rank, set()).update(map(int, numbers.split(", ")))
    return found
