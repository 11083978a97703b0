"""Goodput as tables: by kind, attempt, cause and category, with the names and words of `transom goodput`. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from transom_cli.core.goodput import NS, Account, Kind, Sums
from transom_cli.plural import several
from transom_cli.report.shapes import Bar, Cell, Section, Strip, Strips, Table, Words
from transom_cli.ui.goodput import WORDS, percent, spent
from transom_cli.ui.words import count, span

MOST = 100  # attempts, causes


def goodput(account: Account, anchors: Mapping[str, str]) -> Section:
    """anchors: of the incidents that are told in the document, by id."""
    whole = account.whole
    words = (
        f"Goodput {percent(whole.goodput)} of {_time(whole.wall)}; ETTR {percent(whole.ettr)} of the time without hold "
        f"and idle; runtime goodput {percent(whole.runtime)} of the time with nodes."
    )
    if not account.beats and whole.ns[Kind.UNSEEN]:
        words += " No step of this run was seen, so that these are the least that they can be."
    blocks: list[Words | Strips | Table] = [Words(words)]
    if whole.wall:
        blocks.append(Strips("Shares of the time", (_shares(whole),), ()))
    blocks.append(_kinds(whole))
    blocks += [table for table in (_attempts(account), _causes(account, anchors), _categories(account)) if table.rows]
    return Section("goodput", "Goodput", tuple(blocks))


def _shares(whole: Sums) -> Strip:
    bars, x = [], 0.0
    for kind in Kind:
        width = 100.0 * whole.ns[kind] / whole.wall
        if width:
            title = f"{kind.value} {percent(width / 100)}, {_time(whole.ns[kind])}"
            bars.append(Bar(round(x, 3), round(width, 3), kind.value, title))
        x += width
    return Strip("shares", "Each kind's share of the whole time; the table has the numbers.", tuple(bars))


def _kinds(whole: Sums) -> Table:
    rows = tuple(
        (
            Cell(kind.value, kind.value),
            Cell(_time(whole.ns[kind])),
            Cell(_share(whole.ns[kind], whole)),
            Cell(WORDS[kind]),
        )
        for kind in Kind
        if whole.ns[kind] or kind is Kind.PRODUCTIVE
    )
    return Table("By kind of time", ("kind", "time", "share", "what it is"), rows, frozenset({"time", "share"}))


def _attempts(account: Account) -> Table:
    shown = account.attempts[-MOST:]
    rows = tuple((Cell(n), Cell(_time(s.wall)), Cell(percent(s.goodput)), Cell(_lost(s))) for n, s in shown)
    note = _left(len(account.attempts) - len(shown), "attempt", "before them")
    head = ("attempt", "time", "goodput", "lost to")
    return Table("By attempt", head, rows, frozenset({"time", "goodput"}), note)


def _causes(account: Account, anchors: Mapping[str, str]) -> Table:
    rows = []
    for cause, sums in account.by_cause[:MOST]:
        again = count(cause.lost) if cause.lost >= 0 else "not known"
        key = Cell(cause.key, link=anchors.get(cause.key, ""))
        cells = (_time(sums.wall), _share(sums.wall, account.whole), again, _lost(sums))
        rows.append((key, Cell(cause.category or "-"), *map(Cell, cells)))
    note = _left(len(account.by_cause) - len(rows), "cause", "that cost less")
    head = ("cause", "category", "time", "share", "steps again", "lost to")
    return Table("By cause, the most expensive first", head, tuple(rows), frozenset(head[2:5]), note)


def _categories(account: Account) -> Table:
    rows = tuple(
        (Cell(c.name), Cell(count(c.causes)), Cell(_time(c.sums.wall)), Cell(_share(c.sums.wall, account.whole)))
        for c in account.by_category
    )
    return Table("By category", ("category", "times", "time", "share"), rows, frozenset({"times", "time", "share"}))


def _lost(sums: Sums) -> str:
    return ", ".join(f"{name} {time}" for name, time in spent(sums)) or "-"


def _share(part: int, whole: Sums) -> str:
    return percent(part / whole.wall if whole.wall else None)


def _left(more: int, what: str, which: str) -> str:
    return f"{several(more, f'more {what}')}, {which}: `transom goodput --json` has all." if more > 0 else ""


def _time(ns: int) -> str:
    return span(ns / NS)
