"""Detect slowness in a whole training: `watch(state, readings) -> (state, news)`. Pure.

Readings are the nodes' step breakdowns. The detector watches the run's step time and, if the ranks report how
long they wait, each rank's own time, all with the false-alarm rate of a single series. The maps of before and after
explain a rise. A rank that always differs from the others is reported from the third map in a row on.

Each slowness is reported once when it begins and once when it is over. A launch that has ended is forgotten.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from transom_cli.diagnose.clue import Slow
from transom_cli.diagnose.slowness import causes, changepoint
from transom_cli.diagnose.slowness.causes import Slowness
from transom_cli.diagnose.slowness.changepoint import AsBefore, Limits, Series, Slower
from transom_cli.diagnose.slowness.heatmap import HeatMap, Row, Snapshot, around, between, map_between, remember
from transom_cli.heartbeat import WAIT
from transom_cli.heartbeat.step_breakdown import NodeSteps, RankSteps

APART = 30.0  # seconds between two readings
BACK = 3  # readings covered by the current map
IN_A_ROW = 3  # equal maps before a difference between ranks, or its end, is reported


@dataclass(frozen=True)
class Began:
    """A slowness that began. by: "run", "map" or a rank's number."""

    step: int
    slowness: Slowness
    by: str


@dataclass(frozen=True)
class Over:
    step: int
    begun: Began


@dataclass(frozen=True)
class SlowState:
    """The detector's state.

    Args:
        launch: attempt and launch.
        latest: by rank, its node and last account.
        map: the last minutes.
        differing: which ranks differ in the last maps ("" for none), and how often in a row.
    """

    launch: tuple[str, int] = ("", -1)
    run: Series = field(default_factory=Series)
    ranks: Mapping[int, Series] = field(default_factory=dict)
    latest: Mapping[int, tuple[str, RankSteps]] = field(default_factory=dict)
    history: tuple[Snapshot, ...] = ()
    kept_at: float = float("-inf")
    standing: tuple[Began, ...] = ()
    map: HeatMap | None = None
    differing: tuple[str, int] = ("", 0)


def watch(state: SlowState, readings: Mapping[str, NodeSteps]) -> tuple[SlowState, tuple[Began | Over, ...]]:
    """Add the accounts of one attempt's nodes, by node."""
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
    news: list[Began | Over] = list(over)
    if lead in rows:
        state, found = _run(state, rows[lead])
        news += found
    state, found = _each(state, rows)
    news += found
    if lead in rows:
        state, found = _keep(state, state.latest[lead][1].at)
        news += found
    return state, tuple(news)


def _newest_launch(state: SlowState, readings: Mapping[str, NodeSteps]) -> tuple[SlowState, tuple[Over, ...]]:
    """Forget the ranks' times of a former launch. The run's step time is compared across launches."""
    launches = [(node.attempt, rank.launch) for node in readings.values() for rank in node.ranks]
    launch = max(launches, key=lambda one: one[1], default=state.launch)
    if launch[0] == state.launch[0] and launch[1] <= state.launch[1]:
        return state, ()
    over = tuple(Over(state.run.step, one) for one in state.standing)
    return SlowState(launch, changepoint.restarted(state.run)), over


def _run(state: SlowState, row: Row) -> tuple[SlowState, list[Began | Over]]:
    step = state.latest[row.rank][1].step
    run, found = changepoint.watch(state.run, step, row.step, Limits())
    state = replace(state, run=run)
    news: list[Began | Over] = []
    for one in found:
        if isinstance(one, AsBefore):
            state, gone = _over(state, step, lambda begun: begun.by != "map")
            news += gone
        else:
            state, begun = _begin(state, Began(step, _explain(state, one), "run"))
            news += begun
    return state, news


def _each(state: SlowState, rows: Mapping[int, Row]) -> tuple[SlowState, list[Began | Over]]:
    """Watch every rank's own time, if it is reported."""
    news: list[Began | Over] = []
    ranks = dict(state.ranks)
    limits = Limits(series=max(1, len(state.latest)))
    for rank, row in rows.items():
        if WAIT not in row.seconds:
            continue
        step = state.latest[rank][1].step
        ranks[rank], found = changepoint.watch(ranks.get(rank, Series()), step, row.step - row.of(WAIT), limits)
        for one in found:
            if isinstance(one, AsBefore):
                state, gone = _over(state, step, lambda begun, rank=rank: begun.by == str(rank))  # type: ignore[misc]
                news += gone
                continue
            slowness = _explain(state, one)
            if rank in slowness.ranks:
                state, begun = _begin(state, Began(step, slowness, str(rank)))
                news += begun
    return replace(state, ranks=ranks), news


def _explain(state: SlowState, found: Slower) -> Slowness:
    before, now = around(state.history, Snapshot.of(state.latest), found.since)
    if before is not None and now is not None:
        return causes.grown(before, now)
    return (causes.uneven(now) if now is not None else None) or causes.unexplained(found)


def _keep(state: SlowState, at: float) -> tuple[SlowState, list[Began | Over]]:
    """Keep a reading every half minute, and examine the map since the last few."""
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
    state, news = _over(state, newest.step, lambda begun: begun.by == "map" and begun.slowness.key != key)
    if found is None or any(set(begun.slowness.ranks) == set(found.ranks) for begun in state.standing):
        return state, news
    state, begun = _begin(state, Began(newest.step, found, "map"))
    return state, [*news, *begun]


def _begin(state: SlowState, begun: Began) -> tuple[SlowState, list[Began | Over]]:
    """Report a slowness once for each kind and place; if everything is slower, again when it becomes slower still."""
    known = {one.slowness.key for one in state.standing}
    if begun.slowness.key in known and begun.slowness.kind is not Slow.ALL:
        return state, []
    others = tuple(one for one in state.standing if one.slowness.key != begun.slowness.key)
    return replace(state, standing=(*others, begun)), [begun]


def _over(state: SlowState, step: int, ended: Callable[[Began], bool]) -> tuple[SlowState, list[Began | Over]]:
    gone = [begun for begun in state.standing if ended(begun)]
    left = tuple(begun for begun in state.standing if begun not in gone)
    return replace(state, standing=left), [Over(step, begun) for begun in gone]
