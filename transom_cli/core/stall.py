"""Stall detector: nodes whose beat table no longer comes, and ranks that make no step. Pure.

Everything is counted on the observer's clock, from when the observer saw a change: a table counts as new when its
`seq` has changed. Nothing is judged before a full limit of listening, and time in which the observer itself did not
look (suspended, or stuck on a file system) does not count as silence: the detector's own clock, `StallState.clock`,
advances by no more than half of `node_silent` from one look to the next. So look at least that often.

A synchronous job stalls as a whole, so a stall is one finding, not one a rank. Which limit holds, in this order:

1. a process of the job has been stopped, dead or gone for `floor` seconds:            tight  (see core.step_times),
   with a factor of 3 at most: this one cannot be in a step that merely takes long
2. no rank has made a step in this launch yet:                                         first_step
3. a rank is in phase "checkpoint" or "restore":                                       checkpoint, or patient if longer
4. too few steps have been seen to know:                                               first_step
5. a table has not come for half of `node_silent`, another has, and the ranks in it
   have made no step since:                                                            tight
6. nothing but the silence:                                                            patient

While a table is late and another one comes, the state of the ranks in the late one is unknown: the ranks that can be
seen tell of the steps and of a stall. Their silence is then judged with the late ranks as suspects.

Ranks that have finished, and those whose agent said goodbye, are not judged. Neither are ranks that never beat while
others do: in many trainers rank 0 alone beats. A beat with an old step number is a sign of life too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from transom_cli.core.events import Stall
from transom_cli.core.stall_state import (
    FirstStep,
    NodeBack,
    NodeSilent,
    Pulse,
    RanksResumed,
    Source,
    StallFinding,
    StallLimits,
    StallState,
)
from transom_cli.heartbeat.table import NodeTable, RankBeat, reached

__all__ = [
    "FirstStep",
    "NodeBack",
    "NodeSilent",
    "RanksResumed",
    "Stall",
    "StallFinding",
    "StallLimits",
    "StallState",
    "due",
    "expect",
    "resumed",
    "start",
    "watch",
]

STOPPED = 3.0
AGAIN = 4.0  # the next silence at this very step may last so many times longer than the one that was ended
START_UPS = 4.0  # as long as the launch took to come up: a second compilation may take longer than the first
_DEAD = "TXZ"
_SLOW = ("checkpoint", "restore")


def start(expected: Iterable[str] = ()) -> StallState:
    """A fresh state. `expected`: nodes of the job; one of them that never sends a table is found silent too."""
    return StallState(expected=tuple(expected))


def expect(state: StallState, nodes: Iterable[str]) -> StallState:
    """The same state, for an attempt on these nodes."""
    return replace(state, expected=tuple(nodes))


def watch(
    state: StallState, readings: Mapping[str, NodeTable], now: float, limits: StallLimits
) -> tuple[StallState, tuple[StallFinding, ...]]:
    """One look at the tables of one attempt, by any key that is steady (the file's name). Findings are edges.

    What was learned of the step times is kept when a launch or attempt follows another in the same state.
    """
    first_look = state.looked is None
    gone_by = 0.0 if state.looked is None else min(max(0.0, now - state.looked), limits.node_silent / 2)
    state = replace(state, looked=now, clock=state.clock + gone_by)
    fresh = [k for k, t in readings.items() if k not in state.sources or state.sources[k].seq != t.seq]
    state = _newest_launch(state, readings, fresh, first_look)
    if not state.sources:
        fresh = list(readings)  # of a new attempt: what was heard of the one before it counts no more
    state, first = _listen(state, readings, fresh, limits)
    state, nodes = _judge_nodes(state, limits)
    state = replace(state, limit=_limit(state, limits))
    state, ranks = _judge_ranks(state, limits.node_silent)
    return state, (*first, *nodes, *ranks)


def resumed(state: StallState, now: float) -> StallState:
    """Listen again after the observer, or everything it watches, was stopped. That time teaches nothing."""
    clock = state.clock
    return replace(
        state,
        looked=now if state.looked is not None else None,
        sources={key: replace(source, arrived=clock) for key, source in state.sources.items()},
        pulses={rank: pulse._replace(moved=clock, dead_since=None) for rank, pulse in state.pulses.items()},
        silent=frozenset(),
        heard_since=None if state.heard_since is None else clock,
        suspect=clock,
        quiet=(),
        quiet_at=0.0,
    )


def due(state: StallState, limits: StallLimits) -> float:
    """Seconds from the last look until a silence that goes on is judged anew; inf: there is none, or it was judged."""
    at = [s.arrived + wait for s in state.sources.values() for wait in (limits.node_silent / 2, limits.node_silent)]
    if not state.quiet:
        at.append(min((p.moved for p in state.pulses.values() if p.judged), default=math.inf) + state.limit)
    return min((then - state.clock for then in at if then > state.clock), default=math.inf)


def _newest_launch(
    state: StallState, readings: Mapping[str, NodeTable], unseen: Iterable[str], first_look: bool
) -> StallState:
    """Forget the ranks of a former launch, and the tables of a former attempt. unseen: keys of such tables."""
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
    stepped = state.stepping_since is not None  # else it says nothing of the time between two steps
    if state.quiet and stepped and state.suspect < state.stepped:  # ended for silence alone: it might have come back
        ended_at = state.step
        times = times.with_silence((AGAIN if ended_at == state.ended_at else 1.0) * (state.clock - state.stepped))
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
        quiet=(),
    )
    if state.launch is None or state.launch[0] == attempt:
        return fresh
    return replace(fresh, sources={}, silent=frozenset(), heard_since=None)


def _ranks(readings: Mapping[str, NodeTable], attempt: str) -> list[RankBeat]:
    return [r for t in readings.values() if t.attempt == attempt for r in t.ranks]


def _attempt_order(name: str) -> tuple[tuple[int, ...], str]:
    return tuple(int(part) for part in name.split(".") if part.isdecimal()), name


def _listen(
    state: StallState, readings: Mapping[str, NodeTable], fresh: list[str], limits: StallLimits
) -> tuple[StallState, tuple[FirstStep, ...]]:
    """Take in the tables that are new, and learn from them."""
    attempt, launch = state.launch or ("", -1)
    clock, longest = state.clock, 0.0
    sources, pulses = dict(state.sources), dict(state.pulses)
    for key in fresh:
        table = readings[key]
        if table.attempt != attempt:
            continue
        finished = bool(table.ranks) and all(r.phase == "done" for r in table.ranks)
        sources[key] = Source(table.node, table.seq, clock, table.closed, finished)
        for beat in table.ranks:
            if beat.launch != launch:
                continue
            before, moved, since = pulses.get(beat.rank), clock, None
            if before is not None:
                if _still(before.beat, beat):
                    moved = before.moved
                elif before.moved > state.suspect and not _slow(before.beat, beat):
                    longest = max(longest, clock - before.moved)
            if beat.proc in _DEAD and beat.phase != "done":
                since = clock if before is None or before.dead_since is None else before.dead_since
            judged = beat.phase != "done" and beat.proc != "X"
            pulses[beat.rank] = Pulse(beat, table.node, key, moved, since, judged)
    times = state.times.with_silence(longest)
    state = replace(
        state,
        sources=sources,
        pulses=pulses,
        times=times,
        heard_since=clock if state.heard_since is None and sources else state.heard_since,
        aside=state.aside or any(p.beat.phase in _SLOW for p in pulses.values() if p.judged),
    )
    if _overdue(state, limits.node_silent) or any(p.dead_since is not None for p in pulses.values()):
        state = replace(state, suspect=clock)
    return _advance(state, limits.node_silent)


def _still(before: RankBeat, now: RankBeat) -> bool:
    """Whether the rank has given no new sign of itself."""
    return before.count == now.count and before.step == now.step and before.phase == now.phase and before.pid == now.pid


def _slow(before: RankBeat, beat: RankBeat) -> bool:
    """A silence that ended like this is not one between two steps."""
    return before.phase != "step" or beat.phase != "step"


def _advance(state: StallState, node_silent: float) -> tuple[StallState, tuple[FirstStep, ...]]:
    late = _late(state, node_silent)
    steps = [p.beat for p in state.pulses.values() if p.beat.step >= 0 and p.source not in late]
    step, since_start = reached(steps)
    recounted = state.since_start and not since_start and step >= 0  # now the training's own step is known
    if step <= state.step and not recounted:
        return state, ()
    clock = state.clock
    in_phase = any(p.beat.phase in _SLOW for p in state.pulses.values() if p.judged)
    after = replace(state, step=step, stepped=clock, aside=in_phase, since_start=since_start)
    if state.stepping_since is None:
        return replace(after, stepping_since=clock), (FirstStep(max(beat.step for beat in steps)),)
    if recounted or state.aside or state.suspect >= state.stepped or clock <= state.stepped:
        return after, ()
    return replace(after, times=state.times.with_step((clock - state.stepped) / (step - state.step))), ()


def _judge_nodes(state: StallState, limits: StallLimits) -> tuple[StallState, list[StallFinding]]:
    """A node is silent when all its tables are: one rank's own table (beats.own_table) may stop with its process."""
    last: dict[str, float] = {}
    resting: dict[str, bool] = {}
    for source in state.sources.values():
        last[source.node] = max(source.arrived, last.get(source.node, source.arrived))
        resting[source.node] = (source.closed or source.finished) and resting.get(source.node, True)
    findings: list[StallFinding] = []
    silent = set(state.silent)
    for node, arrived in last.items():
        silent_for = state.clock - arrived
        if node in silent and silent_for == 0.0:
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
    """Tables that have not come for half of what makes a node silent, while another has. All at once: it may be us."""
    late = {key for key, source in state.sources.items() if state.clock - source.arrived >= node_silent / 2}
    return late if len(late) < len(state.sources) else set()


def _overdue(state: StallState, node_silent: float) -> list[int]:
    """The ranks in late tables."""
    late = _late(state, node_silent)
    return [rank for rank, p in state.pulses.items() if p.source in late and _is_judged(state, p)]


def _steps_without(state: StallState, late: Iterable[str], node_silent: float) -> bool:
    """Whether the ranks that can be seen step although these tables are late: then only the agents are gone.

    A synchronous job whose node died may still end the step that it is in.
    """
    since = max((state.sources[key].arrived for key in late), default=math.inf)
    return state.stepping_since is not None and state.stepped > since + node_silent / 2 + 2 * state.times.median


def _is_judged(state: StallState, pulse: Pulse) -> bool:
    return pulse.judged and not state.sources[pulse.source].closed


def _limit(state: StallState, limits: StallLimits) -> float:
    """The order of the module's docstring."""
    if any(p.dead_since is not None and state.clock - p.dead_since >= limits.floor for p in state.pulses.values()):
        return state.times.tight(min(limits.factor, STOPPED), limits.floor, limits.ceiling)
    tight = state.times.tight(limits.factor, limits.floor, limits.ceiling)
    if state.stepping_since is None:
        return limits.first_step
    patient = state.times.patient(limits.factor, limits.patience, limits.floor, limits.ceiling)
    settle = _settle(state, limits)
    if state.clock - state.stepping_since < settle:
        patient = max(patient, settle)
    if any(p.beat.phase in _SLOW for p in state.pulses.values() if p.judged):
        return max(limits.checkpoint, patient)
    if not state.times.known:
        return limits.first_step
    late = {state.pulses[rank].source for rank in _overdue(state, limits.node_silent)}
    return tight if late and not _steps_without(state, late, limits.node_silent) else patient


def _settle(state: StallState, limits: StallLimits) -> float:
    """For how long compilations are waited for; the first one is a part of the start-up."""
    if state.began is None or state.stepping_since is None:
        return limits.settle
    return min(limits.settle, START_UPS * (state.stepping_since - state.began))


def _judge_ranks(state: StallState, node_silent: float) -> tuple[StallState, list[StallFinding]]:
    stepping = state.stepping_since is not None
    judged = {r: p for r, p in state.pulses.items() if _is_judged(state, p) and (p.beat.count > 0 or not stepping)}
    late = set(_overdue(state, node_silent))
    seen = {r: p for r, p in judged.items() if r not in late} or judged  # of the late ones the state is unknown
    if state.quiet:
        known = [state.pulses[r] for r in state.quiet if r in state.pulses]
        back_again = [p for p in known if p.moved > state.quiet_at or p.beat.phase == "done"]
        still = [p for p in known if p.judged and p not in back_again]
        if still or not back_again:  # the death of all of them is no return
            return state, []
        back = RanksResumed(state.quiet, state.step, state.clock - state.quiet_at)
        return replace(state, quiet=(), quiet_at=0.0), [back]
    if not any(state.clock - p.moved >= state.limit for p in seen.values()):
        return state, []
    # the others of a synchronous job stopped a moment later: by a step's skew, and by when their table came
    quiet = {r: p for r, p in judged.items() if state.clock - p.moved >= state.limit / 2}
    ranks = tuple(sorted(quiet))
    culprits = _culprits(state, quiet, node_silent)
    found = Stall(
        step=state.step,
        seconds=max(state.clock - p.moved for p in quiet.values()),
        limit=state.limit,
        culprits=culprits,
        nodes=tuple(dict.fromkeys(state.pulses[rank].node for rank in culprits)),
        stopped=any(p.dead_since is not None and p.beat.proc == "T" for p in state.pulses.values()),
    )
    return replace(state, quiet=ranks, quiet_at=state.clock), [found]


def _culprits(state: StallState, quiet: Mapping[int, Pulse], node_silent: float) -> tuple[int, ...]:
    """Who stands out: the stopped and dead; else those of whom nothing comes; else those asleep in the kernel (D);
    else those behind the others in step. The last three name nobody when they would name everybody."""
    dead = tuple(sorted(r for r, p in state.pulses.items() if p.dead_since is not None))
    if dead:
        return dead
    furthest = max(p.beat.step for p in quiet.values())
    for group in (
        [r for r in _overdue(state, node_silent) if r in quiet],
        [r for r, p in quiet.items() if p.beat.proc == "D"],
        [r for r, p in quiet.items() if p.beat.step < furthest],
    ):
        if group and len(group) < len(quiet):
            return tuple(sorted(group))
    return ()
