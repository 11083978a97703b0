"""The data of a report, and the blocks that it is made of: plain values. Pure.

Text is untrusted and not escaped yet. A tone is a class of style.css: good, warn, bad, dim, time, or a kind of time.
Positions along the time are percent of the run's time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from transom_cli.core.goodput.account import Loss
from transom_cli.supervise.run_record import RunRecord
from transom_cli.view.model import RunView

FACTS = "facts"  # the check that reports kernel, driver and hardware versions

# --- data ---


@dataclass(frozen=True)
class AgentFinding:
    """A finding of an agent about its node. at: the first time; times: how often in that attempt."""

    at: float
    attempt: str
    node: str
    kind: str
    verdict: str
    message: str
    times: int = 1


@dataclass(frozen=True)
class CheckFinding:
    """A finding of a health run (`attempts/<a>/health`), as in `health.finding.Finding`."""

    attempt: str
    node: str
    check: str
    verdict: str
    evidence: str


@dataclass(frozen=True)
class ReportData:
    """Everything that a report shows."""

    book: RunRecord
    view: RunView
    version: str
    settings: Mapping[str, Any] | str  # run.toml, or why it cannot be read
    losses: tuple[Loss, ...] = ()  # over time; `last` is the newest of each attempt
    last: tuple[Loss, ...] = ()
    found: tuple[AgentFinding, ...] = ()
    checked: tuple[CheckFinding, ...] = ()
    limits: tuple[str, ...] = ()  # what was left out because there is too much of it
    earlier: tuple[RunView, ...] = ()  # runs of the same name that were submitted before, newest first, with goodput


# --- blocks ---


@dataclass(frozen=True)
class Cell:
    text: str
    tone: str = ""
    link: str = ""  # an anchor in the same document


@dataclass(frozen=True)
class Table:
    kind: ClassVar[str] = "table"
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: frozenset[str] = frozenset()  # heads of columns of numbers
    note: str = ""  # what was left out


@dataclass(frozen=True)
class Bar:
    """y, height: percent of the strip's height."""

    x: float
    width: float
    tone: str
    title: str
    y: float = 0.0
    height: float = 100.0


@dataclass(frozen=True)
class Tick:
    x: float
    tone: str
    title: str
    label: str = ""


@dataclass(frozen=True)
class Strip:
    """A row along the time. about: its description for screen readers."""

    label: str
    about: str
    bars: tuple[Bar, ...] = ()
    ticks: tuple[Tick, ...] = ()


@dataclass(frozen=True)
class Mark:
    """A label below the axis. anchor: start, middle or end, as in SVG."""

    x: float
    text: str
    anchor: str = "middle"


@dataclass(frozen=True)
class Strips:
    kind: ClassVar[str] = "strips"
    caption: str
    strips: tuple[Strip, ...]
    axis: tuple[Mark, ...]
    note: str = ""


@dataclass(frozen=True)
class Trace:
    path: str  # SVG path data in 1000 x 1000 units; y points down
    tone: str
    title: str


@dataclass(frozen=True)
class Plot:
    """top, bottom: labels of the upper and the lower edge. marks: vertical lines."""

    kind: ClassVar[str] = "plot"
    caption: str
    about: str
    top: str
    bottom: str
    traces: tuple[Trace, ...]
    axis: tuple[Mark, ...]
    note: str = ""
    marks: tuple[Tick, ...] = ()


@dataclass(frozen=True)
class Legend:
    kind: ClassVar[str] = "legend"
    entries: tuple[tuple[str, str], ...]  # tone and text


@dataclass(frozen=True)
class Paragraph:
    kind: ClassVar[str] = "paragraph"
    text: str
    tone: str = ""


@dataclass(frozen=True)
class IncidentBlock:
    """An incident. entries: clock time, time since the entry before, part (as in `view.timeline.Entry`), message."""

    anchor: str
    head: str
    about: str
    tone: str
    entries: tuple[tuple[str, str, str, str], ...]
    ends: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class IncidentBlocks:
    kind: ClassVar[str] = "incidents"
    incidents: tuple[IncidentBlock, ...]
    opened: int  # the number of incidents that are unfolded at first
    note: str = ""


Block = Table | Strips | Plot | Legend | Paragraph | IncidentBlocks


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """A report."""

    run_id: str
    verdict: str
    tone: str
    headline: str
    hero: str  # the run in a sentence
    figures: tuple[tuple[str, str, str], ...]  # label, value, and what the value is a part of
    head: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]  # label and toned text of the rows of the status screen
    sections: tuple[Section, ...]
    made: str
