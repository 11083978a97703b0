"""The account of a run's time as text and as JSON. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from transom_cli.core.category import category_name
from transom_cli.core.goodput import NS, Account, Cause, Kind, Sums, account
from transom_cli.core.goodput.account import Category
from transom_cli.core.goodput.partition import START
from transom_cli.plural import several
from transom_cli.supervise.run_record import RunRecord
from transom_cli.view.model import RunView
from transom_cli.view.text import count, fit, span, utc, wrapped

SCHEMA = 1
SHOWN = 5  # attempts and causes
_OWN_SAVES = "if your script loads its own, the shares are lower bounds"
DESCRIPTIONS: Mapping[Kind, str] = {
    Kind.PRODUCTIVE: "steps done for the first time",
    Kind.REDONE: "steps repeated after a rollback",
    Kind.CHECKPOINT: "training waits for a checkpoint",
    Kind.DETECTION: "last step before a fault to its first sign",
    Kind.RESTART: "first sign to next step; start of the run",
    Kind.PREFLIGHT: "nodes are checked before ranks start",
    Kind.QUEUE: "the job waits for nodes",
    Kind.HOLD: "the job is held",
    Kind.IDLE: "nothing to train, or no operator to restart it",
    Kind.UNSEEN: "ranks run, but no steps are visible",
}


def account_now(book: RunRecord, view: RunView) -> Account:
    """Return the account of the run, in which a training that makes no steps now is not productive since its last."""
    quiet = view.no_step_for
    return book.account if quiet is None else account(replace(book.history, stepless=int((view.now - quiet) * NS)))


def summary(account: Account) -> str:
    """Return one line for the status screen; "" if nothing is known yet."""
    whole = account.whole
    if not account.steps_seen or not whole.wall:
        return ""
    lost = largest_losses(whole, 2, _start(account))
    return f"{percent(whole.goodput)} of {duration(whole.wall)}" + (f"; lost: {lost}" if lost else "")


def goodput_lines(run_id: str, account: Account, width: int = 80) -> list[str]:
    """Return the shares, and tables by kind, attempt, category and cause."""
    whole = account.whole
    since = "from submission to end" if account.over else "since submission"
    figure = f"goodput {percent(whole.goodput)}"
    shares = f"{figure}  of {duration(whole.wall)} {since}"
    # On a narrow screen, a long run ID must not push the figure out.
    found = [f"{run_id}  {shares}"] if len(f"{run_id}  {figure}") + 3 < width else [run_id, f"{'':12}{shares}"]
    found.append(f"{'':12}ETTR {percent(whole.ettr)}  of the time without hold and idle")
    found.append(f"{'':12}runtime goodput {percent(whole.runtime)}  of the time with nodes")
    if not account.steps_seen and whole.ns[Kind.UNSEEN]:
        found.append("note: no steps of this run were seen; the shares are lower bounds")
    if account.from_zero and whole.ns[Kind.REDONE]:
        found += wrapped(
            "note: ", f"no checkpoint is known, so steps after a restart are repeated; {_OWN_SAVES}", width
        )
    found += ["", f"{'KIND':<12}{'TIME':>9}{'SHARE':>9}"]
    found += [_kind_row(kind, whole) for kind in Kind if whole.ns[kind] or kind is Kind.PRODUCTIVE]
    # With one kind of recovery, or few causes, the table of causes is enough.
    recoveries = _sorts("RECOVERY", account.by_recovery, account, width) if len(account.by_recovery) > 1 else []
    categories = _sorts("CATEGORY", account.by_category, account, width) if len(account.by_cause) > SHOWN else []
    for part in (_attempts(account, width), recoveries, categories, _causes(account, width)):
        found += ["", *part] if part else []
    return [fit(line.rstrip(), width) for line in found]


def goodput_document(run_id: str, account: Account) -> dict[str, Any]:
    """Return JSON values; docs/goodput.md describes them."""
    whole = account.whole
    return {
        "schema": SCHEMA,
        "run_id": run_id,
        "begin": utc(account.begin / NS),
        "until": utc(account.until / NS),
        "over": account.over,
        "steps_seen": account.steps_seen,
        **_sums(whole),
        "ettr": whole.ettr,
        "runtime_goodput": whole.runtime,
        "attempts": [{"attempt": name, **_sums(sums)} for name, sums in account.attempts],
        "causes": [_cause_document(cause, sums) for cause, sums in account.by_cause],
        "categories": [{"category": one.name, "causes": one.causes, **_times(one.sums)} for one in account.by_category],
        "recoveries": [{"how": one.name, "causes": one.causes, **_times(one.sums)} for one in account.by_recovery],
        "spans": [
            {"begin_ns": s.begin, "end_ns": s.end, "kind": s.kind.value, "attempt": s.attempt, "cause": s.cause}
            for s in account.spans
        ],
    }


def _cause_document(cause: Cause, sums: Sums) -> dict[str, Any]:
    about = {"cause": cause.key, "category": cause.category, "how": cause.recovery, "at": utc(cause.at / NS)}
    steps = {"planned": cause.planned, "lost_steps": cause.lost if cause.lost >= 0 else None}
    return {**about, **steps, **_times(sums)}


def category_words(cause: Cause) -> str:
    """Return the category in words; "" if there is none."""
    return category_name(cause.category) + " (planned)" * cause.planned


def percent(share: float | None) -> str:
    """Format a share, never rounded up to 100.0% or down to 0.0%."""
    if share is None:
        return "-"
    if 0.0 < share < 0.0005:
        return "< 0.1%"
    return f"{100 * (share if share >= 1.0 else min(share, 0.999)):.1f}%"


def duration(ns: int) -> str:
    return span(ns / NS)


def lost_by_kind(sums: Sums) -> Iterator[tuple[str, str]]:
    """Yield the name and time of each kind of loss, in the order of the table."""
    yield from ((kind.value, duration(sums.ns[kind])) for kind in Kind if kind is not Kind.PRODUCTIVE and sums.ns[kind])


def _start(account: Account) -> int:
    """Return the time of kind `restart` that was the run's first start (ns)."""
    return next((sums.ns[Kind.RESTART] for cause, sums in account.by_cause if cause.key == START), 0)


def largest_losses(sums: Sums, most: int, start: int = 0) -> str:
    """Name the largest kinds of losses. start: as `_start`; it is named by itself."""
    times = {kind.value: n for kind, n in sums.ns.items() if kind is not Kind.PRODUCTIVE}
    times = {**times, Kind.RESTART.value: times[Kind.RESTART.value] - start, START: start}
    found = sorted(((n, name) for name, n in times.items() if n > 0), key=lambda x: -x[0])
    return ", ".join(f"{name} {duration(n)}" for n, name in found[:most])


def _kind_row(kind: Kind, sums: Sums) -> str:
    share = sums.ns[kind] / sums.wall if sums.wall else None
    return f"{kind.value:<12}{duration(sums.ns[kind]):>9}{percent(share):>9}  {DESCRIPTIONS[kind]}"


def _attempts(account: Account, width: int) -> list[str]:
    shown = account.attempts[-SHOWN:]
    if not shown:
        return []
    found = [f"{'ATTEMPT':<12}{'TIME':>9}{'GOODPUT':>9}  LARGEST LOSSES"]
    for name, s in shown:
        before = f"{name:<12}{duration(s.wall):>9}{percent(s.goodput):>9}  "
        found += wrapped(before, largest_losses(s, 2), width)
    return [*found, *_more(len(account.attempts) - SHOWN, "earlier")]


def _sorts(title: str, sorts: Sequence[Category], account: Account, width: int) -> list[str]:
    found = [f"{'COUNT':>5}{'TIME':>16}{'SHARE':>9}  {title}"]
    for one in sorts:
        share = percent(one.sums.wall / account.whole.wall)
        before = f"{count(one.causes):>5}{duration(one.sums.wall):>16}{share:>9}  "
        found += wrapped(before, f"{category_name(one.name)}: {largest_losses(one.sums, 2)}", width)
    return found


def _causes(account: Account, width: int) -> list[str]:
    shown = account.by_cause[:SHOWN]
    if not shown:
        return []
    found = [f"{'CAUSE':<12}{'TIME':>9}{'SHARE':>9}  BREAKDOWN"]
    found += [line for cause, sums in shown for line in _cause(cause, sums, account.whole, width)]
    return [*found, *_more(len(account.by_cause) - SHOWN, "cheaper")]


def _more(left: int, which: str) -> list[str]:
    return [f"{count(left)} {which}, not shown (--json has them)"] if left > 0 else []


def _cause(cause: Cause, sums: Sums, whole: Sums, width: int) -> Iterator[str]:
    kinds = ", ".join(f"{name} {time}" for name, time in lost_by_kind(sums))
    before = f"{cause.key:<12}{duration(sums.wall):>9}{percent(sums.wall / whole.wall):>9}  "
    yield from wrapped(before, kinds, width)
    more = [words for words in (category_words(cause), cause.recovery) if words]
    more += [f"{several(cause.lost, 'step')} repeated"] if cause.lost > 0 else []
    if more:
        yield f"{'':32}{', '.join(more)}"


def _sums(sums: Sums) -> dict[str, Any]:
    return {"goodput": sums.goodput, **_times(sums)}


def _times(sums: Sums) -> dict[str, Any]:
    return {"wall_seconds": sums.wall / NS, "seconds": {kind.value: n / NS for kind, n in sums.ns.items()}}
