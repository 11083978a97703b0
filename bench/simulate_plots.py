"""Draw the plots of docs/simulate.md: goodput by save interval and by spares, and failure rates after a return.

    python bench/simulate_plots.py [--out docs/images] [--runs 3]

The trace is the one that `transom simulate --failures stepfun` uses. SVG, without any library for plots.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from math import log10
from pathlib import Path

from transom_cli.config.load import load
from transom_cli.core.node_hazard import DAY, ENDS, HOUR, PUBLISHED
from transom_cli.simulate.campaign import Summary, simulate
from transom_cli.simulate.model import Costs, Hazard, Scenario
from transom_cli.simulate.setup import scenario_of
from transom_cli.view.text import span

Point = tuple[float, float]
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 560, 290, 64, 64, 16, 44
COLOURS = ("#2563eb", "#d97706", "#059669")


def svg(title: str, x: str, series: dict[str, Sequence[Point]], ticks: Sequence[tuple[float, str]], unit: str) -> str:
    """Draw lines. The x axis is logarithmic. ticks: of x. unit: a format of the values of y."""
    xs, ys = ([p[n] for line in series.values() for p in line] for n in (0, 1))
    low, high = min(ys), max(ys)
    low, high = low - 0.05 * (high - low or 1), high + 0.05 * (high - low or 1)
    high = min(high, 1.0) if unit.endswith("%") else high
    left, right = log10(min(xs)), log10(max(xs))

    def place(point: Point) -> tuple[float, float]:
        across = (log10(point[0]) - left) / (right - left)
        up = (point[1] - low) / (high - low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    text = 'font-family="sans-serif" font-size="12" fill="#444"'
    parts = [f'<text x="{LEFT}" y="16" {text} font-weight="bold">{title}</text>']
    for share in (0.0, 0.5, 1.0):
        value = low + share * (high - low)
        _, y = place((xs[0], value))
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" {text}>{format(value, unit)}</text>')
    for at, label in ticks:
        across, _ = place((at, low))
        parts.append(f'<text x="{across:.1f}" y="{HEIGHT - 26}" text-anchor="middle" {text}>{label}</text>')
    parts.append(f'<text x="{WIDTH / 2:g}" y="{HEIGHT - 8}" text-anchor="middle" {text}>{x}</text>')
    for n, (name, line) in enumerate(series.items()):
        path = "M" + "L".join(f"{across:.1f} {y:.1f}" for across, y in map(place, line))
        parts.append(f'<path d="{path}" fill="none" stroke="{COLOURS[n]}" stroke-width="2"/>')
        colour = text.replace("#444", COLOURS[n])
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{16 + 14 * n}" text-anchor="end" {colour}>{name}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n<title>{title}</title>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def base(nodes: int, params: float) -> Scenario:
    costs = Costs.of(nodes, params=params)
    settings = load(site=None, user=Path("/nonexistent"))
    return scenario_of(settings, nodes, 20.0, Hazard(), replace(costs, save_every=30, persist_every=10))


def goodput(scenarios: Sequence[Scenario], runs: int) -> list[float]:
    return [Summary.of(outcomes).goodput.mean for outcomes in simulate(scenarios, runs, 1)]


def saves(runs: int) -> str:
    every = (1, 3, 10, 30, 100, 300, 1000)
    series = {}
    for memory, name in ((True, "snapshots in memory"), (False, "checkpoints on disk only")):
        start = base(512, 175e9)
        known = []
        for n in every:
            nth, stall = (max(1, 300 // n), start.costs.stall) if memory else (1, start.costs.persist / 4)
            costs = replace(start.costs, save_every=n, persist_every=nth, memory=memory, stall=stall)
            known.append(replace(start, spares=4, costs=costs))
        series[name] = list(zip(map(float, every), goodput(known, runs), strict=True))
    title = "Goodput by save interval: 512 nodes, 175B parameters"
    return svg(title, "steps of 10 s between saves", series, [(n, str(n)) for n in every], ".1%")


def spares(runs: int) -> str:
    counts = (0, 1, 2, 4, 8, 16)
    series = {}
    for queue, name in ((0.0, "no queue"), (0.5, "a requeue waits 30 min"), (4.0, "a requeue waits 4 h")):
        start = base(512, 70e9)
        known = [replace(start, spares=n, costs=replace(start.costs, queue=queue * HOUR)) for n in counts]
        found = [share * 512 / (512 + n) for n, share in zip(counts, goodput(known, runs), strict=True)]
        series[name] = [(n + 1.0, share) for n, share in zip(counts, found, strict=True)]
    title = "Useful node time by spares: 512 nodes"
    return svg(title, "spare nodes", series, [(n + 1.0, str(n)) for n in counts], ".1%")


def returns() -> str:
    begins = (600.0, *ENDS)
    names = {0: "no other failure in 30 days", 1: "one", 2: "two or more"}
    series: dict[str, list[Point]] = {}
    for recent, name in names.items():
        for begin, end, rate in zip(begins, ENDS, PUBLISHED.rates(recent), strict=False):
            height = log10(rate / PUBLISHED.base)
            series.setdefault(name, []).extend([(begin, height), (end, height)])
    title = "Failures after a return (10^y times the base rate)"
    return svg(
        title,
        "time since the node returned",
        series,
        [(t, span(t)) for t in (HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY)],
        ".1f",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "docs" / "images")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    plots = {"saves": saves(args.runs), "spares": spares(args.runs), "returns": returns()}
    for name, text in plots.items():
        path = args.out / f"simulate-{name}.svg"
        path.write_text(text)
        print(path)


if __name__ == "__main__":
    main()
