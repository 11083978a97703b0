"""The final report of the demo: the incident as a table, and the comparison of the two results. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

_WORDS = {
    "seen": "first sign",
    "examined": "logs read",
    "probed": "node probed",
    "diagnosed": "diagnosed",
    "isolated": "isolated",
    "requeued": "requeued",
    "launched": "ranks started",
    "running": "job runs",
    "first_step": "training again",
}


def incident_table(incident: Mapping[str, Any], victim: str, killed_at: float, width: int) -> list[str]:
    """Return the incident as lines of at most `width` columns: time, event, and seconds since the previous line.

    `killed_at` and the marks are Unix times.
    """
    row = "   {:>8}  {:>8}  {:<15}  {}".format
    lines = [row("when", "took", "what", ""), row(_clock(killed_at), "", "node dies", f"{victim} (that was us)")]
    last = killed_at
    for at, what, words in incident["marks"]:
        lines.append(row(_clock(at), f"{max(at - last, 0.0):.2f} s", _WORDS.get(what, what), words))
        last = max(at, last)
    lines = [line.rstrip() if len(line) <= width else line[: max(width - 3, 0)] + "..." for line in lines]
    if incident["result"] == "recovered":
        lines += ["", f"   From the node's death to the next step: {last - killed_at:.1f} s."]
    return lines


def compare(undisturbed: Mapping[str, Any], supervised: Mapping[str, Any]) -> tuple[bool, list[str]]:
    """Return whether the two hashes over all parameters and optimizer tensors are equal, and lines that say so."""
    lines = []
    for name, result in (("undisturbed", undisturbed), ("with a node lost", supervised)):
        lines.append(f"{name:<17} sha256 {result['sha256']}")
    equal = bool(undisturbed["sha256"]) and dict(undisturbed) == dict(supervised)
    state = f"{supervised['tensors']} parameter and optimizer tensors, {supervised['bytes']:,} bytes"
    state += f", after step {supervised['step']}"
    lines += ["", f"bit-identical: {state}" if equal else f"DIFFERENT: the two final states are not the same ({state})"]
    return equal, lines


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
