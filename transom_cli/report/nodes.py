"""Nodes: how each is or was, what agents and examinations found, what the run keeps off, what nodes say of themselves.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from transom_cli.report.material import Examined, Material
from transom_cli.report.shapes import Block, Cell, Section, Table, Words
from transom_cli.ui.concerning import nodes_of
from transom_cli.ui.story import Story, when
from transom_cli.ui.words import count, several, some, span

MOST = 200  # rows of each table
FACTS = "facts"  # the check that tells what a node says of itself (health.node.facts)
_TONES = {"ok": "good", "slow": "warn", "silent": "bad", "suspect": "bad", "probing": "warn", "isolated": "bad"}
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
    found = Counter(one.node for one in material.found)
    views = {one.node: one for one in material.view.node_views}
    kept = {x.node for x in material.book.state.exclusions}
    names = nodes_of(material.book)
    odd = [n for n in names if blamed[n] or found[n] or n in kept or (n in views and views[n].state not in ("ok", ""))]
    shown = (names if len(names) <= MOST else odd)[:MOST]
    rows = []
    for name in shown:
        view = views.get(name)
        state = Cell(view.state, _TONES.get(view.state, "")) if view else Cell("-")
        step = Cell(count(view.step) if view and view.step >= 0 else "-")
        role = Cell(view.role if view else "-")
        rows.append((Cell(name), state, role, step, Cell(count(blamed[name])), Cell(count(found[name]))))
    left = len(names) - len(shown)
    note = (
        f"{several(left, 'node')} more, of which nothing is to be said." if left and shown == tuple(odd[:MOST]) else ""
    )
    note = f"{several(left, 'node')} more." if left and len(odd) > MOST else note
    head = ("node", "now", "role", "step", "incidents", "findings")
    caption = f"Every node that the run was given: {count(len(names))}"
    return Table(caption, head, tuple(rows), frozenset({"step", "incidents", "findings"}), note)


def _kept_off(material: Material) -> Table:
    rows, now = [], material.book.now
    for one in material.book.state.exclusions[:MOST]:
        until = "until it is lifted" if one.until is None else when(one.until)
        left = f", {span(one.until - now)} more" if one.until is not None and one.until > now else ""
        rows.append((Cell(one.node), Cell(one.how, "bad"), Cell(when(one.since)), Cell(until + left), Cell(one.reason)))
    return Table("Nodes that the run keeps off", ("node", "how", "since", "until", "why"), tuple(rows))


def _found(material: Material) -> Table:
    told = sorted(material.found, key=lambda one: (one.verdict != "fail", one.at))
    rows = tuple(
        (
            Cell(one.node),
            Cell(one.verdict, _VERDICTS.get(one.verdict, "")),
            Cell(one.kind),
            Cell(when(one.at)),
            Cell(one.attempt),
            Cell(count(one.times)),
            Cell(one.words),
        )
        for one in told[:MOST]
    )
    left = len(told) - len(rows)
    head = ("node", "verdict", "check", "first", "attempt", "times", "what")
    note = f"{several(left, 'finding')} more: `transom explain RUN NODE` tells them." if left > 0 else ""
    return Table("Found by agents while the run trained", head, rows, frozenset({"times"}), note)


def _examined(examined: Sequence[Examined]) -> Table:
    """What was the same on several nodes has one row."""
    told: dict[tuple[str, str, str], dict[str, None]] = {}
    for one in examined:
        if one.check != FACTS:
            told.setdefault((one.verdict, one.check, one.evidence), {})[one.node] = None
    order = ("fail", "suspect", "monitor", "unknown")
    ranked = sorted(told.items(), key=lambda item: order.index(item[0][0]) if item[0][0] in order else len(order))
    rows = tuple(
        (Cell(verdict, _VERDICTS.get(verdict, "")), Cell(check), Cell(some(tuple(where), 4)), Cell(evidence))
        for (verdict, check, evidence), where in ranked[:MOST]
    )
    left = len(ranked) - len(rows)
    note = f"{several(left, 'finding')} more." if left > 0 else ""
    return Table("Found by examinations", ("verdict", "check", "on", "what"), rows, note=note)


def facts(examined: Sequence[Examined]) -> Table:
    """What nodes say of themselves: system, Python, driver; one row for those that say the same."""
    alike: dict[str, dict[str, None]] = {}
    for one in examined:
        if one.check == FACTS:
            alike.setdefault(one.evidence, {})[one.node] = None
    rows = tuple((Cell(some(tuple(where), 4)), Cell(told)) for told, where in alike.items())[:MOST]
    return Table("What nodes say of themselves", ("on", "facts"), rows)
