"""Stall detector: nodes whose heartbeat table is no longer updated, and ranks that stop stepping. Pure.

All times are the observer's, from when it saw a change: a table counts as new if its `seq` has changed. Nothing is
judged before the observer has listened for a full limit. Time in which the observer itself did not look (suspended, or
stuck on a file system) does not count as silence: the detector's own clock, `StallState.clock`, advances by at most
half of `node_silent` between two calls. So call `watch` at least that often.

A synchronous job stalls as a whole, so a stall is one finding, not one per rank. The first limit that applies:

1. a process of the job has been stopped, dead or gone for `floor` seconds:            tight  (see core.step_times),
   with a factor of at most 3: this process cannot be in a long step
2. no rank has made a step in this launch yet:                                         first_step
3. a rank is in phase "checkpoint" or "restore":       checkpoint; patient, or what this run has shown, if longer
4. too few steps have been seen:                                                       first_step
5. a table has not been updated for half of `node_silent`, another has, and the
   ranks in it have not stepped since:                                                          tight
6. otherwise:                                                                          patient

If one table is late and another is not, the state of the ranks in the late one is unknown: steps and stalls are judged
by the visible ranks. If those stall, the late ranks are the suspects.

Ranks that have finished, and those whose agent ended in order, are not judged. Neither are ranks without heartbeats
while others have some: in many trainers only rank 0 reports. A heartbeat with an old step number is a sign of life too.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from transom_cli.core.events import Stall as Stall
from transom_cli.core.stall_state import NOW as NOW
from transom_cli.core.stall_state import FirstStep as FirstStep
from transom_cli.core.stall_state import HeardBefore as HeardBefore
from transom_cli.core.stall_state import NodeBack as NodeBack
from transom_cli.core.stall_state import NodeSilent as NodeSilent
from transom_cli.core.stall_state import Pulse, Source
from transom_cli.core.stall_state import RanksResumed as RanksResumed
from transom_cli.core.stall_state import StallFinding as StallFinding
from transom_cli.core.stall_state import StallLimits as StallLimits
from transom_cli.core.stall_state import StallState as StallState
from transom_cli.core.step_times import AS_LONG, HEADROOM
from transom_cli.heartbeat.table import NodeTable, RankBeat, reached

STOPPED = 3.0
AGAIN = 4.0  # factor for the next silence at the same step, compared to the one that was ended
START_UPS = 4.0  # times the startup of the launch: a second compilation may take longer than the first
MANY = 6  # heartbeats of a rank from which one sample is enough: fast steps are read once or twice a second
_DEAD = "TXZ"
_SLOW = ("checkpoint", "restore")


def start(expected: Iterable[str] = ()) -> StallState:
    """A new state. expected: nodes of the job; one that never sends a table is reported as silent too."""
    return StallState(expected=tuple(expected))


def expect(state: StallState, nodes: Iterable[str]) -> StallState:
    """Use the state for an attempt on these nodes."""
    return replace(state, expected=tuple(nodes))


def watch(
    state: StallState, readings: Mapping[str, NodeTable], now: float, limits: StallLimits, heard: HeardBefore = NOW
) -> tuple[StallState, tuple[StallFinding, ...]]:
    """Judge the present tables of one attempt. Findings are edges.

    Learned step times are kept across launches and attempts.

    Args:
        readings: tables by any stable key, such as the file name.
        heard: when another observer, who passes the tables on, saw what is new in them.
    """
    first_look = state.looked is None
    state = listened(state, now, limits)
    fresh = [k for k, t in readings.items() if k not in state.sources or state.sources[k].seq != t.seq]
    state = _newest_launch(state, readings, fresh, first_look)
    if not state.sources:
        fresh = list(readings)  # a new attempt: forget the tables of the one before
    state, first = _listen(state, readings, fresh, limits, heard)
    state, nodes = _judge_nodes(state, limits)
    state = replace(state, limit=_limit(state, limits))
    state, ranks = _judge_ranks(state, limits)
    return state, (*first, *nodes, *ranks)


def listened(state: StallState, now: float, limits: StallLimits) -> StallState:
    """Let time pass in which the observer listened, and had nothing new to judge."""
    gone_by = 0.0 if state.looked is None else min(max(0.0, now - state.looked), limits.node_silent / 2)
    return replace(state, looked=now, clock=state.clock + gone_by)


def vouched(state: StallState, ago: float, keys: Iterable[str]) -> StallState:
    """Believe an observer who said, so many seconds ago, that these tables were not late."""
    at, sources = state.clock - ago, dict(state.sources)
    for key in keys:
        if key in sources and sources[key].arrived < at:
            sources[key] = replace(sources[key], arrived=at)
    return replace(state, sources=sources)


def resumed(state: StallState, now: float) -> StallState:
    """Restart listening after the observer, or everything it watches, was stopped. That time is not learned from."""
    clock = state.clock
    return replace(
        state,
        looked=now if state.looked is not None else None,
        sources={key: replace(source, arrived=clock) for key, source in state.sources.items()},
        pulses={rank: pulse._replace(moved=clock, dead_since=None) for rank, pulse in state.pulses.items()},
        silent=frozenset(),
        heard_since=None if state.heard_since is None else clock,
        suspect=clock,
        stalled=(),
        stalled_at=0.0,
    )


def due(state: StallState, limits: StallLimits) -> float:
    """Seconds from the last call until a continued silence must be judged again; inf: none, or already judged."""
    at = [s.arrived + wait for s in state.sources.values() for wait in (limits.node_silent / 2, limits.node_silent)]
    if not state.stalled:
        at.append(min((p.moved for p in state.pulses.values() if p.judged), default=math.inf) + state.limit)
    return min((then - state.clock for then in at if then > state.clock), default=math.inf)


def _newest_launch(
    state: StallState, readings: Mapping[str, NodeTable], unseen: Iterable[str], first_look: bool
) -> StallState:
    """Forget the ranks of a former launch, and the tables of a former attempt. unseen: keys of new tables."""
    if not readings:
        return state
    attempt = max({t.attempt for t in readings.values()}, key=_attempt_order)
    same = state.launch is not None and state.launch[0] == attempt
    known = state.launch[1] if state.launch is not None and same else -1
    news = {k: readings[k] for k in unseen} if same else readings
    launch = max([known, *(r.launch for r in _ranks(news, attempt))])
    if (attempt, launch) == state.launch:
        return state
    times, ended_at = state.times, None
    stepped = state.stepping_since is not None  # else nothing is learned about the time between two steps
    if state.stalled and stepped and state.suspect < state.stepped:  # ended for silence alone: it might have resumed
        ended_at = state.step
        times = times.with_end((AGAIN if ended_at == state.ended_at else 1.0) * (state.clock - state.stepped))
    fresh = replace(
        state,
        times=times,
        ended_at=ended_at,
        launch=(attempt, launch),
        began=None if first_look and any(r.step >= 0 for r in _ranks(readings, attempt)) else state.clock,
        pulses={},
        step=-1,
        since_start=False,
        stepping_since=None,
        aside=False,
        suspect=-1.0,
        stalled=(),
    )
    if state.launch is None or state.launch[0] == attempt:
        return fresh
    return replace(fresh, sources={}, silent=frozenset(), heard_since=None)


def _ranks(readings: Mapping[str, NodeTable], attempt: str) -> list[RankBeat]:
    return [r for t in readings.values() if t.attempt == attempt for r in t.ranks]


def _attempt_order(name: str) -> tuple[tuple[int, ...], str]:
    return tuple(int(part) for part in name.split(".") if part.isdecimal()), name


def _listen(
    state: StallState, readings: Mapping[str, NodeTable], fresh: list[str], limits: StallLimits, heard: HeardBefore
) -> tuple[StallState, tuple[FirstStep, ...]]:
    """Read the new tables, and learn from them."""
    attempt, launch = state.launch or ("", -1)
    clock, longest, saving = state.clock, 0.0, 0.0
    sources, pulses = dict(state.sources), dict(state.pulses)
    for key in fresh:
        table = readings[key]
        if table.attempt != attempt:
            continue
        finished = bool(table.ranks) and all(r.phase == "done" for r in table.ranks)
        sources[key] = Source(table.node, table.seq, clock - heard.tables.get(key, 0.0), table.closed, finished)
        for beat in table.ranks:
            if beat.launch != launch:
                continue
            before, moved, since = pulses.get(beat.rank), clock - heard.ranks.get(beat.rank, 0.0), None
            if before is not None:
                if _still(before.beat, beat):
                    moved = before.moved
                elif before.moved > state.suspect and not _slow(before.beat, beat):
                    longest = max(longest, moved - before.moved)
                elif before.moved > state.suspect and before.beat.phase in _SLOW and before.beat.pid == beat.pid:
                    saving = max(saving, moved - before.moved)
            if beat.proc in _DEAD and beat.phase != "done":
                since = clock if before is None or before.dead_since is None else before.dead_since
            judged = beat.phase != "done" and beat.proc != "X"
            pulses[beat.rank] = Pulse(beat, table.node, key, moved, since, judged)
    times = state.times.with_silence(longest, saving)
    state = replace(
        state,
        sources=sources,
        pulses=pulses,
        times=times,
        heard_since=clock if state.heard_since is None and sources else state.heard_since,
    )
    state = replace(state, aside=state.aside or _saves(state))
    if _overdue(state, limits.node_silent) or any(p.dead_since is not None for p in pulses.values()):
        state = replace(state, suspect=clock)
    return _advance(state, limits.node_silent)


def _still(before: RankBeat, now: RankBeat) -> bool:
    """Whether the rank has given no new sign of life."""
    return before.count == now.count and before.step == now.step and before.phase == now.phase and before.pid == now.pid


def _slow(before: RankBeat, beat: RankBeat) -> bool:
    """Whether a silence that ended like this was not between two steps."""
    return before.phase != "step" or beat.phase != "step"


def _advance(state: StallState, node_silent: float) -> tuple[StallState, tuple[FirstStep, ...]]:
    late = _late(state, node_silent)
    steps = [p.beat for p in state.pulses.values() if p.beat.step >= 0 and p.source not in late]
    step, since_start = reached(steps)
    recounted = state.since_start and not since_start and step >= 0  # the training's own step is known now
    if step <= state.step and not recounted:
        return state, ()
    clock = state.clock
    after = replace(state, step=step, stepped=clock, aside=_saves(state), since_start=since_start)
    if state.stepping_since is None:
        return replace(after, stepping_since=clock), (FirstStep(max(beat.step for beat in steps)),)
    if recounted or state.aside or state.suspect >= state.stepped or clock <= state.stepped:
        return after, ()
    return replace(after, times=state.times.with_step((clock - state.stepped) / (step - state.step))), ()


def _judge_nodes(state: StallState, limits: StallLimits) -> tuple[StallState, list[StallFinding]]:
    """Judge nodes. A node is silent if all its tables are: a rank's own table may stop with its process."""
    last: dict[str, float] = {}
    resting: dict[str, bool] = {}
    for source in state.sources.values():
        last[source.node] = max(source.arrived, last.get(source.node, source.arrived))
        resting[source.node] = (source.closed or source.finished) and resting.get(source.node, True)
    findings: list[StallFinding] = []
    silent = set(state.silent)
    for node, arrived in last.items():
        silent_for = state.clock - arrived
        if node in silent and silent_for < limits.node_silent:
            silent.discard(node)
            findings.append(NodeBack(node))
        elif node not in silent and not resting[node] and silent_for >= limits.node_silent:
            silent.add(node)
            findings.append(NodeSilent(node, silent_for, limits.node_silent))
    if state.heard_since is not None and state.clock - state.heard_since >= limits.missing:
        for node in state.expected:
            if node not in last and node not in silent:
                silent.add(node)
                findings.append(NodeSilent(node, state.clock - state.heard_since, limits.missing))
    return replace(state, silent=frozenset(silent)), findings


def _late(state: StallState, node_silent: float) -> set[str]:
    """Tables without an update for half of `node_silent`. None if that is so for all: it may be the observer."""
    late = {key for key, source in state.sources.items() if state.clock - source.arrived >= node_silent / 2}
    return late if len(late) < len(state.sources) else set()


def _overdue(state: StallState, node_silent: float) -> list[int]:
    """The ranks in late tables."""
    late = _late(state, node_silent)
    return [rank for rank, p in state.pulses.items() if p.source in late and _is_judged(state, p)]


def _steps_without(state: StallState, late: Iterable[str], node_silent: float) -> bool:
    """Whether the visible ranks step although these tables are late: then only the agents are gone.

    A synchronous job whose node died may still finish its present step.
    """
    since = max((state.sources[key].arrived for key in late), default=math.inf)
    return state.stepping_since is not None and state.stepped > since + node_silent / 2 + 2 * state.times.median


def _is_judged(state: StallState, pulse: Pulse) -> bool:
    return pulse.judged and not state.sources[pulse.source].closed


def _limit(state: StallState, limits: StallLimits) -> float:
    """The limit by the rules in the module's docstring."""
    if any(p.dead_since is not None and state.clock - p.dead_since >= limits.floor for p in state.pulses.values()):
        return state.times.tight(min(limits.factor, STOPPED), limits.floor, limits.ceiling)
    tight = state.times.tight(limits.factor, limits.floor, limits.ceiling)
    if state.stepping_since is None:
        return limits.first_step
    patient = state.times.patient(limits.factor, limits.patience, limits.floor, limits.ceiling)
    settle = _settle(state, limits)
    if state.clock - state.stepping_since < settle:
        patient = max(patient, settle)
    if _saves(state):
        return max(limits.checkpoint, patient, state.times.normal(saving=True))
    fast = state.times.samples and max((p.beat.count for p in state.pulses.values()), default=0) >= MANY
    if not (state.times.known or fast):
        return limits.first_step
    late = {state.pulses[rank].source for rank in _overdue(state, limits.node_silent)}
    return tight if late and not _steps_without(state, late, limits.node_silent) else patient


def _saves(state: StallState) -> bool:
    return any(p.beat.phase in _SLOW for p in state.pulses.values() if p.judged)


def _settle(state: StallState, limits: StallLimits) -> float:
    """How long compilations are waited for; the first one is part of the startup."""
    if state.began is None or state.stepping_since is None:
        return limits.settle
    return min(limits.settle, START_UPS * (state.stepping_since - state.began))


def _judge_ranks(state: StallState, limits: StallLimits) -> tuple[StallState, list[StallFinding]]:
    stepping = state.stepping_since is not None
    judged = {r: p for r, p in state.pulses.items() if _is_judged(state, p) and (p.beat.count > 0 or not stepping)}
    late = set(_overdue(state, limits.node_silent))
    seen = {r: p for r, p in judged.items() if r not in late} or judged  # the state of late ranks is unknown
    if state.stalled:
        known = [state.pulses[r] for r in state.stalled if r in state.pulses]
        back_again = [p for p in known if p.moved > state.stalled_at or p.beat.phase == "done"]
        still = [p for p in known if p.judged and p not in back_again]
        if still or not back_again:  # if all have died, none has resumed
            return state, []
        back = RanksResumed(state.stalled, state.step, state.clock - state.stalled_at)
        return replace(state, stalled=(), stalled_at=0.0), [back]
    if not any(state.clock - p.moved >= state.limit for p in seen.values()):
        return state, []
    # the other ranks of a synchronous job stopped a moment later: by a step's skew, and by the time of their table
    stalled = {r: p for r, p in judged.items() if state.clock - p.moved >= state.limit / 2}
    ranks = tuple(sorted(stalled))
    culprits = _culprits(state, stalled, limits.node_silent)
    seconds = max(state.clock - p.moved for p in stalled.values())
    # it would have been found before, but for the time that compilations get
    waited = 0.0
    if state.stepping_since is not None and not late and all(p.dead_since is None for p in judged.values()):
        waited = seconds - (state.clock - state.stepping_since - _settle(state, limits))
    early = waited > state.limit
    found = Stall(
        step=state.step,
        seconds=seconds,
        limit=waited if early else state.limit,
        culprits=culprits,
        nodes=tuple(dict.fromkeys(state.pulses[rank].node for rank in culprits)),
        stopped=any(p.dead_since is not None and p.beat.proc == "T" for p in state.pulses.values()),
        paused=_paused(state),
        early=early,
    )
    return replace(state, stalled=ranks, stalled_at=state.clock), [found]


def _paused(state: StallState) -> float:
    """The longest silence that this run came back from, if the limit follows from it."""
    known = max(state.times.longest, state.times.saving if _saves(state) else 0.0)
    return known if math.isclose(state.limit, HEADROOM * known) or math.isclose(state.limit, AS_LONG * known) else 0.0


def _culprits(state: StallState, stalled: Mapping[int, Pulse], node_silent: float) -> tuple[int, ...]:
    """The ranks that stand out: stopped or dead ones; else those in late tables; else those asleep in the kernel (D);
    else those behind in steps. Except for the first, a group that would include all ranks is skipped."""
    dead = tuple(sorted(r for r, p in state.pulses.items() if p.dead_since is not None))
    if dead:
        return dead
    furthest: dict[bool, int] = {}  # the training's own steps and counts since the start are not compared
    for p in stalled.values():
        furthest[p.beat.since_start] = max(p.beat.step, furthest.get(p.beat.since_start, -1))
    for group in (
        [r for r in _overdue(state, node_silent) if r in stalled],
        [r for r, p in stalled.items() if p.beat.proc == "D"],
        [r for r, p in stalled.items() if p.beat.step < furthest[p.beat.since_start]],
    ):
        if group and len(group) < len(stalled):
            return tuple(sorted(group))
    return ()
