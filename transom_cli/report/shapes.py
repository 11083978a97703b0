"""What a report is made of, as plain values: tables, strips along the time, curves, stories. Pure.

Text is anybody's, and not escaped. A tone is a class of style.css: good, warn, bad, dim, time, or a kind of time.
Places along the time are percent of the run's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Cell:
    """link: the anchor of a place in the same document."""

    text: str
    tone: str = ""
    link: str = ""


@dataclass(frozen=True)
class Table:
    """right: heads of columns of numbers. note: what was left out."""

    kind: ClassVar[str] = "table"
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: frozenset[str] = frozenset()
    note: str = ""


@dataclass(frozen=True)
class Bar:
    x: float
    width: float
    tone: str
    title: str
    y: float = 0.0
    height: float = 100.0  # percent of the strip's, as `y`


@dataclass(frozen=True)
class Tick:
    x: float
    tone: str
    title: str
    label: str = ""


@dataclass(frozen=True)
class Strip:
    """A row along the time. about: what is in it, for who does not see it."""

    label: str
    about: str
    bars: tuple[Bar, ...] = ()
    ticks: tuple[Tick, ...] = ()


@dataclass(frozen=True)
class Mark:
    """A word below the axis. anchor: start, middle or end, as in SVG."""

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
    """path: SVG path data, over 1000 times 1000 units; y points down."""

    path: str
    tone: str
    title: str


@dataclass(frozen=True)
class Plot:
    """top, bottom: what the upper and the lower edge stand for, in words."""

    kind: ClassVar[str] = "plot"
    caption: str
    about: str
    top: str
    bottom: str
    traces: tuple[Trace, ...]
    axis: tuple[Mark, ...]
    note: str = ""


@dataclass(frozen=True)
class Key:
    """A legend: tone and word of each."""

    kind: ClassVar[str] = "key"
    entries: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Words:
    kind: ClassVar[str] = "words"
    text: str
    tone: str = ""


@dataclass(frozen=True)
class Told:
    """An incident. lines: clock time, time since the line before, part (as in `ui.story.Line`), words."""

    anchor: str
    head: str
    about: str
    tone: str
    lines: tuple[tuple[str, str, str, str], ...]
    ends: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Stories:
    """opened: so many stand open from the beginning."""

    kind: ClassVar[str] = "stories"
    stories: tuple[Told, ...]
    opened: int
    note: str = ""


Block = Table | Strips | Plot | Key | Words | Stories


@dataclass(frozen=True)
class Section:
    anchor: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """head: label and words, with their tones, of the rows of the status screen."""

    run_id: str
    verdict: str
    tone: str
    headline: str
    figures: tuple[tuple[str, str, str], ...]  # label, value, and what it is of
    head: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    sections: tuple[Section, ...]
    made: str
