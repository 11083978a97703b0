"""Reads what is known about failures: the StepFun trace, transom's node history, and `sacct`'s records."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from transom_cli.errors import UsageError
from transom_cli.files import json_lines
from transom_cli.health.history.nodes import fold
from transom_cli.health.history.records import from_json
from transom_cli.simulate.model import CRASH, DAY, LOST, Fault, Hazard, Outage, Trace
from transom_cli.slurm.parse import parse_nodes

STEPFUN = Path(__file__).parent / "data" / "infinitehbd_fault_trace.json.gz"
STEPFUN_NODES = 400
STRESS_TEST = "Stress Test Failure"

# What a class of the trace does to a training, and how well checks find it: our assumption.
_GPU = Fault("gpu", 0, CRASH, 1.0, "gpu_hardware", "CUDA error: uncorrectable ECC error", "gpu_xid", 0.7, 0.9)
_LINK = Fault("network", 0, CRASH, 1.0, "network_fabric", "NCCL WARN Net: connection closed", "ib_link", 0.5, 0.8)
_OTHER = Fault("unknown", 0, CRASH, 1.0, "unknown", "", "", 0.0, 0.0)
_GONE = Fault("node", 0, LOST)
_FAULTS = {
    "GPU": _GPU,
    "NIC": _LINK,
    "Parameter Plane Cable": _LINK,
    "Fan": replace(_OTHER, name="fan"),
    "Power Supply": _GONE,
    "Motherboard": _GONE,
    "CPU": _GONE,
    "System Crash": _GONE,
    "Operating System": _GONE,
}


def read_failures(source: str) -> Trace | Hazard:
    """Read a trace or a failure rate.

    Args:
        source: `stepfun`, or a file: a trace in StepFun's format (JSON, or .gz), a file of transom's node history, or
            the output of `sacct -a -P -o JobIDRaw,State,Start,End,NodeList` with SLURM_TIME_FORMAT=%s.
    """
    path = STEPFUN if source == "stepfun" else Path(source)
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"Cannot read `{path}`", error.strerror or str(error)) from error
    if text.lstrip().startswith("["):
        try:
            return stepfun_trace(json.loads(text), STEPFUN_NODES if path == STEPFUN else 0)
        except (ValueError, KeyError, TypeError) as error:
            hint = "each record has node_id, event_time, event_type and fault_type (docs/simulate.md)"
            raise UsageError(
                f"`{path}` is not a trace in StepFun's format", f"{type(error).__name__}: {error}", hint
            ) from error
    found = _of_history(text) if text.lstrip().startswith("{") else _of_sacct(text)
    if found is None:
        hint = "give `stepfun`, a JSON trace, a file of the node history, or the output of sacct -P"
        raise UsageError(f"`{path}` records no use of nodes", "no failure rate can be computed", hint)
    return found


def stepfun_trace(records: list[dict[str, Any]], nodes: int = 0) -> Trace:
    """Build a trace from StepFun's records, without stress tests. nodes: with those that never failed."""
    outages: list[Outage] = []
    begun: dict[tuple[str, str], list[float]] = {}
    for record in sorted(records, key=lambda r: float(r["event_time"])):
        kind = record["fault_type"]
        if kind["Class"] == STRESS_TEST:
            continue
        key, at = (record["node_id"], json.dumps(kind)), float(record["event_time"]) * DAY
        if record["event_type"] == "fault_start":
            begun.setdefault(key, []).append(at)
        elif begun.get(key):
            fault = replace(_FAULTS.get(kind["Class"], _OTHER), hardware=kind["Level"] == "Hardware Failure")
            outages.append(Outage(record["node_id"], begun[key].pop(0), at, fault))
    length = max((float(r["event_time"]) for r in records), default=0.0) * DAY
    ordered = sorted(outages, key=lambda o: (o.begin, o.node))
    return Trace(tuple(ordered), max(nodes, len({o.node for o in ordered})), length)


def _of_history(text: str) -> Hazard | None:
    """The failure rate of a site's own nodes, from transom's node history."""
    records = [r for line in json_lines(text.encode()) if (r := from_json(line)) is not None]
    history = fold(records, max((r.wall for r in records), default=0.0))
    hours = sum(use.hours for use in history.uses)
    failures = sum(len(use.failures) for use in history.uses)
    return Hazard(per_node_day=max(failures, 0.5) / (hours / 24.0)) if hours else None


def _of_sacct(text: str) -> Hazard | None:
    """The rate of Slurm's own node failures. Slurm does not see most faults of GPUs and links."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") >= 4]
    seconds, failures = 0.0, 0
    for _, state, begin, end, names, *_ in rows:
        if begin.isdecimal() and end.isdecimal():
            seconds += len(parse_nodes(names, "sacct")) * max(0, int(end) - int(begin))
            failures += state.startswith("NODE_FAIL")
    return Hazard(per_node_day=max(failures, 0.5) / (seconds / DAY)) if seconds else None
