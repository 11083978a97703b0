"""The launcher's core, fed with what it hears: three nodes with one rank each, and maybe a spare."""

from __future__ import annotations

from transom_cli.core import launcher
from transom_cli.core.events import RankExit
from transom_cli.core.launcher import Action, Nodes, Policy, State, decide

NODES = ("n1", "n2", "n3")


SPARE = "n4"


def fresh(allocated: tuple[str, ...] = NODES, **policy: float) -> State:
    return State(7, 0, Nodes(allocated, 3), 1, Policy(**policy))  # type: ignore[arg-type]


def exits(*codes: int | None, node_of: tuple[str, ...] = NODES) -> tuple[RankExit, ...]:
    """A code a rank; None: still alive; below zero: by that signal."""
    found = [(r, c) for r, c in enumerate(codes) if c is not None]
    return tuple(RankExit(r, node_of[r], c if c >= 0 else None, -c if c < 0 else None, 10.0 + r) for r, c in found)


def feed(state: State, *received: launcher.Event) -> tuple[State, list[Action]]:
    actions: list[Action] = []
    for one in received:
        state, new = decide(state, one)
        actions += new
    return state, actions


def training(**policy: float) -> State:
    state, actions = feed(
        fresh(**policy), launcher.AttemptStarted(0.0), launcher.Stepped(5.0, 0, 4), launcher.CheckpointDurable(6.0, 4)
    )
    assert actions == [launcher.StartLaunch(0, NODES)]
    return state


def killed(state: State, at: float, codes: tuple[int | None, ...] = (None, -9, None)) -> State:
    """A rank dies, the rest is ended, the logs say nothing: what was ordered is kept in the returned state's place."""
    launch = state.launch.number
    state, _ = feed(
        state,
        launcher.RanksExited(at, launch, exits(*codes)),
        launcher.Tick(at + 2),
        launcher.LaunchEnded(at + 3, launch),
    )
    state, _ = feed(state, launcher.LogsRead(at + 4, launch, "unknown", ""))
    return state


def outcome(actions: list[Action]) -> launcher.FinishAttempt:
    (left,) = [o for o in actions if isinstance(o, launcher.FinishAttempt)]
    return left


def with_spare(**policy: float) -> State:
    """Trains on n1 to n3; n4 stands by, and is ready."""
    state, actions = feed(
        fresh((*NODES, SPARE), **policy), launcher.AttemptStarted(0.0), launcher.SpareChecked(1.0, SPARE, good=True)
    )
    assert actions == [launcher.StartLaunch(0, NODES)]
    return feed(state, launcher.Stepped(5.0, 0, 4), launcher.CheckpointDurable(6.0, 4))[0]


def started(actions: list[Action]) -> list[tuple[str, ...]]:
    return [o.nodes for o in actions if isinstance(o, launcher.StartLaunch)]


def lost(state: State, at: float, node: str) -> tuple[State, list[Action]]:
    """A node dies: the others lose their peer, and its agent does not answer."""
    launch, dead = state.launch.number, state.nodes.training.index(node)
    found = exits(*(None if r == dead else 1 for r in range(len(state.nodes.training))), node_of=state.nodes.training)
    state, _ = feed(
        state,
        launcher.RanksExited(at, launch, found),
        launcher.Tick(at + 2),
        launcher.LaunchEnded(at + 3, launch, unheard=(node,)),
    )
    return feed(state, launcher.LogsRead(at + 4, launch, "network_fabric", "Connection reset by peer", "rank-0.log"))
