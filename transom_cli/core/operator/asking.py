"""What is asked for and not answered yet, each thing once. Pure: from state to (state, actions)."""

from __future__ import annotations

from dataclasses import replace

from transom_cli.core.operator.actions import Action, Patch
from transom_cli.core.operator.state import State

Step = tuple[State, tuple[Action, ...]]


def order(state: State, *actions: Action) -> Step:
    """Ask for actions that are not asked for already."""
    known = {a.key for a in state.pending}
    new = tuple(a for a in actions if a.key not in known)
    return replace(state, pending=state.pending + new), new


def withdraw_patches(state: State) -> tuple[State, tuple[str, ...]]:
    """Only the latest word on exclusions counts: forget the unanswered ones, but for the nodes they were to let in."""
    older = [a for a in state.pending if isinstance(a, Patch)]
    left = tuple(a for a in state.pending if not isinstance(a, Patch))
    let_in = (n for a in older for n in a.drop if n not in state.excluded)
    return replace(state, pending=left), tuple(dict.fromkeys(let_in))


def done(state: State, key: str) -> State:
    return replace(state, pending=tuple(a for a in state.pending if a.key != key))


def both(first: Step, then: Step) -> Step:
    """`then` was computed from the state of `first`."""
    return then[0], first[1] + then[1]
