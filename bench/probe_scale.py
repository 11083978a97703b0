"""Measure how long a probe of N nodes takes, without importing torch: simulated to 1,024 nodes, real to 64 ranks.

    python bench/probe_scale.py [--most 64] [--bad] [--json]

Planned: the coordinator's own code drives simulated nodes (`probe_sim`), up to 1,024 of them, and counts rounds,
messages and their total time. Measured: the same coordinator with real gloo ranks on this machine. They share its
cores, so their phases take longer with more ranks, unlike on real nodes. Each size is run twice and the second time
counts, since the first creates the kernels' inputs. Exit code 1 if a healthy node is blamed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from local_ranks import LocalRanks
from probe_sim import IMPORT, SimCrew, World
from rich.console import Console
from rich.table import Table

from transom_cli.health.check import About
from transom_cli.health.probe.drive import ProbeResult, drive
from transom_cli.health.probe.plan import ProbeLimits

PLANNED = (2, 3, 4, 8, 16, 32, 33, 64, 128, 256, 512, 1024)
MEASURED = (2, 4, 8, 16, 32, 64)
PHASES = ("compute", "all", "pairs", "again")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=64, help="of real ranks; 0 measures none [64]")
    parser.add_argument("--bad", action="store_true", help="plan with one node that reaches nobody")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser.parse_args()


def names(count: int) -> tuple[str, ...]:
    return tuple(f"node{i:04}" for i in range(count))


def row(nodes: int, result: ProbeResult, total: float, messages: int | None = None) -> dict[str, Any]:
    seconds = {part: sum(t for phase, t in result.timings if phase.startswith(part)) for part in PHASES}
    rounds = sum(1 for phase, _ in result.timings if phase.startswith(("pairs", "again")))
    blamed = sorted(f"{finding.node} {finding.check}" for finding in result.findings if finding.verdict.bad)
    return {"nodes": nodes, **seconds, "total": total, "rounds": rounds, "messages": messages, "blamed": blamed}


def planned(count: int, bad: bool) -> dict[str, Any]:
    nodes = names(count)
    crew = SimCrew(nodes, World(cut_off=frozenset(nodes[:1] if bad else ())))
    result = drive(crew, About(), ProbeLimits(), clock=crew.now)
    return row(count, result, crew.now() - IMPORT, crew.messages)


def measured(most: int) -> list[dict[str, Any]]:
    """All ranks are started once, and the smaller sizes use the first of them."""
    rows = []
    with LocalRanks(names(most)) as crew:
        for count in [size for size in MEASURED if size <= most]:
            some = crew.some(names(count))
            patient = ProbeLimits(probe_hello=120.0, probe_quick=180.0, probe_compute=60.0, probe_link=30.0)
            for _ in range(2):
                begun = time.monotonic()
                result = drive(some, About(), patient, addresses=dict.fromkeys(some.nodes, "127.0.0.1"))
                total = time.monotonic() - begun
            rows.append(row(count, result, total))
    return rows


def table(title: str, rows: list[dict[str, Any]]) -> Table:
    made = Table(title=title)
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "nodes": lambda r: str(r["nodes"]),
        **{f"{part}, s": (lambda r, part=part: f"{r[part]:.2f}") for part in PHASES},  # type: ignore[misc]
        "total, s": lambda r: f"{r['total']:.2f}",
        "rounds of pairs": lambda r: str(r["rounds"]),
        "messages": lambda r: "" if r["messages"] is None else str(r["messages"]),
        "blamed": lambda r: ", ".join(r["blamed"]) or "-",
    }
    for heading in columns:
        made.add_column(heading, justify="right")
    for one in rows:
        made.add_row(*(text(one) for text in columns.values()))
    return made


def main() -> int:
    args = arguments()
    plan = [planned(count, args.bad) for count in PLANNED]
    real = measured(args.most) if args.most else []
    if args.json:
        print(json.dumps({"schema": 1, "cores": os.cpu_count(), "planned": plan, "measured": real}))
    else:
        console = Console(width=120)
        console.print(table("planned, in the nodes' own time", plan))
        if real:
            console.print(table(f"measured: gloo ranks on the {os.cpu_count()} cores of this machine", real))
    return int(any(r["blamed"] for r in [*real, *([] if args.bad else plan)]))


if __name__ == "__main__":
    sys.exit(main())
