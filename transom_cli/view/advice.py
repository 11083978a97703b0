"""What a run's own record says about its settings, in a few sentences. Pure.

Closed forms of what `transom advise` simulates. Each sentence names its gain; below `CLEAR` there is none.
"""

from collections.abc import Sequence
from math import inf, sqrt
from statistics import median

from transom_cli.core.category import category_name
from transom_cli.core.detection_cost import Stakes, cheapest, curve
from transom_cli.core.diagnose import SLOW
from transom_cli.core.goodput import NS, Kind
from transom_cli.core.goodput.account import step_times
from transom_cli.core.incident import Incident
from transom_cli.core.stall_state import StallLimits
from transom_cli.core.step_times import ENOUGH
from transom_cli.diagnose.slowness.changepoint import Limits
from transom_cli.plural import several
from transom_cli.simulate.model import Hazard
from transom_cli.supervise.run_record import RunRecord, incidents, recoveries
from transom_cli.view.report.model import Paragraph, ReportData, Section

CLEAR = 0.0005  # a gain of goodput below this is not worth a change
FEW = 3  # incidents below which nothing is concluded
LEAST = Limits().least  # a smaller change of the step time is noise
_BEFORE, _AFTER = 600.0, 20  # seconds before a relaunch, and samples after it, whose steps are compared
_DAY = 86400.0
_HANGS = 4.0e-3 * 13 / 419  # per node-day before there are any: Llama 3


def advice(book: RunRecord, factor: float = StallLimits().factor) -> tuple[str, ...]:
    """factor: the run's `detect.factor`."""
    found = incidents(book)
    if len(found) < FEW:
        return (f"{several(len(found), 'incident')} so far: too few to judge the settings by.",)
    stall = _stall_limit(book, factor, len(found))
    said = tuple(filter(None, (_saves(book), _spares(book), stall, _slow_nodes(book), _silences(found))))
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


def _slow_nodes(book: RunRecord) -> str:
    """Whether relaunches without a slow node made steps shorter. Without a rule for slow nodes there are none."""
    launches = (one for attempt in book.history.attempts for one in attempt.launches)
    steps = sorted((when, one.at / NS, seconds) for one in launches for when, seconds in step_times(one))
    records = (r for one in book.launchers for r in recoveries(one.records, one.attempt))
    told = sorted(r.at for r in records if r.what == "reported" and r.cause == SLOW)
    ratios = []
    for at, following in zip(told, (*told[1:], inf), strict=False):
        before = [seconds for when, _, seconds in steps if at - _BEFORE < when < at]
        after = [seconds for when, begun, seconds in steps if begun > at and when < following][:_AFTER]
        if before and after:
            ratios.append(median(after) / median(before))
    useless, count = sum(ratio > 1.0 - LEAST for ratio in ratios), len(ratios)
    if count < FEW or 2 * useless < count:
        return ""
    few = f"{useless} of {several(count, 'relaunch', 'relaunches')} made steps less than {LEAST:.0%} shorter"
    return f"Do not relaunch for slow nodes: {few}."


def _silences(found: Sequence[Incident]) -> str:
    """A silence that ends by itself costs a probe, and no training time."""
    over = sum(i.result == "ignored" for i in found)
    lost = sum(i.diagnosis is not None and i.diagnosis.cause == "node_lost" for i in found)
    if over < FEW or over <= lost:
        return ""
    return (
        f"Raise detect.node_silent: {over} silences of nodes ended by themselves, beside {several(lost, 'lost node')}. "
        "Each costs Slurm a probe, and the training nothing."
    )


def _stall_limit(book: RunRecord, factor: float, count: int) -> str:
    """The limit at which false restarts and late ones cost least, by the steps that this run has made."""
    times = _times(book)
    if len(times) < ENOUGH or not (step := median(times)):
        return ""
    sums = book.account.whole
    days = sums.wall / NS / _DAY
    false = sum(sums.ns[kind] for kind in (Kind.REDONE, Kind.RESTART)) / NS / count
    hangs = sum(category.causes for category in book.account.by_category if category_name(category.name) == "hang")
    stakes = Stakes(len(times) / days, max(hangs / days, _HANGS * len(book.state.job.nodes)), false, delay=step)
    scores = [seconds / step for seconds in times]
    best, wide = cheapest(curve(scores, stakes)), StallLimits().patience
    (now,) = curve(scores, stakes, limits=(factor * wide,))
    gain = (now.cost - best.cost) / _DAY
    if gain < CLEAR:
        return ""
    longest = f"a step took up to {max(scores):.0f} times the median"
    return f"Set detect.factor to {best.limit / wide:.0f} (now {factor:g}): {longest}. Gain: {gain:.2%}."
