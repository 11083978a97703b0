"""What is new near a failure: lines like none of a healthy run, each kind once, the telling ones first. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from transom_cli.core.rootline import clean
from transom_cli.diagnose.unknown.miner import Cluster, Miner
from transom_cli.diagnose.unknown.tape import Line
from transom_cli.diagnose.unknown.templates import Templates
from transom_cli.diagnose.unknown.tokens import ANY, NUMBER, PATH, is_telling, masked

FEW = 0.25  # of the ranks: fewer stand out
SHOWN = 8  # ranks that are named
_EXCEPTION = re.compile(r"(?:^|[\s\]:])(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Fault)\b(?::|$)")
_FRAME = re.compile(  # behind the rank's label, maybe
    r"(?:^|[\]\d]:)\s*"
    r"(?:File \"|#\d+ |frame #|at 0x|\[<?0x|\^+$|Traceback \(most recent|During handling of|The above exception)"
)
# What one kind of line is worth: a telling word more than to stand out; what is worth as much is told by its time.
_WORTH = {"exception": 4.0, "telling": 3.0, "few": 1.5, "once": 0.5, "frame": -3.0}


@dataclass(frozen=True)
class New:
    """A kind of line that was not seen while all was well.

    template: with "#" for numbers, `<path>`, and `<*>` for other words that differ. first: where it was first seen, by
    time where lines have one, else in the order in which they were given. ranks: that said it, as far as known.
    """

    template: str
    count: int
    first: Line
    ranks: tuple[int, ...] = ()

    @property
    def words(self) -> str:
        """For a person, safe for a terminal."""
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
    count: int = 0
    ranks: set[int] = field(default_factory=set)

    def when(self) -> tuple[float, int]:
        return (self.first.at if self.first.at is not None else float("inf"), self.order)


def unrecognised(templates: Templates, lines_near_failure: Iterable[Line]) -> tuple[New, ...]:
    """The kinds of lines that `templates` (this run's healthy phase, merged with past runs) do not know.

    First what tells most: an exception's line, words of something wrong, what few of the ranks say; of what tells as
    much the earliest, since what follows may be its consequence. Lines of a stack come last.
    """
    miner = Miner()
    kinds: dict[int, _Kind] = {}
    everyone: set[int] = set()
    known: dict[str, bool] = {}  # by masked line, since ranks repeat each other
    for order, line in enumerate(lines_near_failure):
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
            kind = kinds[id(cluster)] = _Kind(cluster, line, order)
        elif line.at is not None and line.at < kind.when()[0]:
            kind.first = line
        kind.count += 1
        if line.rank is not None:
            kind.ranks.add(line.rank)
    found = sorted(kinds.values(), key=lambda k: (-_worth(k, len(everyone)), k.when()))
    return tuple(New(_shown(k.cluster.words), k.count, k.first, tuple(sorted(k.ranks))) for k in found)


def _worth(kind: _Kind, ranks: int) -> float:
    text = kind.first.text
    what = {
        "frame": _FRAME.search(text) is not None,
        "exception": _EXCEPTION.search(text) is not None,
        "telling": is_telling(text),
        "few": ranks > 1 and 0 < len(kind.ranks) <= max(1, int(FEW * ranks)),
        "once": kind.count == 1,
    }
    return sum(_WORTH[name] for name, holds in what.items() if holds)


def _shown(words: tuple[str, ...]) -> str:
    return " ".join(word if word in (ANY, PATH) else word.replace(NUMBER, "#") for word in words)
