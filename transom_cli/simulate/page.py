"""The result of simulations as a document for the report's page."""

from collections.abc import Sequence
from dataclasses import asdict

from transom_cli.core.goodput import Kind
from transom_cli.simulate.campaign import Summary
from transom_cli.simulate.model import Scenario
from transom_cli.view.report.charts import curve
from transom_cli.view.report.model import Bar, Block, Cell, Document, Legend, Mark, Paragraph, Section, Strip, Strips
from transom_cli.view.report.model import Table as PageTable

MOST = 40  # rows of the strips
ENOUGH = 3  # values of a setting that make a curve


def document(
    head: Sequence[str], labels: Sequence[tuple[str, ...]], found: Sequence[Summary], columns: Sequence[str],
    body: Sequence[tuple[str, ...]], scenarios: Sequence[Scenario], made: str,
) -> Document:  # fmt: skip
    """columns, body: the table as it is printed."""
    best = max(range(len(found)), key=lambda n: found[n].goodput.mean)
    goodput, first = found[best].goodput, scenarios[0]
    varied = [n for n in range(len(head)) if len({label[n] for label in labels}) > 1]
    head, labels = [head[n] for n in varied], [tuple(label[n] for n in varied) for label in labels]
    names = [_name(head, label) for label in labels]
    rows = tuple(tuple(map(Cell, row)) for row in body)
    table = PageTable("Mean of all runs", tuple(columns), rows, frozenset(columns) - {"policy"})
    sections = [Section("result", "Result", (table, *_curves(head, labels, found)))]
    strips = tuple(_strip(name, one, first.days * 24.0) for name, one in zip(names[:MOST], found, strict=False))
    kinds = ["productive", *(k.value for k in Kind if any(k.value in one.hours for one in found))]
    sections.append(
        Section("time", "Where the time goes", (
            Strips("Shares of the time", strips, tuple(Mark(x, f"{x:g}%", a) for x, a in _AXIS),
                   "Slow steps, or steps on fewer nodes, are the empty rest."),
            Legend(tuple((kind, kind) for kind in kinds)),
        ))
    )  # fmt: skip
    sections.append(Section("assumptions", "Assumptions", _assumptions(first)))
    return Document(
        f"{first.nodes} nodes, {first.days:g} days",
        f"{goodput.mean:.2%}",
        "good",
        f"goodput {f'with {names[best]}' if names[best] else ''}, 90% interval {goodput.low:.2%} to {goodput.high:.2%}",
        "",
        (),
        (),
        tuple(sections),
        made,
    )


_AXIS = ((0.0, "start"), (50.0, "middle"), (100.0, "end"))


def _name(head: Sequence[str], label: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(head, label, strict=True))


def _curves(head: Sequence[str], labels: Sequence[tuple[str, ...]], found: Sequence[Summary]) -> list[Block]:
    """One curve for each setting with enough numbers."""
    plots: list[Block] = []
    for n, name in enumerate(head):
        rows = [(label, one) for label, one in zip(labels, found, strict=True) if label[n].isdecimal()]
        if len({label[n] for label, _ in rows}) < ENOUGH:
            continue
        rest = [*head[:n], *head[n + 1 :]]
        series: dict[str, list[tuple[float, float, float, float]]] = {}
        for label, one in sorted(rows, key=lambda row: int(row[0][n])):
            values = (float(label[n]), one.goodput.low, one.goodput.mean, one.goodput.high)
            series.setdefault(_name(rest, (*label[:n], *label[n + 1 :])) or "goodput", []).append(values)
        plots.append(
            curve(f"Goodput by {name}", "Lines: means of all runs.", list(series.items()), lambda share: f"{share:.2%}")
        )
    return plots


def _strip(name: str, one: Summary, hours: float) -> Strip:
    bars, x = [], 0.0
    for kind, share in (("productive", one.goodput.mean), *((k, h / hours) for k, h in one.hours.items())):
        if kind != "slower":
            bars.append(Bar(round(x, 3), round(100 * share, 3), kind, f"{kind}: {share:.2%}"))
            x += 100 * share
    return Strip(name, f"goodput {one.goodput.mean:.2%}", tuple(bars))


def _assumptions(scenario: Scenario) -> tuple[Block, ...]:
    hazard = {} if scenario.trace is not None else asdict(scenario.hazard)
    faults = hazard.pop("faults", ())
    parts = {"costs": asdict(scenario.costs), "hazard": hazard, "site": asdict(scenario.site)}
    rows = [(f"{part}.{key}", value) for part, values in parts.items() for key, value in values.items()]
    rows += [(f"share of {fault['name']} faults", fault["share"]) for fault in faults]
    cells = tuple((Cell(name), Cell(f"{value:g}" if isinstance(value, float) else str(value))) for name, value in rows)
    words = "Times in seconds. Each can be changed with --what-if."
    return Paragraph(words), PageTable("Of the first row", ("assumption", "value"), cells)
