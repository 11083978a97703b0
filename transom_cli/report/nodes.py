"""Nodes: how each is or was, what agents and examinations found, what the run keeps off, what nodes say of themselves.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from transom_cli.report.material import Examined, Found, Material
from transom_cli.report.shapes import Block, Cell, Section, Table, Words
from transom_cli.ui.concerning import nodes_of
from transom_cli.ui.gpus import answering, worst
from transom_cli.ui.lines import Span
from transom_cli.ui.story import Story, when
from transom_cli.ui.view import NodeView
from transom_cli.ui.words import count, some, span

MOST = 200  # rows of each table
FACTS = "facts"  # the check that tells what a node says of itself (health.node.facts)
_TONES = {"ok": "good", "slow": "warn", "silent": "bad", "suspect": "bad", "probing": "warn", "isolated": "bad"}
_WORST = ("fail", "suspect", "monitor", "unknown")
_VERDICTS = {"fail": "bad", "suspect": "warn", "monitor": "dim", "unknown": "dim"}


def nodes(material: Material, stories: Sequence[Story]) -> Section:
    tables = (_nodes(material, stories), _kept_off(material), _found(material), _examined(material.examined))
    blocks: list[Block] = [table for table in tables if table.rows]
    blocks += (
        [Words("Findings: none were recorded against a node.", "dim")]
        if not (material.found or material.examined)
        else []
    )
    blocks += [Words(words, "dim") for words in material.left]
    return Section("nodes", "Nodes", tuple(blocks))


def _nodes(material: Material, stories: Sequence[Story]) -> Table:
    """Of many, only those of which there is something to say."""
    blamed = Counter(node for story in stories for node in story.nodes)
    found = Counter(one.node for one in material.found if one.verdict in _WORST[:2])
    views = {one.node: one for one in material.view.node_views}
    kept = {x.node for x in material.book.state.exclusions}
    names = nodes_of(material.book)
    odd = [n for n in names if blamed[n] or found[n] or n in kept or (n in views and _odd(views[n]))]
    shown = (names if len(names) <= MOST else odd)[:MOST]
    with_gpus = any(view.gpus is not None for view in views.values())
    rows = []
    for name in shown:
        view = views.get(name)
        counts = (Cell(count(blamed[name])), Cell(count(found[name])))
        rows.append((Cell(name), *(_now(view) if views else ()), *(_gpus(view) if with_gpus else ()), *counts))
    left = len(names) - len(shown)
    note = f"{count(left)} more, of which nothing is to be said." if left and shown == tuple(odd[:MOST]) else ""
    note = f"{count(left)} more." if left and len(odd) > MOST else note
    about = (*(("now", "role", "step") if views else ()), *(("GPUs", "worst of them") if with_gpus else ()))
    head = ("node", *about, "incidents", "against it")
    caption = f"Every node that the run was given: {count(len(names))}"
    return Table(caption, head, tuple(rows), frozenset({"step", "GPUs", "incidents", "against it"}), note)


def _odd(view: NodeView) -> bool:
    return view.differs or view.state == "waiting"


def _now(view: NodeView | None) -> tuple[Cell, ...]:
    if view is None:
        return (Cell("left"), Cell("-"), Cell("-"))
    return (
        Cell(view.state, _TONES.get(view.state, "")),
        Cell(view.role),
        Cell(count(view.step) if view.step >= 0 else "-"),
    )


def _gpus(view: NodeView | None) -> tuple[Cell, ...]:
    """How many answer, and the worst; of a node that shows none, nothing."""
    if view is None or view.gpus is None:
        return (Cell("-"), Cell("-"))
    return (_toned(answering(view)), _toned(worst(view)))


def _toned(span: Span) -> Cell:
    text, tone = span
    return Cell(text or "-", tone if tone in ("good", "warn", "bad", "dim") else "")


def _kept_off(material: Material) -> Table:
    rows, now = [], material.book.now
    for one in material.book.state.exclusions[:MOST]:
        until = "until it is lifted" if one.until is None else when(one.until)
        left = f", {span(one.until - now)} more" if one.until is not None and one.until > now else ""
        rows.append(
            (Cell(one.node), Cell(one.how, "bad"), Cell(when(one.since), "time"), Cell(until + left), Cell(one.reason))
        )
    return Table("Nodes that the run keeps off", ("node", "how", "since", "until", "why"), tuple(rows))


def _found(material: Material) -> Table:
    """What was the same on several nodes, or in several attempts, has one row."""
    told: dict[tuple[str, str, str], list[Found]] = {}
    for one in material.found:
        told.setdefault((one.verdict, one.kind, one.words), []).append(one)
    rows = tuple(
        (
            _verdict(verdict),
            Cell(kind),
            Cell(_on(one.node for one in same)),
            Cell(when(min(one.at for one in same)), "time"),
            Cell(count(sum(one.times for one in same))),
            Cell(words),
        )
        for (verdict, kind, words), same in sorted(told.items(), key=_weight)[:MOST]
    )
    head = ("verdict", "check", "on", "first", "times", "what")
    note = _left(len(told) - len(rows), "finding")
    return Table("Found by agents while the run trained", head, rows, frozenset({"times"}), note)


def _examined(examined: Sequence[Examined]) -> Table:
    """What was the same on several nodes has one row, and so have checks that say the same of the same nodes."""
    told: dict[tuple[str, str, str], set[str]] = {}
    for one in examined:
        if one.check != FACTS:
            told.setdefault((one.verdict, one.check, one.evidence), set()).add(one.node)
    alike: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (verdict, check, evidence), where in told.items():
        alike.setdefault((verdict, evidence, tuple(sorted(where))), []).append(check)
    rows = tuple(
        (_verdict(verdict), Cell(", ".join(checks)), Cell(_on(where)), Cell(evidence))
        for (verdict, evidence, where), checks in sorted(alike.items(), key=_weight)[:MOST]
    )
    note = _left(len(alike) - len(rows), "finding")
    return Table("Found by examinations", ("verdict", "check", "on", "what"), rows, note=note)


def _weight(item: tuple[tuple[object, ...], object]) -> int:
    verdict = item[0][0]
    return _WORST.index(verdict) if verdict in _WORST else len(_WORST)


def _verdict(word: str) -> Cell:
    return Cell(word, _VERDICTS.get(word, ""))


def _on(nodes: Iterable[str]) -> str:
    return some(tuple(sorted(set(nodes))), 4)


def _left(more: int, what: str) -> str:
    return f"{count(more)} more {what}s: `transom explain RUN NODE` tells those of a node." if more > 0 else ""


def facts(examined: Sequence[Examined]) -> Table:
    """What nodes say of themselves: system, Python, driver; one row for those that say the same."""
    alike: dict[str, list[str]] = {}
    for one in examined:
        if one.check == FACTS:
            alike.setdefault(one.evidence, []).append(one.node)
    rows = tuple((Cell(_on(where)), Cell(told)) for told, where in alike.items())[:MOST]
    return Table("What nodes say of themselves", ("on", "facts"), rows)
