"""What a run's own record says about its settings, in a few sentences. Pure.

Closed forms of what `transom advise` simulates. Each sentence names its gain; below `CLEAR` there is none.
"""

from __future__ import annotations

from math import sqrt
from statistics import median

from transom_cli.core.detection_cost import Stakes, cheapest, curve
from transom_cli.core.goodput import NS, Kind
from transom_cli.core.goodput.account import step_times
from transom_cli.core.stall_state import StallLimits
from transom_cli.core.step_times import ENOUGH
from transom_cli.plural import several
from transom_cli.simulate.model import Hazard
from transom_cli.supervise.run_record import RunRecord, incidents
from transom_cli.view.report.model import Paragraph, ReportData, Section

CLEAR = 0.0005  # a gain of goodput below this is not worth a change
FEW = 3  # incidents below which nothing is concluded
_DAY = 86400.0
_HANGS = 4.0e-3 * 13 / 419  # per node-day before there are any: Llama 3


def advice(book: RunRecord, factor: float = StallLimits().factor) -> tuple[str, ...]:
    """factor: the run's `detect.factor`."""
    found = incidents(book)
    if len(found) < FEW:
        return (f"{several(len(found), 'incident')} so far: too few to judge the settings by.",)
    said = tuple(filter(None, (_saves(book), _spares(book), _stall_limit(book, factor, len(found)))))
    return said or (f"After {several(len(found), 'incident')}, no setting promises more than {CLEAR:.2%} of goodput.",)


def section(data: ReportData) -> Section:
    detect = data.settings.get("detect", {}) if not isinstance(data.settings, str) else {}
    said = advice(data.book, float(detect.get("factor", StallLimits().factor)))
    return Section("advice", "Advice", tuple(map(Paragraph, said)))


def _saves(book: RunRecord) -> str:
    """At the optimal interval (Young), saves cost as much time as repeated steps do."""
    sums = book.account.whole
    saves, again = sums.ns[Kind.CHECKPOINT] / sums.wall, sums.ns[Kind.REDONE] / sums.wall
    gain = saves + again - 2 * sqrt(saves * again)
    if not saves or not again or gain < CLEAR:
        return ""
    often = sqrt(again / saves)
    how = f"{often:.1f} times as often" if often > 1 else f"{1 / often:.1f} times as rarely"
    return f"Save {how}: saves cost {saves:.2%} of the time, and repeated steps {again:.2%}. Gain: {gain:.2%}."


def _spares(book: RunRecord) -> str:
    sums, nodes = book.account.whole, len(book.state.job.nodes)
    waits, attempts = sums.ns[Kind.QUEUE] / sums.wall, len(book.account.attempts)
    if book.state.request.spares or attempts <= FEW or not nodes or waits - 1 / (nodes + 1) < CLEAR:
        return ""
    gain = waits - 1 / (nodes + 1)
    return (
        f"Add a spare node: {several(attempts, 'attempt')} waited {waits:.2%} of the time for nodes. Gain: {gain:.2%}."
    )


def _times(book: RunRecord) -> list[float]:
    launches = (one for attempt in book.history.attempts for one in attempt.launches)
    return [seconds for one in launches for _, seconds in step_times(one)]


def pace(book: RunRecord) -> float:
    """Return the median seconds of a step; 0 if no step is known."""
    times = _times(book)
    return median(times) if times else 0.0


def faults_of(book: RunRecord) -> Hazard | None:
    """Return how often the run's nodes fail; None before `FEW` incidents."""
    count, days = len(incidents(book)), book.account.whole.wall / NS / _DAY
    return Hazard(per_node_day=count / days / len(book.state.job.nodes)) if count >= FEW and days else None


def _stall_limit(book: RunRecord, factor: float, count: int) -> str:
    """The limit at which false restarts and late ones cost least, by the steps that this run has made."""
    times = _times(book)
    if len(times) < ENOUGH or not (step := median(times)):
        return ""
    sums = book.account.whole
    days = sums.wall / NS / _DAY
    false = sum(sums.ns[kind] for kind in (Kind.REDONE, Kind.RESTART)) / NS / count
    hangs = sum(category.causes for category in book.account.by_category if category.name == "hang")
    stakes = Stakes(len(times) / days, max(hangs / days, _HANGS * len(book.state.job.nodes)), false, delay=step)
    scores = [seconds / step for seconds in times]
    best, wide = cheapest(curve(scores, stakes)), StallLimits().patience
    (now,) = curve(scores, stakes, limits=(factor * wide,))
    gain = (now.cost - best.cost) / _DAY
    if gain < CLEAR:
        return ""
    longest = f"a step took up to {max(scores):.0f} times the median"
    return f"Set detect.factor to {best.limit / wide:.0f} (now {factor:g}): {longest}. Gain: {gain:.2%}."
