"""Find new kinds of lines near a failure: unlike any line of the healthy phase, each kind once. Pure.

Each rank's log is split, in one pass and in bounded memory, into its end, where the failure may be, and a sample of the
healthy part before it. The sample keeps the first lines, in which libraries identify themselves, and a share of the
rest that halves whenever the sample is full, spread evenly over the run.
"""

import re
import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from transom_cli.core.log_lines import clean
from transom_cli.diagnose.unknown.templates import ANY, NUMBER, PATH, Cluster, Miner, Templates, has_error_word, masked

END = 400  # lines of each file
NEAR = 120.0  # seconds before the very last line, if lines have a time
FIRST = 4000  # lines of all files together
SAMPLE = 40000


@dataclass(frozen=True)
class Line:
    """A log line. rank: None if unknown. at: wall clock in seconds, None without a time."""

    text: str
    file: str = ""
    lineno: int = 0
    rank: int | None = None
    at: float | None = None


@dataclass
class Tape:
    """Takes the lines of all files, those of one file in order."""

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

    def forget(self, file: str) -> None:
        """Forget the end of a file that was not read to its end."""
        self._ends.pop(file, None)

    def near(self, seconds: float = NEAR) -> tuple[Line, ...]:
        """Return the end of each file, without lines that are older than `seconds` before the very last line."""
        every = [line for ends in self._ends.values() for line in ends]
        last = max((line.at for line in every if line.at is not None), default=None)
        return tuple(x for x in every if x.at is None or last is None or x.at >= last - seconds)

    def healthy(self) -> tuple[str, ...]:
        """Return the lines before those ends. Empty for short logs, which only past runs can be compared with."""
        return (*self._first, *(text for _, text in self._sample))

    def _keep(self, text: str) -> None:
        if len(self._first) < self.first:
            self._first.append(text)
            return
        self._seen += 1
        lot = zlib.crc32(self._seen.to_bytes(8, "little"))  # cannot be in step with a period of the log
        if lot % self._share:
            return
        self._sample.append((lot, text))
        while len(self._sample) > self.sample:
            self._share *= 2
            self._sample = [kept for kept in self._sample if kept[0] % self._share == 0]


FEW = 0.25  # a smaller share of the ranks stands out
SHOWN = 8  # ranks named
_EXCEPTION = re.compile(r"(?:^|[\s\]:])(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Fault)\b(?::|$)")
_FRAME = re.compile(  # optionally after the rank's label
    r"(?:^|[\]\d]:)\s*"
    r"(?:File \"|#\d+ |frame #|at 0x|\[<?0x|[~^]+$|Traceback \(most recent|During handling of|The above exception)"
)
# Weights: an error word counts more than standing out; kinds of equal weight are sorted by time.
_WORTH = {"exception": 4.0, "telling": 3.0, "few": 1.5, "once": 0.5, "frame": -3.0}


@dataclass(frozen=True)
class New:
    """A kind of line that did not occur while all was well.

    Args:
        template: with "#" for numbers, `<path>`, and `<*>` for other words that differ.
        first: its first line, by time if lines have one, else in input order.
        ranks: those that printed it, if known.
        frame: a stack frame, or its line of code.
    """

    template: str
    count: int
    first: Line
    ranks: tuple[int, ...] = ()
    frame: bool = False

    @property
    def words(self) -> str:
        """Return a description that is safe to print on a terminal."""
        where = f"{self.first.file}:{self.first.lineno}" if self.first.file else "its end"
        more = f" and {len(self.ranks) - SHOWN} more" if len(self.ranks) > SHOWN else ""
        ranks = f", ranks {', '.join(map(str, self.ranks[:SHOWN]))}{more}" if self.ranks else ""
        times = f" ({self.count} times{ranks})" if self.count > 1 else ""
        return f"unrecognised, first seen at {clean(where)}{times}: {clean(self.first.text)}"


@dataclass
class _Kind:
    cluster: Cluster
    first: Line
    order: int
    frame: bool
    count: int = 0
    ranks: set[int] = field(default_factory=set)

    def when(self) -> tuple[float, int]:
        return (self.first.at if self.first.at is not None else float("inf"), self.order)


def find_new(templates: Templates, lines_near_failure: Iterable[Line]) -> tuple[New, ...]:
    """Return the kinds of lines that `templates` (the healthy phase, merged with past runs) do not contain.

    The most telling come first: exceptions, error words, lines of few ranks. Of equally telling kinds the earliest
    comes first, since later ones may be consequences. Stack frames come last.
    """
    miner = Miner()
    kinds: dict[int, _Kind] = {}
    everyone: set[int] = set()
    known: dict[str, bool] = {}  # by masked line, since ranks print the same lines
    above: Line | None = None  # the frame whose code this line may be
    for order, line in enumerate(lines_near_failure):
        exception = _EXCEPTION.search(line.text) is not None
        code = above is not None and not exception and (above.file, above.rank) == (line.file, line.rank)
        frame = code or _FRAME.search(line.text) is not None
        above = line if frame and 'File "' in line.text else None
        if line.rank is not None:
            everyone.add(line.rank)
        alike = masked(line.text)
        if alike not in known:
            known[alike] = templates.knows(line.text)
        if known[alike]:
            continue
        cluster = miner.add(line.text)
        if cluster is None:
            continue
        kind = kinds.get(id(cluster))
        if kind is None:
            kind = kinds[id(cluster)] = _Kind(cluster, line, order, frame)
        elif line.at is not None and line.at < kind.when()[0]:
            kind.first = line
        kind.count += 1
        if line.rank is not None:
            kind.ranks.add(line.rank)
    found = sorted(kinds.values(), key=lambda k: (-_worth(k, len(everyone)), k.when()))
    return tuple(New(_shown(k.cluster.words), k.count, k.first, tuple(sorted(k.ranks)), k.frame) for k in found)


def _worth(kind: _Kind, ranks: int) -> float:
    text = kind.first.text
    what = {
        "frame": kind.frame,
        "exception": _EXCEPTION.search(text) is not None,
        "telling": has_error_word(text),
        "few": ranks > 1 and 0 < len(kind.ranks) <= max(1, int(FEW * ranks)),
        "once": kind.count == 1,
    }
    return sum(_WORTH[name] for name, holds in what.items() if holds)


def _shown(words: tuple[str, ...]) -> str:
    return " ".join(word if word in (ANY, PATH) else word.replace(NUMBER, "#") for word in words)
