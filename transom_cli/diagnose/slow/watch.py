"""The detector of slowness of a whole training: `watch(state, readings) -> (state, news)`. Pure.

Readings are the nodes' accounts (beats.spent). Watched are the run's step time and, where ranks tell how long they
wait, each rank's own time, all together with the false-alarm rate of one series. What went up is explained by the maps
of before and after. Besides, who differs from the others all the time is told, from the third map in a row on.

News are edges: each slowness is told once, and once more when it is over. Nothing is known of a launch that has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from transom_cli.beats.phases import WAIT
from transom_cli.beats.spent import NodeSpent, RankSpent
from transom_cli.diagnose.oddity import Slow
from transom_cli.diagnose.slow import causes, changepoint
from transom_cli.diagnose.slow.causes import Slowness
from transom_cli.diagnose.slow.changepoint import AsBefore, Limits, Series, Slower
from transom_cli.diagnose.slow.heatmap import HeatMap, Row, between
from transom_cli.diagnose.slow.history import Snapshot, around, map_between, remember

APART = 30.0  # seconds between two readings that are kept
BACK = 3  # readings that the present map reaches back
IN_A_ROW = 3  # maps that must show the same before it is told that a rank differs, or that it is over


@dataclass(frozen=True)
class Told:
    """A slowness that began, seen at this step, by `by`: "run", "map", or a rank's number."""

    step: int
    slowness: Slowness
    by: str


@dataclass(frozen=True)
class Over:
    step: int
    told: Told


@dataclass(frozen=True)
class SlowState:
    """launch: attempt and launch. latest: each rank's node and last account. map: of the last minutes.

    differing: the key of what the last maps show of differing ranks, and how often in a row; also "", for nothing.
    """

    launch: tuple[str, int] = ("", -1)
    run: Series = field(default_factory=Series)
    ranks: Mapping[int, Series] = field(default_factory=dict)
    latest: Mapping[int, tuple[str, RankSpent]] = field(default_factory=dict)
    history: tuple[Snapshot, ...] = ()
    kept_at: float = float("-inf")
    standing: tuple[Told, ...] = ()
    map: HeatMap | None = None
    differing: tuple[str, int] = ("", 0)


def watch(state: SlowState, readings: Mapping[str, NodeSpent]) -> tuple[SlowState, tuple[Told | Over, ...]]:
    """One look at the accounts of one attempt's nodes, by node."""
    state, over = _newest_launch(state, readings)
    ranks = {
        rank.rank: (node.node, rank)
        for node in readings.values()
        for rank in node.ranks
        if (node.attempt, rank.launch) == state.launch and rank.step >= 0
    }
    rows = {
        rank: row
        for rank, (node, spent) in ranks.items()
        if rank in state.latest and (row := between(node, state.latest[rank][1], spent)) is not None
    }
    state = replace(state, latest={**state.latest, **ranks})
    lead = min(state.latest, default=-1)
    news: list[Told | Over] = list(over)
    if lead in rows:
        state, found = _run(state, rows[lead])
        news += found
    state, found = _each(state, rows)
    news += found
    if lead in rows:
        state, found = _keep(state, state.latest[lead][1].at)
        news += found
    return state, tuple(news)


def _newest_launch(state: SlowState, readings: Mapping[str, NodeSpent]) -> tuple[SlowState, tuple[Over, ...]]:
    """What a rank spent before a restart is compared with nothing after it; the run's step time is."""
    told = [(node.attempt, rank.launch) for node in readings.values() for rank in node.ranks]
    launch = max(told, key=lambda one: one[1], default=state.launch)
    if launch[0] == state.launch[0] and launch[1] <= state.launch[1]:
        return state, ()
    over = tuple(Over(state.run.step, one) for one in state.standing)
    return SlowState(launch, changepoint.restarted(state.run)), over


def _run(state: SlowState, row: Row) -> tuple[SlowState, list[Told | Over]]:
    step = state.latest[row.rank][1].step
    run, found = changepoint.watch(state.run, step, row.step, Limits())
    state = replace(state, run=run)
    news: list[Told | Over] = []
    for one in found:
        if isinstance(one, AsBefore):
            state, gone = _over(state, step, lambda told: told.by != "map")
            news += gone
        else:
            state, begun = _tell(state, Told(step, _explain(state, one), "run"))
            news += begun
    return state, news


def _each(state: SlowState, rows: Mapping[int, Row]) -> tuple[SlowState, list[Told | Over]]:
    """Every rank's own time, where it is told."""
    news: list[Told | Over] = []
    ranks = dict(state.ranks)
    limits = Limits(series=max(1, len(state.latest)))
    for rank, row in rows.items():
        if WAIT not in row.seconds:
            continue
        step = state.latest[rank][1].step
        ranks[rank], found = changepoint.watch(ranks.get(rank, Series()), step, row.step - row.of(WAIT), limits)
        for one in found:
            if isinstance(one, AsBefore):
                state, gone = _over(state, step, lambda told, rank=rank: told.by == str(rank))  # type: ignore[misc]
                news += gone
                continue
            slowness = _explain(state, one)
            if rank in slowness.ranks:
                state, begun = _tell(state, Told(step, slowness, str(rank)))
                news += begun
    return replace(state, ranks=ranks), news


def _explain(state: SlowState, found: Slower) -> Slowness:
    before, now = around(state.history, Snapshot.of(state.latest), found.since)
    if before is not None and now is not None:
        return causes.grown(before, now)
    return (causes.uneven(now) if now is not None else None) or causes.unexplained(found)


def _keep(state: SlowState, at: float) -> tuple[SlowState, list[Told | Over]]:
    """Every half minute a reading is kept, and the map since the last few is looked at."""
    if at - state.kept_at < APART or state.run.settling:
        return state, []
    newest = Snapshot.of(state.latest)
    history = state.history
    state = replace(state, history=remember(history, newest), kept_at=at)
    if not history:
        return state, []
    now = map_between(history[-BACK:][0], newest)
    found = causes.uneven(now) if now is not None else None
    key = found.key if found is not None else ""
    times = state.differing[1] + 1 if state.differing[0] == key else 1
    state = replace(state, map=now or state.map, differing=(key, times))
    if times < IN_A_ROW:
        return state, []
    state, news = _over(state, newest.step, lambda told: told.by == "map" and told.slowness.key != key)
    if found is None or any(set(told.slowness.ranks) == set(found.ranks) for told in state.standing):
        return state, news
    state, begun = _tell(state, Told(newest.step, found, "map"))
    return state, [*news, *begun]


def _tell(state: SlowState, told: Told) -> tuple[SlowState, list[Told | Over]]:
    """Once for each kind and place; that everything is slower alike, also when it gets slower still."""
    known = {one.slowness.key for one in state.standing}
    if told.slowness.key in known and told.slowness.kind is not Slow.ALL:
        return state, []
    others = tuple(one for one in state.standing if one.slowness.key != told.slowness.key)
    return replace(state, standing=(*others, told)), [told]


def _over(state: SlowState, step: int, ended: Callable[[Told], bool]) -> tuple[SlowState, list[Told | Over]]:
    gone = [told for told in state.standing if ended(told)]
    left = tuple(told for told in state.standing if told not in gone)
    return replace(state, standing=left), [Over(step, told) for told in gone]
