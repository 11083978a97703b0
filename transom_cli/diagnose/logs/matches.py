"""Matched log lines: collect those of one log, and pass them between agents and the launcher. Pure.

A hit is a line that a rule matches, with the rank and node it blames. Some lines only change the meaning of their
neighbours: a traceback's head (an exception follows, not a message), Python's text between two chained exceptions (the
most specific exception counts), torchrun's failure box (the host is above the rank), and a data loader's text around
the exception of its worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, cast

from transom_cli.core.log_lines import NOT_SAVED, clean
from transom_cli.diagnose.clue import Category, Culprit
from transom_cli.diagnose.logs import grammar
from transom_cli.diagnose.logs.grammar import Record
from transom_cli.diagnose.logs.lazy_re import lazy_re
from transom_cli.diagnose.logs.named import named
from transom_cli.diagnose.logs.rulebook import Blames, Level, Rule

RAISED = lazy_re(r"[\w.]*(?:Error|Exception)\b")  # the beginning of an exception's line
_KERNEL = lazy_re(r"(?:^|\s)([A-Za-z0-9][\w.-]{0,62}) kernel: ")  # a kernel's line that a monitor relays
_PCI = lazy_re(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.(\d))?[.:]?")
_WARNS = lazy_re(r"\.py:\d+: \w+Warning: ")  # Python's warnings module


PEERS = Category.NETWORK_FABRIC, Category.NCCL_HANG, Category.RENDEZVOUS_PORT  # lines of these name peers


@dataclass(frozen=True)
class Found:
    """raw: the line, or its part between carriage returns. lineno: from 1. offset: of the line in the file, bytes."""

    raw: bytes
    lineno: int
    offset: int


@dataclass(frozen=True)
class Hit:
    """A log line that a rule matches.

    Args:
        lineno: from 1.
        offset: of the line in its file, in bytes.
        more: how many equal lines were only counted.
        printed: an exception's line without a traceback above it.
        launch: which launch of its file printed it, from 0.
        reread: reads the line in full; None if that has been done. Until then, `record` is that of a line like it.
    """

    rule: Rule
    record: Record
    where: dict[str, str] = field(default_factory=dict)
    file: str = ""
    lineno: int = 0
    offset: int = 0
    more: int = 0
    printed: bool = False
    reread: Callable[[], Hit] | None = field(default=None, compare=False, repr=False)
    launch: int = 0

    @property
    def level(self) -> Level:
        return min(self.rule.level, Level.SIGN) if self.printed else self.rule.level

    @property
    def mild(self) -> bool:
        """Whether this is a warning, which counts only beside a failure. Excludes lines whose author knows or causes
        the end, and loss values, which a healthy training prints at the same level."""
        weak = self.rule.level in (Level.SIGN, Level.CAUSE) and self.rule.category is not Category.NUMERIC_DIVERGENCE
        return weak and (self.record.mild or _WARNS.search(self.record.line) is not None)

    @property
    def culprit(self) -> Culprit:
        """Return whom the line blames: nobody if the rule says so, or if no rank or node is named."""
        encode, record = self.where, self.record
        if self.rule.blames is Blames.NOBODY:
            return Culprit()
        node, rank = encode.get("node") or encode.get("peer", ""), encode.get("rank", "")
        if self.rule.blames is Blames.NAMED:
            return Culprit(node, int(rank) if rank.isdigit() else None, _pci(encode.get("device", "")))
        device = _pci(encode.get("device", "")) or record.device
        if not node and not record.node:
            kernel = _KERNEL.search(record.text)
            node = kernel[1] if kernel else ""
        culprit = Culprit(node or record.node, int(rank) if rank.isdigit() else record.rank, device)
        return culprit if self.rule.category in PEERS else _completed(culprit, record.text)


def _completed(culprit: Culprit, text: str) -> Culprit:
    """Add the rank and the node that the line's own words name, unless they contradict its labels."""
    if culprit.rank is not None and culprit.node:
        return culprit
    said = named(text)
    if said.rank is not None and culprit.rank not in (None, said.rank):
        return culprit
    if said.node and culprit.node not in ("", said.node):
        return culprit
    return Culprit(culprit.node or said.node, said.rank if culprit.rank is None else culprit.rank, culprit.device)


def _pci(device: str) -> str:
    """Return a PCI address as NVML and lspci write it: domain of four digits, lower case, with its function."""
    found = _PCI.fullmatch(device)
    return f"{found[1][-4:]:0>4}:{found[2]}.{found[3] or 0}".lower() if found else device


FIRST = 8  # lines kept per rule and rank: the first ones and the last; those between are counted
MOST_PER_FILE = 4000
TRACEBACK = "traceback"  # the rule for a traceback's head
CHAINED = "chained"  # the rule for Python's text between two chained exceptions
RAY = "ray-task"  # the rule for the exception of a Ray task, below which Ray prints what the task raised: a chain too
HOSTS = ("elastic-box-host", "actor-ip")  # rules for a host on its own line: torchrun's box, Ray's actor; more is below
LAUNCH = "new-launch"  # the rule for what the first process of a launch prints
RESTARTS = "attempts left"  # torchrun announces a launch
OVER = ("task-exited", "elastic-box", "step-ended", "mpi-abort")  # rules for a launcher that reports a failed launch
# what ends a job from outside
ENDINGS = Category.SLURM_NODE_FAIL, Category.SLURM_TIME_LIMIT, Category.SLURM_PREEMPTED, Category.SLURM_CANCELLED
LATER = 300.0  # seconds: long enough for Slurm to kill a job's processes
LEFT = "force-terminated"  # the rule for srun's last line, through which all output of its tasks comes
DESTRUCTOR = "destructor"  # the rule for exceptions in destructors, which Python ignores
ALONE = (LAUNCH, TRACEBACK, CHAINED, *HOSTS, DESTRUCTOR)  # rules whose lines only say something about others
_ALWAYS = (*ALONE, LEFT)  # rules whose lines are never only counted
INTERRUPT = "interrupted"  # the rule for KeyboardInterrupt: exceptions that it passed on its way up are no failures
CODE = 4  # blanks before a line of code in a traceback
BELOW = 400  # lines below a head, or a wrapper's text, that are searched for the exception
NEAR = 60  # lines of an ignored traceback
RELAYED = ("I", "D")  # no program reports an exception at these levels: a launcher relabels what its workers print
SPECIAL = 35  # from this weight on, a rule's line counts even inside a wrapper


class Tally:
    """Lines that are only counted: those of one rule, rank and process, while it is open. first: a hit of such a line,
    None for lines that say nothing. at: where the last one begins. read: returns its hit. last: that hit, once the
    block with the line has been read; `at` is then less than 0."""

    __slots__ = ("at", "first", "last", "lines", "open", "read")

    def __init__(self, first: Hit | None, read: Callable[[Hit, int], Hit]) -> None:
        self.first, self.last, self.read = first, first, read
        self.open, self.lines, self.at = first is None, 0, 0


def collect(hits: Iterable[Hit], name: str) -> list[Hit]:
    """Collect the hits of a whole log named `name`."""
    collector = Collector(name)
    for hit in hits:
        collector.take(hit)
    return [*collector.drain(), *collector.unfinished()]


class Collector:
    """Collects the hits of one log, which may still grow."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rank, self._node = grammar.of_file(name)
        self._kept: list[Hit] = []
        self._counts: dict[tuple[str, int | None, int], list[int]] = {}
        self._launch, self._over = 0, 0  # over: the line that reports the end of the launch, 0 for none
        self._last: dict[int, tuple[Hit, int]] = {}  # by place: the last line that was only counted, and how many were
        self._open: list[Tally] = []
        self._placed_last: tuple[Record | None, Record] = None, Record("", "")
        self._at = 0  # the line of the last hit
        self._wrapper: Hit | None = None
        self._chain: Hit | None = None
        self._host: Hit | None = None
        self._ignored: Hit | None = None
        self._heads: dict[int | None, Hit] = {}  # by rank, the head of the last traceback, while nothing follows it
        self._traced: dict[int | None, int] = {}  # by rank, the line of the last traceback's head
        self._inside: dict[int | None, int] = {}  # by rank, the indent of a traceback that has not ended
        self._frames: dict[int | None, Rule] = {}  # by rank, the heaviest known frame of its traceback
        self._raised: dict[int, int] = {}  # by rank, the launch in which it has raised an exception
        self._pids: dict[tuple[str, str], str] = {}  # by node and device, the process that uses it
        self._left = False  # srun has printed its last line
        self._ended: float | None = None  # the time of the first line after the job was ended from outside, 0 for none

    def take(self, hit: Hit) -> None:
        """Add the next hit."""
        if self._open and (hit.rule.level is Level.BENIGN or self._is_about_others(hit.rule)):
            self.close()
        self._at = hit.lineno
        alone = hit.rule.frame or hit.rule.level is Level.BENIGN or hit.rule.name in ALONE
        # Its own time says which launch it is of, or it is kept.
        if hit.reread is not None and (self._ended is not None or not (alone or self._has_many(hit))):
            hit = hit.reread()
        placed = self._beside(self._placed(hit))
        if placed is not None and not self._replaces(placed):
            self._keep(placed)

    def opens(self, tally: Tally) -> bool:
        """Open a tally if its lines are only counted, from now until a line comes that may change what they mean."""
        if tally.first is None or not self._counts_only(tally.first):
            return False
        tally.open, tally.lines = True, 0
        self._open.append(tally)
        return True

    def read_last(self) -> None:
        """Read the last lines of open tallies, before the block that contains them is replaced."""
        for tally in sorted(self._open, key=attrgetter("at")):
            if tally.at >= 0:
                tally.last, tally.at = tally.read(cast(Hit, tally.first), tally.at), -1

    def close(self) -> None:
        """Close all tallies: a line comes that may change what others mean."""
        self.read_last()
        open_ones, self._open = self._open, []
        for tally in open_ones:
            tally.open = False
            hit = cast(Hit, tally.last)
            place = self._counts[hit.rule.name, self._rank_of(hit), self._launch][-1]
            last, more = self._last.get(place) or (self._kept[place], self._kept[place].more)
            if hit.lineno > last.lineno:
                last = self._placed(replace(hit, printed=hit.rule.traced))
            self._last[place] = last, more + tally.lines
            self._at = max(self._at, hit.lineno)

    def _is_about_others(self, rule: Rule) -> bool:
        """Whether such a line may change what other lines mean."""
        ends = rule.level >= Level.ENDING and rule.category in ENDINGS
        return rule.frame or rule.name in _ALWAYS or (rule.name in OVER and not self._over) or ends

    def _has_many(self, hit: Hit) -> bool:
        return len(self._counts.get((hit.rule.name, self._rank_of(hit), self._launch), ())) >= FIRST

    def _rank_of(self, hit: Hit) -> int | None:
        return self._rank if hit.record.rank is None else hit.record.rank

    def _counts_only(self, hit: Hit) -> bool:
        """Whether such a hit is only counted now: there are many, and no line above changes what it means."""
        rule, record, at, rank = hit.rule, hit.record, self._at, self._rank_of(hit)
        if not self._has_many(hit) or self._is_about_others(rule) or (rule.level >= Level.ENDING and self._left):
            return False
        pid = self._pids.get((record.node, record.device))
        if self._ended is not None or (record.pid and (pid is None or (self._over and pid != record.pid))):
            return False
        if rank in self._heads or rank in self._inside or at - self._traced.get(rank, -BELOW) < BELOW:
            return False
        if (self._ignored is not None and self._ignored.record.rank == rank) or (
            self._host and at <= self._host.lineno
        ):
            return False
        above = max(self._wrapper.lineno if self._wrapper else 0, self._chain.lineno if self._chain else 0)
        return not above or at - above > BELOW

    def drain(self) -> list[Hit]:
        """Return what was added since the last call."""
        self.close()
        for place in list(self._last):
            self._kept[place] = self._counted(place)
        kept, self._kept, self._counts, self._last = self._kept, [], {}, {}
        self._wrapper = self._chain = None
        return kept

    def unfinished(self) -> list[Hit]:
        """Return tracebacks below which no exception was found, as where the log ends within one."""
        note = "no exception follows: the log may end within this traceback"
        return [replace(self._in_full(hit), rule=replace(hit.rule, note=note)) for hit in self._heads.values()]

    def _placed(self, hit: Hit) -> Hit:
        """Return the hit with its file, rank and node."""
        record = hit.record
        if (record.rank is None and self._rank is not None) or (not record.node and self._node):
            if self._placed_last[0] is not record:
                rank = self._rank if record.rank is None else record.rank
                self._placed_last = record, replace(record, rank=rank, node=record.node or self._node)
            record = self._placed_last[1]
        at = hit.lineno, hit.offset
        return Hit(hit.rule, record, hit.where, self._name, *at, 0, hit.printed, hit.reread, self._launch)

    def _beside(self, hit: Hit) -> Hit | None:
        """Apply the lines above the hit. Returns None if it only describes others, or if they make it harmless."""
        if hit.level is Level.BENIGN:
            self._ignored = hit
            return None
        banner = hit.rule.name == LAUNCH
        if self._is_of_another_launch(hit) or (banner and (self._over or RESTARTS in hit.record.text)):
            self._begin_launch()
        if banner:
            return None
        if hit.rule.name in (*HOSTS, TRACEBACK, CHAINED) or hit.rule.frame:
            self._remember(hit)
            return None
        hit = hit if hit.launch == self._launch else replace(hit, launch=self._launch)
        self._left = self._left or hit.rule.name == LEFT
        ended = hit.level >= Level.ENDING and hit.rule.category in ENDINGS
        self._ended = 0.0 if ended else self._ended
        self._over = self._over or (hit.lineno if ended or hit.rule.name in OVER else 0)
        self._heads.pop(hit.record.rank, None)
        if hit.record.rank in self._inside:
            indent = hit.record.indent - self._inside[hit.record.rank]
            if indent >= CODE and hit.lineno - self._traced[hit.record.rank] < BELOW:
                return None  # source code, as a traceback shows it
            del self._inside[hit.record.rank]
        if self._ignored is not None and self._ignored.record.rank == hit.record.rank:
            near, self._ignored = hit.lineno - self._ignored.lineno <= NEAR, None
            if near and (hit.level < Level.CAUSE or hit.rule.weight < SPECIAL):
                return None
        if hit.rule.name == DESTRUCTOR or NOT_SAVED in hit.record.text:
            return None
        if self._host is not None and 0 < hit.lineno - self._host.lineno <= 2 - hit.record.text.startswith("exitcode"):
            hit = replace(hit, where={**self._host.where, **hit.where})
        traced = hit.lineno - self._traced.get(hit.record.rank, -BELOW) < BELOW
        if hit.rule.traced and not traced:
            hit = replace(hit, printed=True)
        if traced and self._raises_again(hit):
            self._begin_launch()
            self._raised[hit.record.rank or 0] = self._launch
            hit = replace(hit, launch=self._launch)
        if traced and hit.rule.framed:
            hit = replace(hit, rule=self._frames.get(hit.record.rank, hit.rule))
        if traced and hit.record.level[:1] in RELAYED and RAISED.match(hit.record.text):
            hit = self._in_full(hit)
            hit = replace(hit, record=replace(hit.record, level=""))
        return hit

    def _is_of_another_launch(self, hit: Hit) -> bool:
        """Whether the last launch is over and another one prints: an exception below srun's last line, a line long
        after the job was ended (a requeued job appends to its log), or another process on the same device."""
        at, record = hit.record.at, hit.record
        if self._left and (hit.rule.name == TRACEBACK or hit.level is Level.CAUSE):
            return True
        if self._ended is not None and at:
            self._ended = self._ended or at
            if at - self._ended > LATER:
                return True
        place = record.node, record.device
        return bool(record.pid) and self._pids.setdefault(place, record.pid) != record.pid and self._over > 0

    def _begin_launch(self) -> None:
        self.close()
        self._launch, self._over, self._ended, self._left = self._launch + 1, 0, None, False
        self._wrapper = self._chain = self._host = self._ignored = None
        self._heads, self._traced, self._inside, self._frames, self._pids = {}, {}, {}, {}, {}

    def _raises_again(self, hit: Hit) -> bool:
        """Whether a rank raises an exception although the launch in which it raised one is over."""
        rank = hit.record.rank
        if rank is None or hit.level < Level.CAUSE:
            return False
        before, self._raised[rank] = self._raised.get(rank), self._launch
        return before == self._launch and 0 < self._over < self._traced[rank]

    def _remember(self, hit: Hit) -> None:
        rank, frame = hit.record.rank, hit.record.text.startswith("File")
        if hit.rule.name in HOSTS:
            self._host = self._in_full(hit)
        elif hit.rule.name == CHAINED:
            last = self._newest()
            self._chain = last if last is not None and last.record.rank == rank else None
        else:
            self._traced[rank] = hit.lineno
            if hit.rule.frame:
                self._frames[rank] = max(self._frames.get(rank, hit.rule), hit.rule, key=lambda rule: rule.weight)
                return
            if not frame:
                self._frames.pop(rank, None)
            self._heads.setdefault(rank, hit)
            # file lines of a traceback are indented by two more, and may be all that an excerpt contains
            self._inside.setdefault(rank, max(0, hit.record.indent - (2 if frame else 0)))

    def _replaces(self, hit: Hit) -> bool:
        """Whether the hit replaced the last one: a wrapper's text, or a less specific exception of its chain."""
        wrapper, chain = self._wrapper, self._chain
        if wrapper is not None and (hit.lineno - wrapper.lineno > BELOW or _wraps(wrapper, hit)):
            self._wrapper = None
            if hit.lineno - wrapper.lineno <= BELOW and self._newest() is wrapper:
                hit = self._in_full(hit)
                where = {**hit.where, **wrapper.where}
                self._kept[-1] = replace(hit, rule=_wrapped(wrapper.rule, hit.rule), where=where)
                return True
        if chain is not None and (_wraps(chain, hit) or (_same_rank(chain, hit) and hit.rule.name == INTERRUPT)):
            if self._newest() is chain and hit.lineno - chain.lineno <= BELOW:
                # of equal ones, keep the outer
                best = max(self._in_full(hit), chain, key=lambda h: h.rule.weight)
                place = {"node": chain.where["node"]} if chain.rule.name == RAY and "node" in chain.where else {}
                self._kept[-1] = self._chain = replace(best, where={**place, **best.where})
                return True
            self._chain = None
        return False

    def _keep(self, hit: Hit) -> None:
        known = self._counts.setdefault((hit.rule.name, hit.record.rank, hit.launch), [])
        if len(known) < FIRST and len(self._kept) < MOST_PER_FILE:
            known.append(len(self._kept))
            hit = self._in_full(hit)
            self._kept.append(hit)
            if hit.rule.below or hit.rule.name == RAY:
                self.close()  # what follows may be what they wrap
            self._wrapper = hit if hit.rule.below else self._wrapper
            self._chain = hit if hit.rule.name == RAY else self._chain
        elif known:
            place = known[-1]
            more = self._last[place][1] if place in self._last else self._kept[place].more
            self._last[place] = hit, more + 1

    def _newest(self) -> Hit | None:
        """Return the hit in the last place."""
        self.close()
        place = len(self._kept) - 1
        if place in self._last:
            self._kept[place] = self._counted(place)
            del self._last[place]
        return self._kept[place] if self._kept else None

    def _counted(self, place: int) -> Hit:
        hit, more = self._last[place]
        return replace(self._in_full(hit), more=more, launch=self._kept[place].launch)

    def _in_full(self, hit: Hit) -> Hit:
        """Return the hit with what its own line says."""
        if hit.reread is None:
            return hit
        own = self._placed(hit.reread())
        return replace(hit, record=own.record, where={**hit.where, **own.where}, reread=None)


def _wraps(wrapper: Hit, hit: Hit) -> bool:
    weaker = hit.level is wrapper.level is Level.SIGN and hit.rule.weight < wrapper.rule.weight
    raised = weaker and RAISED.match(hit.record.text) is not None  # else the wrapper would hide it
    return _same_rank(wrapper, hit) and (hit.level >= Level.CAUSE or raised) and not hit.rule.below


def _same_rank(one: Hit, other: Hit) -> bool:
    return one.record.rank == other.record.rank


def _wrapped(wrapper: Rule, inner: Rule) -> Rule:
    """Return the wrapped rule if it is specific (out of memory in a loader), else the wrapper's."""
    only = wrapper.level is Level.SIGN and inner.category is not wrapper.category
    return inner if inner.weight > wrapper.weight or only else wrapper


MOST_HITS = 64  # of one node
_LONGEST = 600  # characters of a line
_SHORT = 300
_OPTIONAL = ("rank", "local", "node", "device", "level", "at", "indent")  # of a record


def encode(hits: Iterable[Hit]) -> list[dict[str, Any]]:
    """Return at most `MOST_HITS` hits as JSON values: of each rank and rule the first ones, those closest to the cause
    first. A thousand equal warnings leave room for the one line that differs."""
    seen: Counter[tuple[object, ...]] = Counter()
    ordered = []
    for number, hit in enumerate(sorted(hits, key=lambda h: (h.file, h.offset))):
        key = hit.rule.name, hit.record.rank, hit.file, hit.mild
        ordered.append((seen[key], -hit.level, hit.mild, hit.record.at or 0.0, number, hit))
        seen[key] += 1
    return [_encoded(one[-1]) for one in sorted(ordered, key=lambda one: one[:-1])[:MOST_HITS]]


def decode(said: object, rules: Mapping[str, Rule]) -> tuple[Hit, ...]:
    """Parse the values of `encode`. Skips what is malformed and what names an unknown rule."""
    found = (_decoded(one, rules) for one in said if isinstance(one, Mapping)) if isinstance(said, list) else ()
    return tuple(hit for hit in found if hit is not None)


def worth_reporting(hit: Hit) -> bool:
    """Whether to report the hit while the job still runs: symptoms are not reported."""
    return hit.level >= Level.CAUSE


def _encoded(hit: Hit) -> dict[str, Any]:
    said: dict[str, Any] = {"rule": hit.rule.name, "text": hit.record.text[:_LONGEST], "file": hit.file}
    said.update(lineno=hit.lineno, offset=hit.offset)
    said.update((name, value) for name in _OPTIONAL if (value := getattr(hit.record, name)) not in (None, ""))
    said.update((name, value) for name in ("more", "printed", "where", "launch") if (value := getattr(hit, name)))
    return said


def _decoded(said: Mapping[str, Any], rules: Mapping[str, Rule]) -> Hit | None:
    rule, where, text = rules.get(str(said.get("rule"))), said.get("where", {}), said.get("text")
    if rule is None or not isinstance(where, Mapping) or not isinstance(text, str):
        return None
    try:
        at, rank, local = said.get("at"), said.get("rank"), said.get("local")
        text = _printable(text)
        record = Record(
            text,
            text,
            None if rank is None else int(rank),
            None if local is None else int(local),
            _printable(said.get("node", "")),
            _printable(said.get("device", "")),
            "",
            _printable(said.get("level", "")),
            None if at is None else float(at),
            int(said.get("indent", 0)),
        )
        lineno, offset, more = int(said["lineno"]), int(said["offset"]), int(said.get("more", 0))
        launch = int(said.get("launch", 0))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    groups = {_printable(name): _printable(value) for name, value in where.items()}
    file, printed = _printable(said.get("file", "")), said.get("printed") is True
    return Hit(rule, record, groups, file, lineno, offset, more, printed, launch=launch)


def _printable(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHORT and text.isprintable() and text[:1] != " " != text[-1:] else clean(text)
