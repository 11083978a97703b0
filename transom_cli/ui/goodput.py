"""A run's account as lines of text and as plain JSON values. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from transom_cli.core.goodput import NS, Account, Cause, Kind, Sums
from transom_cli.ui.words import count, fit, span

SCHEMA = 1
SHOWN = 8  # causes on the screen
WORDS: Mapping[Kind, str] = {
    Kind.PRODUCTIVE: "steps, done for the first time",
    Kind.REDONE: "steps that had been done before",
    Kind.CHECKPOINT: "the training waits for a checkpoint",
    Kind.DETECTION: "the last step before a fault to its first sign",
    Kind.RESTART: "from there to the next step; the run's start",
    Kind.PREFLIGHT: "nodes are examined before ranks start",
    Kind.QUEUE: "the job waits for nodes",
    Kind.HOLD: "the job waits for a person",
    Kind.IDLE: "nothing to train, or nobody to start it again",
    Kind.UNSEEN: "ranks run, and nothing tells whether they step",
}


def summary(account: Account) -> str:
    """One line for the status screen; "" as long as there is nothing to tell."""
    whole = account.whole
    if not account.beats or not whole.wall:
        return ""
    lost = _lost(whole, 2)
    return f"{percent(whole.goodput)} of {_time(whole.wall)}" + (f"; lost: {lost}" if lost else "")


def lines(run_id: str, account: Account, width: int = 80) -> list[str]:
    """The account of a run: its shares, its kinds of time, its attempts, and what cost most."""
    whole = account.whole
    since = "from submission to end" if account.over else "since submission"
    found = [f"{run_id}  goodput {percent(whole.goodput)}  of {_time(whole.wall)} {since}"]
    found.append(f"{'':12}ETTR {percent(whole.ettr)}  of the time without hold and idle")
    found.append(f"{'':12}runtime goodput {percent(whole.runtime)}  of the time with nodes")
    if not account.beats and whole.ns[Kind.UNSEEN]:
        found.append("note: no step of this run was seen, so that these are the least that they can be")
    found += ["", f"{'KIND':<12}{'TIME':>9}{'SHARE':>9}"]
    found += [_row(kind, whole) for kind in Kind if whole.ns[kind] or kind is Kind.PRODUCTIVE]
    if account.attempts:
        found += ["", f"{'ATTEMPT':<12}{'TIME':>9}{'GOODPUT':>9}  LOST"]
        found += [f"{name:<12}{_time(s.wall):>9}{percent(s.goodput):>9}  {_lost(s, 3)}" for name, s in account.attempts]
    if account.by_cause:
        found += ["", f"{'CAUSE':<12}{'TIME':>9}{'SHARE':>9}  OF WHICH"]
        found += [line for cause, sums in account.by_cause[:SHOWN] for line in _cause(cause, sums, whole)]
        if len(account.by_cause) > SHOWN:
            found.append(f"{len(account.by_cause) - SHOWN} more, each cost less: --json has them")
    return [fit(line.rstrip(), width) for line in found]


def document(run_id: str, account: Account) -> dict[str, Any]:
    """The same as JSON values; docs/goodput.md tells what each means."""
    whole = account.whole
    return {
        "schema": SCHEMA,
        "run_id": run_id,
        "begin": iso(account.begin),
        "until": iso(account.until),
        "over": account.over,
        "steps_seen": account.beats,
        **_sums(whole),
        "ettr": whole.ettr,
        "runtime_goodput": whole.runtime,
        "attempts": [{"attempt": name, **_sums(sums)} for name, sums in account.attempts],
        "causes": [cause_document(cause, sums) for cause, sums in account.by_cause],
        "spans": [
            {"begin_ns": s.begin, "end_ns": s.end, "kind": s.kind.value, "attempt": s.attempt, "cause": s.cause}
            for s in account.spans
        ],
    }


def cause_document(cause: Cause, sums: Sums) -> dict[str, Any]:
    told = {"cause": cause.key, "category": cause.category, "at": iso(cause.at)}
    return {**told, "lost_steps": cause.lost if cause.lost >= 0 else None, **_times(sums)}


def iso(at: int) -> str:
    """ns since the epoch, as UTC."""
    return datetime.fromtimestamp(at / NS, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def percent(share: float | None) -> str:
    """Never 100.0 % where something was lost."""
    if share is None:
        return "-"
    return f"{100 * (share if share >= 1.0 else min(share, 0.999)):.1f} %"


def spent(sums: Sums) -> Iterator[tuple[str, str]]:
    """What was lost, by kind, in the order of the table: its name and its time."""
    yield from ((kind.value, _time(sums.ns[kind])) for kind in Kind if kind is not Kind.PRODUCTIVE and sums.ns[kind])


def _row(kind: Kind, sums: Sums) -> str:
    share = sums.ns[kind] / sums.wall if sums.wall else None
    return f"{kind.value:<12}{_time(sums.ns[kind]):>9}{percent(share):>9}  {WORDS[kind]}"


def _cause(cause: Cause, sums: Sums, whole: Sums) -> Iterator[str]:
    told = ", ".join(f"{name} {time}" for name, time in spent(sums))
    yield f"{cause.key:<12}{_time(sums.wall):>9}{percent(sums.wall / whole.wall):>9}  {told}"
    more = [cause.category] if cause.category else []
    more += [f"{count(cause.lost)} {'step' if cause.lost == 1 else 'steps'} done again"] if cause.lost > 0 else []
    if more:
        yield f"{'':32}{', '.join(more)}"


def _lost(sums: Sums, most: int) -> str:
    found = sorted(((n, kind) for kind, n in sums.ns.items() if n and kind is not Kind.PRODUCTIVE), key=lambda x: -x[0])
    return ", ".join(f"{kind.value} {_time(n)}" for n, kind in found[:most])


def _time(ns: int) -> str:
    return span(ns / NS)


def _sums(sums: Sums) -> dict[str, Any]:
    return {"goodput": sums.goodput, **_times(sums)}


def _times(sums: Sums) -> dict[str, Any]:
    return {"wall_seconds": sums.wall / NS, "seconds": {kind.value: n / NS for kind, n in sums.ns.items()}}
