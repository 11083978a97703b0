"""The sections on goodput and nodes. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from transom_cli.core.category import category_name
from transom_cli.core.goodput import Account, Kind, Sums
from transom_cli.plural import several
from transom_cli.view.explain import run_nodes
from transom_cli.view.goodput import DESCRIPTIONS, category_words, duration, lost_by_kind, percent
from transom_cli.view.model import NodeView
from transom_cli.view.node_table import answering, worst
from transom_cli.view.report.model import (
    FACTS,
    AgentFinding,
    Bar,
    Block,
    Cell,
    CheckFinding,
    Paragraph,
    ReportData,
    Section,
    Strip,
    Strips,
    Table,
)
from transom_cli.view.text import Span, count, some, span
from transom_cli.view.timeline import Timeline, when

MOST_CAUSES = 100  # and attempts
MOST = 200  # rows of each table of nodes
_TONES = {"ok": "good", "slow": "warn", "silent": "bad", "suspect": "bad", "probing": "warn", "isolated": "bad"}
_WORST = ("fail", "suspect", "monitor", "unknown")
_VERDICTS = {"fail": "bad", "suspect": "warn", "monitor": "dim", "unknown": "dim"}

# --- goodput ---


def goodput(account: Account, anchors: Mapping[str, str]) -> Section:
    """Return the account's tables. anchors: by incident, of those that the document shows in full."""
    whole = account.whole
    text = (
        f"Goodput {percent(whole.goodput)} of {duration(whole.wall)}; ETTR {percent(whole.ettr)} of the time without "
        f"hold and idle; runtime goodput {percent(whole.runtime)} of the time with nodes."
    )
    if not account.steps_seen and whole.ns[Kind.UNSEEN]:
        text += " No steps of this run were seen; the shares are lower bounds."
    blocks: list[Block] = [Paragraph(text)]
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
            title = f"{kind.value} {percent(width / 100)}, {duration(whole.ns[kind])}"
            bars.append(Bar(round(x, 3), round(width, 3), kind.value, title))
        x += width
    return Strip("shares", "Share of each kind of time; the table has the numbers.", tuple(bars))


def _kinds(whole: Sums) -> Table:
    rows = tuple(
        (
            Cell(kind.value, kind.value),
            Cell(duration(whole.ns[kind])),
            Cell(_share(whole.ns[kind], whole)),
            Cell(DESCRIPTIONS[kind]),
        )
        for kind in Kind
        if whole.ns[kind] or kind is Kind.PRODUCTIVE
    )
    return Table("By kind of time", ("kind", "time", "share", "description"), rows, frozenset({"time", "share"}))


def _attempts(account: Account) -> Table:
    shown = account.attempts[-MOST_CAUSES:]
    rows = tuple((Cell(n), Cell(duration(s.wall)), Cell(percent(s.goodput)), Cell(_lost(s))) for n, s in shown)
    note = _more_rows(len(account.attempts) - len(shown), "earlier attempt")
    head = ("attempt", "time", "goodput", "losses")
    return Table("By attempt", head, rows, frozenset({"time", "goodput"}), note)


def _causes(account: Account, anchors: Mapping[str, str]) -> Table:
    rows = []
    for cause, sums in account.by_cause[:MOST_CAUSES]:
        again = count(cause.lost) if cause.lost >= 0 else "unknown"
        key = Cell(cause.key, link=anchors.get(cause.key, ""))
        cells = (duration(sums.wall), _share(sums.wall, account.whole), again, _lost(sums))
        rows.append((key, Cell(category_words(cause) or "-"), *map(Cell, cells)))
    note = _more_rows(len(account.by_cause) - len(rows), "cheaper cause")
    head = ("cause", "category", "time", "share", "steps repeated", "losses")
    return Table("By cause, most expensive first", head, tuple(rows), frozenset(head[2:5]), note)


def _categories(account: Account) -> Table:
    rows = tuple(
        (
            Cell(category_name(c.name)),
            Cell(count(c.causes)),
            Cell(duration(c.sums.wall)),
            Cell(_share(c.sums.wall, account.whole)),
        )
        for c in account.by_category
    )
    return Table("By category", ("category", "count", "time", "share"), rows, frozenset({"count", "time", "share"}))


def _lost(sums: Sums) -> str:
    return ", ".join(f"{name} {time}" for name, time in lost_by_kind(sums)) or "-"


def _share(part: int, whole: Sums) -> str:
    return percent(part / whole.wall if whole.wall else None)


def _more_rows(more: int, what: str) -> str:
    return f"{several(more, what)} not shown: see `transom goodput --json`." if more > 0 else ""


# --- nodes ---


def nodes(data: ReportData, timelines: Sequence[Timeline]) -> Section:
    """Return the state of each node, exclusions, and findings."""
    tables = (_nodes(data, timelines), _excluded(data), _agent_findings(data), _check_findings(data.checked))
    blocks: list[Block] = [table for table in tables if table.rows]
    if not (data.found or data.checked):
        blocks.append(Paragraph("Findings: none were recorded.", "dim"))
    blocks += [Paragraph(text, "dim") for text in data.limits]
    return Section("nodes", "Nodes", tuple(blocks))


def _nodes(data: ReportData, timelines: Sequence[Timeline]) -> Table:
    """Return all nodes, or of many only those with a problem."""
    blamed = Counter(node for one in timelines for node in one.nodes)
    found = Counter(one.node for one in data.found if one.verdict in _WORST[:2])
    views = {one.node: one for one in data.view.node_views}
    excluded = {x.node for x in data.book.state.isolation.exclusions}
    names = run_nodes(data.book)
    differing = {node for node, one in views.items() if one.differs or one.state == "waiting"}
    odd = [n for n in names if blamed[n] or found[n] or n in excluded or n in differing]
    shown = (names if len(names) <= MOST else odd)[:MOST]
    with_gpus = any(view.gpus is not None for view in views.values())
    rows = []
    for name in shown:
        view = views.get(name)
        counts = (Cell(count(blamed[name])), Cell(count(found[name])))
        rows.append((Cell(name), *(_now(view) if views else ()), *(_gpus(view) if with_gpus else ()), *counts))
    left = len(names) - len(shown)
    note = f"{count(left)} more without a problem." if left and shown == tuple(odd[:MOST]) else ""
    note = f"{count(left)} more." if left and len(odd) > MOST else note
    about = (*(("now", "role", "step") if views else ()), *(("GPUs", "worst GPU") if with_gpus else ()))
    head = ("node", *about, "incidents", "findings")
    caption = f"Every node that the run was given: {count(len(names))}"
    return Table(caption, head, tuple(rows), frozenset({"step", "GPUs", "incidents", "findings"}), note)


def _now(view: NodeView | None) -> tuple[Cell, ...]:
    if view is None:
        return (Cell("left"), Cell("-"), Cell("-"))
    return (
        Cell(view.state, _TONES.get(view.state, "")),
        Cell(view.role),
        Cell(count(view.step) if view.step >= 0 else "-"),
    )


def _gpus(view: NodeView | None) -> tuple[Cell, ...]:
    if view is None or view.gpus is None:
        return (Cell("-"), Cell("-"))
    return (_toned(answering(view)), _toned(worst(view)))


def _toned(span: Span) -> Cell:
    text, tone = span
    return Cell(text or "-", tone if tone in ("good", "warn", "bad", "dim") else "")


def _excluded(data: ReportData) -> Table:
    rows, now = [], data.book.now
    for one in data.book.state.isolation.exclusions[:MOST]:
        until = "until lifted" if one.until is None else when(one.until)
        left = f", {span(one.until - now)} left" if one.until is not None and one.until > now else ""
        rows.append(
            (Cell(one.node), Cell(one.how, "bad"), Cell(when(one.since), "time"), Cell(until + left), Cell(one.reason))
        )
    return Table("Excluded nodes", ("node", "how", "since", "until", "why"), tuple(rows))


def _agent_findings(data: ReportData) -> Table:
    """One row for the same finding on several nodes or in several attempts."""
    groups: dict[tuple[str, str, str], list[AgentFinding]] = {}
    for one in data.found:
        groups.setdefault((one.verdict, one.kind, one.message), []).append(one)
    rows = tuple(
        (
            _verdict(verdict),
            Cell(kind),
            Cell(_on(one.node for one in same)),
            Cell(when(min(one.at for one in same)), "time"),
            Cell(count(sum(one.times for one in same))),
            Cell(message),
        )
        for (verdict, kind, message), same in sorted(groups.items(), key=_weight)[:MOST]
    )
    head = ("verdict", "check", "on", "first", "count", "what")
    note = _left_out(len(groups) - len(rows))
    return Table("Found by agents during training", head, rows, frozenset({"count"}), note)


def _check_findings(findings: Sequence[CheckFinding]) -> Table:
    """One row for the same finding on several nodes, and for checks with the same result on the same nodes."""
    groups: dict[tuple[str, str, str], set[str]] = {}
    for one in findings:
        if one.check != FACTS:
            groups.setdefault((one.verdict, one.check, one.evidence), set()).add(one.node)
    alike: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (verdict, check, evidence), where in groups.items():
        alike.setdefault((verdict, evidence, tuple(sorted(where))), []).append(check)
    rows = tuple(
        (_verdict(verdict), Cell(", ".join(checks)), Cell(_on(where)), Cell(evidence))
        for (verdict, evidence, where), checks in sorted(alike.items(), key=_weight)[:MOST]
    )
    note = _left_out(len(alike) - len(rows))
    return Table("Found by health checks", ("verdict", "check", "on", "what"), rows, note=note)


def _weight(item: tuple[tuple[object, ...], object]) -> int:
    verdict = item[0][0]
    return _WORST.index(verdict) if verdict in _WORST else len(_WORST)


def _verdict(verdict: str) -> Cell:
    return Cell(verdict, _VERDICTS.get(verdict, ""))


def _on(nodes: Iterable[str]) -> str:
    return some(tuple(sorted(set(nodes))), 4)


def _left_out(more: int) -> str:
    return f"{several(more, 'more finding')}: `transom explain RUN NODE` shows those of a node." if more > 0 else ""


def facts(findings: Sequence[CheckFinding]) -> Table:
    """Return system, Python and driver versions; one row for nodes with the same."""
    alike: dict[str, list[str]] = {}
    for one in findings:
        if one.check == FACTS:
            alike.setdefault(one.evidence, []).append(one.node)
    rows = tuple((Cell(_on(where)), Cell(evidence)) for evidence, where in alike.items())[:MOST]
    return Table("Node facts", ("on", "facts"), rows)
