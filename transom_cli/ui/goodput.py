"""A run's account as lines of text and as plain JSON values. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transom_cli.core.goodput import NS, Account, Cause, Kind, Sums
from transom_cli.ui.words import count, fit, span, utc
from transom_cli.ui.wrapping import wrapped

SCHEMA = 1
SHOWN = 5  # attempts and causes on the screen
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
    found += [
        line
        for part in (_attempts(account, width), _categories(account, width), _causes(account, width))
        for line in ("", *part)
        if part
    ]
    return [fit(line.rstrip(), width) for line in found]


def document(run_id: str, account: Account) -> dict[str, Any]:
    """The same as JSON values; docs/goodput.md tells what each means."""
    whole = account.whole
    return {
        "schema": SCHEMA,
        "run_id": run_id,
        "begin": utc(account.begin / NS),
        "until": utc(account.until / NS),
        "over": account.over,
        "steps_seen": account.beats,
        **_sums(whole),
        "ettr": whole.ettr,
        "runtime_goodput": whole.runtime,
        "attempts": [{"attempt": name, **_sums(sums)} for name, sums in account.attempts],
        "causes": [cause_document(cause, sums) for cause, sums in account.by_cause],
        "categories": [{"category": one.name, "causes": one.causes, **_times(one.sums)} for one in account.by_category],
        "spans": [
            {"begin_ns": s.begin, "end_ns": s.end, "kind": s.kind.value, "attempt": s.attempt, "cause": s.cause}
            for s in account.spans
        ],
    }


def cause_document(cause: Cause, sums: Sums) -> dict[str, Any]:
    told = {"cause": cause.key, "category": cause.category, "at": utc(cause.at / NS)}
    return {**told, "lost_steps": cause.lost if cause.lost >= 0 else None, **_times(sums)}


def percent(share: float | None) -> str:
    """Never 100.0 % where something was lost, nor 0.0 % where something was not."""
    if share is None:
        return "-"
    if 0.0 < share < 0.0005:
        return "< 0.1 %"
    return f"{100 * (share if share >= 1.0 else min(share, 0.999)):.1f} %"


def spent(sums: Sums) -> Iterator[tuple[str, str]]:
    """What was lost, by kind, in the order of the table: its name and its time."""
    yield from ((kind.value, _time(sums.ns[kind])) for kind in Kind if kind is not Kind.PRODUCTIVE and sums.ns[kind])


def _row(kind: Kind, sums: Sums) -> str:
    share = sums.ns[kind] / sums.wall if sums.wall else None
    return f"{kind.value:<12}{_time(sums.ns[kind]):>9}{percent(share):>9}  {WORDS[kind]}"


def _attempts(account: Account, width: int) -> list[str]:
    shown = account.attempts[-SHOWN:]
    if not shown:
        return []
    found = [f"{'ATTEMPT':<12}{'TIME':>9}{'GOODPUT':>9}  MOST LOST TO"]
    for name, s in shown:
        found += wrapped(f"{name:<12}{_time(s.wall):>9}{percent(s.goodput):>9}  ", _lost(s, 2), width)
    return [*found, *_more(len(account.attempts) - SHOWN, "before them")]


def _categories(account: Account, width: int) -> list[str]:
    """Where there are few causes, the table of these tells it all."""
    if len(account.by_cause) <= SHOWN:
        return []
    found = [f"{'TIMES':>5}{'TIME':>16}{'SHARE':>9}  CATEGORY"]
    for one in account.by_category:
        share = percent(one.sums.wall / account.whole.wall)
        before = f"{count(one.causes):>5}{_time(one.sums.wall):>16}{share:>9}  "
        found += wrapped(before, f"{one.name}: {_lost(one.sums, 2)}", width)
    return found


def _causes(account: Account, width: int) -> list[str]:
    shown = account.by_cause[:SHOWN]
    if not shown:
        return []
    found = [f"{'CAUSE':<12}{'TIME':>9}{'SHARE':>9}  OF WHICH"]
    found += [line for cause, sums in shown for line in _cause(cause, sums, account.whole, width)]
    return [*found, *_more(len(account.by_cause) - SHOWN, "that cost less")]


def _more(left: int, which: str) -> list[str]:
    return [f"{count(left)} more, {which}: --json has them"] if left > 0 else []


def _cause(cause: Cause, sums: Sums, whole: Sums, width: int) -> Iterator[str]:
    told = ", ".join(f"{name} {time}" for name, time in spent(sums))
    yield from wrapped(f"{cause.key:<12}{_time(sums.wall):>9}{percent(sums.wall / whole.wall):>9}  ", told, width)
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
