"""Score the health checks: at least 25 faults, each on the first, a middle and the last node.

    python bench/health_matrix.py [--only FAULT,...] [--places 3] [--healthy 100] [--json]

Four nodes on this machine have their own namespaces (`health_nodes`), each checked by a real node worker. One of them
gets a fault, a real one if possible: processes are killed, stopped or starved, packets dropped, disks filled, servers
stopped. GPUs, kernel logs and /sys come from a stub (`health_faults` has the table).

found: the expected check blames the node with the expected verdict. named: no other node is bad. action: the decision
of the launcher's core, with three nodes needed out of four. seconds: the whole health run of all four nodes.

Needs root, and for some rows another program; cases that cannot be created here are listed as not tried. --healthy N:
also N preflights of healthy nodes on a real Slurm (`health_healthy`). Exit code 1 if a fault was missed, or if an
innocent or healthy node was named.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import health_delay
import health_nodes
from harness import progress, run_bench, surroundings
from health_faults import FAULTS
from health_healthy import Healthy, healthy
from health_nodes import Nodes
from health_rows import PLACES, WELL, Fault, Row, as_json, counts, hangs, judged, table

from transom_cli.errors import UsageError

READINGS, PROBED = "readings alone", "with the probe"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose names begin so, separated by commas; none: `--only -`")
    parser.add_argument("--places", type=int, default=3, choices=(1, 2, 3), help="of the four nodes [3]")
    parser.add_argument("--healthy", type=int, default=0, metavar="N", help="healthy preflights on a real Slurm [0]")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser.parse_args()


def chosen(only: str) -> tuple[Fault, ...]:
    wanted = tuple(filter(None, (word.strip() for word in only.split(","))))
    if wanted == ("-",):
        return ()
    unknown = [word for word in wanted if not any(f.name.startswith(word) for f in FAULTS)]
    if unknown:
        known = ", ".join(f.name for f in FAULTS)
        raise UsageError(f"No fault is called {', '.join(unknown)}", f"there are: {known}")
    return tuple(f for f in FAULTS if not wanted or f.name.startswith(wanted))


def untried(fault: Fault) -> str:
    """Why it cannot be made here."""
    missing = [program for program in fault.needs if shutil.which(program) is None]
    if missing:
        return f"no {', no '.join(missing)}"
    if fault.do == "slow" and not (health_nodes.CGROUP / "cpu.cfs_quota_us").exists():
        return "no control group with a CPU quota (cgroup v1)"
    if fault.net.startswith("delay"):
        return health_delay.why_not()
    return "" if "fusermount3" not in fault.needs or Path("/dev/fuse").exists() else "no /dev/fuse"


def tried(faults: Sequence[Fault], places: Sequence[str], why: str) -> tuple[list[Row], list[str], dict[str, float]]:
    """The rows; what is above MONITOR of nodes that are well; and how long their health run takes."""
    if why:
        return [Row(f.name, place, PLACES[place], untried=why) for f in faults for place in places], [], {}
    rows: list[Row] = []
    with Nodes() as nodes:
        alarms, usual = [], {}
        for probe in (False, True):
            report, took = nodes.check_nodes(probe=probe)
            usual[PROBED if probe else READINGS] = round(took, 1)
            alarms += [f"{f.node}: {f.check}: {f.evidence}" for f in report.findings if f.verdict.bad]
            shown = [f"{f.node} {f.check}" for f in report.findings if f.verdict not in WELL]
            progress(
                f"healthy nodes: {took:.1f} s{', with the probe' if probe else ''}; reported: {', '.join(shown) or '-'}"
            )
        quick = [f for f in faults if not f.probe and not f.waits]
        with ThreadPoolExecutor(1) as beside:
            waiting = beside.submit(_waiting, [f for f in faults if f.waits], places)
            rows += _all(nodes, quick, places)
            rows += waiting.result()
        rows += _all(nodes, [f for f in faults if f.probe], places)  # alone: they are about speed
    order = {fault.name: n for n, fault in enumerate(faults)}
    rows.sort(key=lambda row: order[row.fault])
    return rows, alarms, usual


def _waiting(faults: Sequence[Fault], places: Sequence[str]) -> list[Row]:
    """Beside others, on nodes of their own."""
    if not faults:
        return []
    with Nodes() as nodes:
        return _all(nodes, faults, places)


def _all(nodes: Nodes, faults: Sequence[Fault], places: Sequence[str]) -> list[Row]:
    rows = []
    for fault in faults:
        why = untried(fault)
        for place in places:
            if why:
                rows.append(Row(fault.name, place, PLACES[place], untried=why))
                continue
            report, took = nodes.check_nodes(fault, PLACES[place])
            rows.append(judged(fault, place, report.findings, took))
        mine = rows[-len(places) :]
        marks = " ".join("-" if row.untried else "ok" if row.well else "NO" for row in mine)
        progress(f"{fault.name}: {marks}")
    return rows


def document(rows: list[Row], alarms: list[str], usual: dict[str, float], well: Healthy | None) -> dict[str, Any]:
    where = surroundings()
    said: dict[str, Any] = {"schema": 1, "bench": "health-matrix", "where": where, **counts(rows)}
    said |= {"false_alarms": alarms, "healthy_seconds": usual, "table": as_json(rows)}
    return said | ({"healthy": well.document()} if well is not None else {})


def main() -> int:
    args = arguments()
    began = time.monotonic()
    faults, places = chosen(args.only), tuple(PLACES)[: args.places]
    rows, alarms, usual = tried(faults, places, health_nodes.why_not()) if faults else ([], [], {})
    well = healthy(args.healthy) if args.healthy else None
    if args.json:
        print(json.dumps(document(rows, alarms, usual, well), indent=1))
    else:
        lines = [f"healthy nodes, {what}: {took:.1f} s" for what, took in usual.items()]
        lines += [f"FALSE ALARM: {words}" for words in alarms]
        lines += [*table(rows), *hangs(rows, usual.get(READINGS, 0.0))] if rows else []
        lines += well.lines() if well is not None else []
        print("\n".join([*lines, f"took {(time.monotonic() - began) / 60:.1f} minutes"]))
    bad = alarms or any(not row.untried and not row.well for row in rows) or (well is not None and not well.well)
    return 1 if bad else 0


if __name__ == "__main__":
    run_bench(main)
