"""The tables of bench/recovery.py: medians by case, requirements, and how many times longer other tools took. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cases import CASES
from injury import PHASES, summary

Row = Mapping[str, Any]
_COLUMNS = ("total", *PHASES, "beyond")
_PARTS = ("import", "join")


@dataclass(frozen=True)
class Beside:
    """One recovery without transom. `seconds` None: no new step came, and `how` says what came instead."""

    by: str
    case: str
    seconds: float | None
    how: str
    start_up: Mapping[str, float]
    beyond: float | None


def summaries(rows: Sequence[Row]) -> dict[str, Any]:
    """By case: the runs, and median, min and max of what was measured, in seconds."""
    groups: dict[str, Any] = {}
    for case in dict.fromkeys(row["case"] for row in rows):
        of_case = [row for row in rows if row["case"] == case]
        groups[case] = _summary(of_case)
        parts = {"batch host": [r for r in of_case if r["batch_host"]], "others": _others(of_case)}
        if case == "node-kill":
            groups[case]["split"] = {name: _summary(part) for name, part in parts.items() if part}
    return groups


def _others(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if not row["batch_host"]]


def _summary(group: Sequence[Row]) -> dict[str, Any]:
    made = {column: summary([row[column] for row in group]) for column in _COLUMNS}
    found: dict[str, Any] = {"runs": len(group), **made, "start_up": start_up(row["start_up"] for row in group)}
    found["median_step"] = round(statistics.median(row["median_step"] for row in group), 3)
    seen = [row for row in group if "seen" in row]
    if seen:
        found["seen"] = summary([row["seen"] for row in seen])
        found["seen_limit"] = round(statistics.median(row["seen_limit"] for row in seen), 2)
        found["seen_ratio"] = summary([row["seen"] / row["seen_limit"] for row in seen])
    return found


def start_up(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Medians of what the ranks report; silent ranks do not count."""
    known = [part for part in parts if part]
    return {key: round(statistics.median(part[key] for part in known), 2) for key in known[0]} if known else {}


def targets(groups: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The limits of the medians, by case; a `ratio` above 1 misses the limit."""
    rows = []
    for name, group in groups.items():
        limit = CASES[name].limit
        if limit is not None:
            median = group["beyond"]["median"]
            rows.append({"case": name, "what": "beyond", "median": median, "limit": limit, "ratio": median / limit})
        if "seen" in group:
            seen = {"median": group["seen"]["median"], "limit": group["seen_limit"]}
            rows.append({"case": name, "what": "seen", **seen, "ratio": group["seen_ratio"]["median"]})
    return [{**row, "ratio": round(row["ratio"], 2), "met": row["ratio"] <= 1} for row in rows]


def ratios(groups: Mapping[str, Any], beside: Sequence[Beside]) -> list[dict[str, Any]]:
    """How many times transom's median the others' medians are; None: one of them never came, or transom has none."""
    rows = []
    for by, case in dict.fromkeys((b.by, b.case) for b in beside):
        these = [b for b in beside if (b.by, b.case) == (by, case)]
        back = [b.seconds for b in these if b.seconds is not None]
        ours = groups[case]["total"]["median"] if case in groups else None
        times = round(statistics.median(back) / ours, 1) if ours and len(back) == len(these) else None
        rows.append({"by": by, "case": case, "jobs": len(these), "back": len(back), "ratio": times})
    return rows


def table(groups: Mapping[str, Any], beside: Sequence[Beside], rows: Sequence[Row]) -> str:
    """The whole report, as text."""
    lines = ["seconds from the fault to the first new step: median (min to max)", ""]
    lines += [_line("case", "by", "jobs", "first new step", "import", "join", "beyond start-up", "times transom's")]
    by_key = {(r["by"], r["case"]): r["ratio"] for r in ratios(groups, beside)}
    for case in dict.fromkeys([*groups, *(b.case for b in beside)]):
        if case in groups:
            lines.append(_ours(case, "transom", groups[case]))
            lines += [_ours("", f"  {name}", part) for name, part in groups[case].get("split", {}).items()]
        for number, by in enumerate(dict.fromkeys(b.by for b in beside if b.case == case)):
            these = [b for b in beside if (b.by, b.case) == (by, case)]
            lines.append(_theirs("" if number or case in groups else case, by, these, by_key[by, case]))
    if groups:
        lines += ["", "where transom's seconds went (medians)", ""]
        lines.append(f"{'case':<24}" + "".join(f"{phase:>9}" for phase in PHASES))
        lines += [f"{case:<24}" + "".join(f"{g[p]['median']:>9.1f}" for p in PHASES) for case, g in groups.items()]
        equal = sum(row["bit_identical"] for row in rows)
        lines += ["", f"final state bit-identical to the uninterrupted run: {equal} of {len(rows)}"]
    for t in targets(groups):
        words = {"beyond": "beyond start-up", "seen": "to the launcher's finding"}[t["what"]]
        step = f" (median step {groups[t['case']]['median_step']:.2f} s)" if t["what"] == "seen" else ""
        verdict = "met" if t["met"] else "MISSED"
        lines.append(
            f"{t['case']}: {t['median']:.1f} s {words}, limit {t['limit']:.1f} s{step}: {t['ratio']:.2f}, {verdict}"
        )
    return "\n".join(lines)


def _ours(case: str, by: str, group: Mapping[str, Any]) -> str:
    parts = [_number(group["start_up"].get(part)) for part in _PARTS]
    return _line(case, by, str(group["runs"]), _span(group["total"]), *parts, _span(group["beyond"]), "")


def _theirs(case: str, by: str, these: Sequence[Beside], ratio: float | None) -> str:
    def span(value: Callable[[Beside], float | None]) -> str:
        return _span(summary([v for v in map(value, these) if v is not None]))

    failed = [b.how for b in these if b.seconds is None]
    first = span(lambda b: b.seconds) if len(failed) < len(these) else ""
    words = "; ".join(filter(None, [first, *dict.fromkeys(failed)]))
    parts = start_up(b.start_up for b in these)
    numbers = [_number(parts.get(part)) for part in _PARTS]
    times = f"{ratio:g}" if ratio else "-"
    return _line(case, by, str(len(these)), words, *numbers, span(lambda b: b.beyond), times)


def _line(case: str, by: str, jobs: str, first: str, imported: str, joined: str, beyond: str, times: str) -> str:
    return f"{case:<24}{by:<18}{jobs:>4}  {first:<25}{imported:>7}{joined:>6}  {beyond:<22}{times}".rstrip()


def _number(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}"


def _span(cell: Mapping[str, float]) -> str:
    return f"{cell['median']:.1f} ({cell['min']:.1f} to {cell['max']:.1f})" if cell else "-"
