"""The hits of one log, put together: what is bounded, what wraps another, what belongs to a traceback or a chain. Pure.

Some lines tell only of those beside them: a traceback's head (what is below is an exception, and not a message),
Python's words between two exceptions of a chain (the most special one tells), torchrun's box of failures (the host
stands above the rank), and a loader's words around the exception of its worker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from transom_cli.diagnose.logs import grammar
from transom_cli.diagnose.logs.hit import RAISED, Hit
from transom_cli.diagnose.logs.rule import Level, Rule

FIRST = 8  # lines that are kept of one rule and one rank: the first ones, and the last; those between are counted
MOST = 4000  # of one file
TRACEBACK = "traceback"  # the rule of a traceback's head
CHAINED = "chained"  # the rule of Python's words between two exceptions of one chain
RAY = "ray-task"  # the rule of Ray's exception of a task, below which it prints what the task had raised: a chain, too
BOX_HOST = "elastic-box-host"  # in torchrun's box of failures the line above the rank's
DESTRUCTOR = (
    "destructor"  # the rule of exceptions that only destructors raise: Python ignores them, wherever it says so
)
INTERRUPT = "interrupted"  # the rule of Python's KeyboardInterrupt: what it met on its way up was no failure
CODE = 4  # blanks before the lines of code in a traceback
BELOW = 400  # lines below a head, or a wrapper's words, in which the exception itself is looked for
NEAR = 60  # lines of a traceback that was ignored
RELAYED = ("I", "D")  # levels at which nobody reports an exception: a launcher labels all so that its workers print
SPECIAL = 35  # weight of a rule from which on what it knows is told all the same


def collected(hits: Iterable[Hit], name: str, start: int = 0) -> list[Hit]:
    """Of a whole log, which is called `name`. start: bytes of it that were not read."""
    collector = Collector(name, start)
    collector.take(hits)
    return collector.drain()


class Collector:
    """Of a log that may still grow."""

    def __init__(self, name: str, start: int = 0) -> None:
        self._name, self._start = name, start
        self._rank, self._node = grammar.of_file(name)
        self._kept: list[Hit] = []
        self._counts: dict[tuple[str, int | None], list[int]] = {}
        self._wrapper: Hit | None = None
        self._chain: Hit | None = None
        self._host: Hit | None = None
        self._ignored: Hit | None = None
        self._traced: dict[int | None, int] = {}  # by rank, the line of the last traceback's head
        self._inside: dict[int | None, int] = {}  # the indent of those whose end has not come

    def take(self, hits: Iterable[Hit], lines: int = 0) -> None:
        """The next ones; their line numbers begin after `lines`."""
        for hit in hits:
            placed = self._beside(self._placed(hit, lines))
            if placed is not None and not self._replaces(placed):
                self._keep(placed)

    def drain(self) -> list[Hit]:
        """What was taken since the last call."""
        kept, self._kept, self._counts = self._kept, [], {}
        self._wrapper = self._chain = None
        return kept

    def _placed(self, hit: Hit, lines: int) -> Hit:
        """Named by file, rank and node."""
        record = hit.record
        if (record.rank is None and self._rank is not None) or (not record.node and self._node):
            rank = self._rank if record.rank is None else record.rank
            record = replace(record, rank=rank, node=record.node or self._node)
        lineno, offset = lines + hit.lineno, self._start + hit.offset
        return replace(hit, record=record, file=self._name, lineno=lineno, offset=offset)

    def _beside(self, hit: Hit) -> Hit | None:
        """With what the lines above it tell; None for a line that only tells of others, or that they make harmless."""
        if hit.level is Level.BENIGN:
            self._ignored = hit
            return None
        if hit.rule.name in (BOX_HOST, TRACEBACK, CHAINED):
            self._remember(hit)
            return None
        if hit.record.rank in self._inside:
            indent = hit.record.indent - self._inside[hit.record.rank]
            if indent >= CODE and hit.lineno - self._traced[hit.record.rank] < BELOW:
                return None  # the program's own text, as a traceback shows it
            del self._inside[hit.record.rank]
        if self._ignored is not None and self._ignored.record.rank == hit.record.rank:
            near, self._ignored = hit.lineno - self._ignored.lineno <= NEAR, None
            if near and (hit.level < Level.CAUSE or hit.rule.weight < SPECIAL):
                return None
        if hit.rule.name == DESTRUCTOR:
            return None
        if self._host is not None and hit.lineno == self._host.lineno + 1:
            hit = replace(hit, where={**self._host.where, **hit.where})
        traced = hit.lineno - self._traced.get(hit.record.rank, -BELOW) < BELOW
        if hit.rule.traced and not traced:
            hit = replace(hit, printed=True)
        if traced and hit.record.level[:1] in RELAYED and RAISED.match(hit.record.text):
            hit = replace(hit, record=replace(hit.record, level=""))
        return hit

    def _remember(self, hit: Hit) -> None:
        rank = hit.record.rank
        if hit.rule.name == BOX_HOST:
            self._host = hit
        elif hit.rule.name == TRACEBACK:
            self._traced[rank] = hit.lineno
            # its lines of files stand two blanks further in, and are all that an excerpt may have of it
            self._inside.setdefault(rank, max(0, hit.record.indent - (2 if hit.record.text.startswith("File") else 0)))
        else:
            last = self._kept[-1] if self._kept else None
            self._chain = last if last is not None and last.record.rank == rank else None

    def _replaces(self, hit: Hit) -> bool:
        """Whether it took the place of what was kept last: a wrapper's words, or a weaker exception of its chain."""
        wrapper, chain = self._wrapper, self._chain
        if wrapper is not None and (hit.lineno - wrapper.lineno > BELOW or _wraps(wrapper, hit)):
            self._wrapper = None
            if hit.lineno - wrapper.lineno <= BELOW and self._kept and self._kept[-1] is wrapper:
                where = {**hit.where, **wrapper.where}
                self._kept[-1] = replace(hit, rule=_wrapped(wrapper.rule, hit.rule), where=where)
                return True
        if chain is not None and (_wraps(chain, hit) or (_same_rank(chain, hit) and hit.rule.name == INTERRUPT)):
            if self._kept and self._kept[-1] is chain and hit.lineno - chain.lineno <= BELOW:
                # of equals, the one further out
                self._kept[-1] = self._chain = max(hit, chain, key=lambda h: h.rule.weight)
                return True
            self._chain = None
        return False

    def _keep(self, hit: Hit) -> None:
        known = self._counts.setdefault((hit.rule.name, hit.record.rank), [])
        if len(known) < FIRST and len(self._kept) < MOST:
            known.append(len(self._kept))
            self._kept.append(hit)
            self._wrapper = hit if hit.rule.below else self._wrapper
            self._chain = hit if hit.rule.name == RAY else self._chain
        elif known:
            last = known[-1]
            self._kept[last] = replace(hit, more=self._kept[last].more + 1)


def _wraps(wrapper: Hit, hit: Hit) -> bool:
    return _same_rank(wrapper, hit) and hit.level >= Level.CAUSE and not hit.rule.below


def _same_rank(one: Hit, other: Hit) -> bool:
    return one.record.rank == other.record.rank


def _wrapped(wrapper: Rule, inner: Rule) -> Rule:
    """What is wrapped tells the cause if it is special (out of memory in a loader); else the wrapper's place does."""
    return inner if inner.weight > wrapper.weight else wrapper
