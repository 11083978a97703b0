"""The launcher's core, fed with what it hears: three nodes with one rank each, and maybe a spare."""

from __future__ import annotations

from transom_cli.core import launcher as sh
from transom_cli.core.events import RankExit
from transom_cli.core.launcher import LadderPolicy, LadderState, Order, decide

NODES = ("n1", "n2", "n3")


SPARE = "n4"


def fresh(allocated: tuple[str, ...] = NODES, **policy: float) -> LadderState:
    return LadderState(7, 0, allocated, 3, 1, LadderPolicy(**policy))  # type: ignore[arg-type]


def exits(*codes: int | None, node_of: tuple[str, ...] = NODES) -> tuple[RankExit, ...]:
    """A code a rank; None: still alive; below zero: by that signal."""
    told = [(r, c) for r, c in enumerate(codes) if c is not None]
    return tuple(RankExit(r, node_of[r], c if c >= 0 else None, -c if c < 0 else None, 10.0 + r) for r, c in told)


def feed(state: LadderState, *heard: sh.Heard) -> tuple[LadderState, list[Order]]:
    orders: list[Order] = []
    for one in heard:
        state, new = decide(state, one)
        orders += new
    return state, orders


def training(**policy: float) -> LadderState:
    state, orders = feed(fresh(**policy), sh.Begun(0.0), sh.Stepped(5.0, 0, 4), sh.Durable(6.0, 4))
    assert orders == [sh.Start(0, NODES)]
    return state


def killed(state: LadderState, at: float, codes: tuple[int | None, ...] = (None, -9, None)) -> LadderState:
    """A rank dies, the rest is ended, the logs say nothing: what was ordered is kept in the returned state's place."""
    launch = state.launch
    state, _ = feed(state, sh.Exits(at, launch, exits(*codes)), sh.Tick(at + 2), sh.Ended(at + 3, launch))
    state, _ = feed(state, sh.Read(at + 4, launch, "unknown", ""))
    return state


def outcome(orders: list[Order]) -> sh.Leave:
    (left,) = [o for o in orders if isinstance(o, sh.Leave)]
    return left


def with_spare(**policy: float) -> LadderState:
    """Trains on n1 to n3; n4 stands by, and is ready."""
    state, orders = feed(fresh((*NODES, SPARE), **policy), sh.Begun(0.0), sh.Spare(1.0, SPARE, good=True))
    assert orders == [sh.Start(0, NODES)]
    return feed(state, sh.Stepped(5.0, 0, 4), sh.Durable(6.0, 4))[0]


def started(orders: list[Order]) -> list[tuple[str, ...]]:
    return [o.nodes for o in orders if isinstance(o, sh.Start)]


def lost(state: LadderState, at: float, node: str) -> tuple[LadderState, list[Order]]:
    """A node dies: the others lose their peer, and its agent does not answer."""
    launch, dead = state.launch, state.nodes.index(node)
    told = exits(*(None if r == dead else 1 for r in range(3)), node_of=state.nodes)
    state, _ = feed(state, sh.Exits(at, launch, told), sh.Tick(at + 2), sh.Ended(at + 3, launch, unheard=(node,)))
    return feed(state, sh.Read(at + 4, launch, "peer", "Connection reset by peer", "rank-0.log"))
