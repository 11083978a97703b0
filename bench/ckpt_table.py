"""The tables of bench/ckpt.py: medians by method, lower bounds, ratios. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ckpt_methods import METHODS
from rich.table import Table

OURS = "transom"
Row = Mapping[str, Any]
# what is measured in seconds: its key, its heading, and the kind of floor below it
SECONDS = (
    ("first", "first save", "copy"),
    ("stall", "stall", "copy"),
    ("durable", "durable", "disk write"),
    ("durable_beside", "durable, training", "disk write"),
    ("memory", "load, memory", "copy"),
    ("warm", "load, warm", "disk read, warm"),
    ("cold", "load, cold", "disk read, cold"),
)


def median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def summary(turns: Sequence[Row]) -> dict[str, Any]:
    """Of one method's turns in one case: medians over all rounds, in seconds and bytes; None: not there."""
    saves = [save for turn in turns for save in turn["saves"]]
    loads = [load for turn in turns for load in turn["loads"]]
    steady = [save["stall"] for save in saves if save["kind"] != "first"]
    beside = [save for save in saves if save["kind"] == "beside"]
    memory = [turn["memory"] for turn in turns if "after" in turn["memory"]]
    return {
        "rounds": len(turns),
        "saves": len(saves),
        "made": median(turn["made"] for turn in turns),
        "first": median(save["stall"] for save in saves if save["kind"] == "first"),
        "stall": median(steady),
        "stall_max": max(steady, default=None),
        "durable": median(save["durable"] for save in saves if save["kind"] == "alone"),
        "durable_beside": median(save["durable"] for save in beside),
        "speed": median(save["alone_s"] / save["beside_s"] for save in beside),
        "step": median(save["alone_s"] for save in beside),
        **{kind: median(x["seconds"] for x in loads if x["kind"] == kind) for kind in ("memory", "warm", "cold")},
        "cold_cached": median(x.get("cached") for x in loads if x["kind"] == "cold"),
        "identical": all(not load["wrong"] for load in loads) if loads else None,
        "extra_peak": median(found["peak"] - found["before"] for found in memory),
        "extra_after": median(found["after"] - found["before"] for found in memory),
        "survived": survived(turns),
    }


def survived(turns: Sequence[Row]) -> dict[str, Any]:
    """After kill -9 as the last save() returned: steps lost in each round (None: all), from where, what was wrong."""
    known = [turn["survived"] for turn in turns if "where" in turn["survived"]]
    lost = [None if t["step"] is None else t["newest"] - t["step"] for t in known]
    places = sorted({t["where"] for t in known if t["where"]})
    return {"lost": lost, "from": places, "silent": [line for t in known for line in t["silent"]]}


def floors(limits: Sequence[Mapping[str, float | str]], size: int) -> dict[str, float]:
    """Seconds that the machine itself needs for `size` bytes, by kind; what could not be measured is left out."""
    names = dict.fromkeys(name for limit in limits for name in limit)
    speeds = {name: _speed(limits, name) for name in names}
    copies = [speed for name, speed in speeds.items() if name.startswith("tensors") and speed]
    kinds = {"copy": max(copies, default=None), **{kind: speeds.get(kind) for _, _, kind in SECONDS if kind != "copy"}}
    return {kind: size / speed / 1e9 for kind, speed in kinds.items() if speed}


def _speed(limits: Sequence[Mapping[str, float | str]], name: str) -> float | None:
    return median(limit[name] for limit in limits if isinstance(limit.get(name), float))  # type: ignore[misc]


def ratios(rows: Mapping[str, Row], floor: Mapping[str, float]) -> list[dict[str, Any]]:
    """Every time over its floor, and every other's over ours, each with the baseline in seconds beside it."""
    found = []
    for method, row in rows.items():
        for key, _, kind in SECONDS:
            bases = {"floor": floor.get(kind)}
            if method != OURS and OURS in rows:
                bases[OURS] = rows[OURS][key]
            for name, base in bases.items():
                if row[key] is not None and base:
                    ratio = round(row[key] / base, 3)
                    found.append({"method": method, "of": key, "to": name, "ratio": ratio, "baseline_s": base})
    return found


def main_table(title: str, rows: Mapping[str, Row]) -> Table:
    table = _table(f"{title}: seconds, medians", "method", "made", "first", "stall", "max", "durable",
                   "training", "training", "load", "load", "load", "same", "extra memory", "after kill -9")  # fmt: skip
    table.add_row("", "", "save", "", "", "", "durable", "speed", "memory", "warm", "cold", "bits", "peak / after, MiB",
                  "steps lost", style="dim", end_section=True)  # fmt: skip
    for method, row in rows.items():
        keys = ("made", "first", "stall", "stall_max", "durable", "durable_beside")
        speed = "-" if row["speed"] is None else f"{row['speed']:.2f}"
        cold = seconds(row["cold"]) + ("?" if (row["cold_cached"] or 0) > 0.05 else "")
        same = {None: "-", True: "yes", False: "NO"}[row["identical"]]
        extra = f"{_mib(row['extra_peak'])} / {_mib(row['extra_after'])}"
        loads = [seconds(row["memory"]), seconds(row["warm"]), cold]
        times = [seconds(row[key]) for key in keys]
        table.add_row(METHODS[method].what, *times, speed, *loads, same, extra, survival(row["survived"]))
    return table


def ratio_table(title: str, rows: Mapping[str, Row], times: Sequence[Row], to: str) -> Table:
    """`to`: "floor" or "transom". Each cell: how many times the baseline, and the baseline."""
    table = _table(f"{title}: times {'the floor' if to == 'floor' else 'as long as transom'} (which is)", "method",
                   *(heading for _, heading, _ in SECONDS))  # fmt: skip
    cells = {(r["method"], r["of"]): f"{r['ratio']:.2f}x ({seconds(r['baseline_s'])})" for r in times if r["to"] == to}
    for method in rows:
        if any((method, key) in cells for key, _, _ in SECONDS):
            table.add_row(METHODS[method].what, *(cells.get((method, key), "-") for key, _, _ in SECONDS))
    return table


def limits_table(title: str, limits: Sequence[Mapping[str, float | str]], size: int) -> Table:
    table = _table(f"{title}: limits of this machine, medians", "what", "GB/s", "seconds")
    for name in dict.fromkeys(name for limit in limits for name in limit):
        speed = _speed(limits, name)
        if speed:
            table.add_row(name, f"{speed:.2f}", seconds(size / speed / 1e9))
        else:
            table.add_row(name, "-", str(limits[0][name]))
    return table


def survival(found: Row) -> str:
    """In words, for the table."""
    if found["silent"]:
        return "WRONG BITS"
    lost = found["lost"]
    if not lost:
        return "-"
    worst = "all" if None in lost else str(max(lost))
    best = "all" if all(x is None for x in lost) else str(min(x for x in lost if x is not None))
    return (worst if worst == best else f"{best} to {worst}") + (
        f" ({', '.join(found['from'])})" if found["from"] else ""
    )


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}" if value < 0.1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _mib(value: float | None) -> str:
    return "-" if value is None else f"{value / 2**20:.0f}"


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for other in others:
        table.add_column(other, justify="right", no_wrap=True)
    return table


def grouped(turns: Sequence[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    """In the order in which they first came."""
    found: dict[str, list[Row]] = {}
    for turn in turns:
        found.setdefault(key(turn), []).append(turn)
    return found
