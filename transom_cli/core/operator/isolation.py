"""Which of the nodes to blame are isolated, and within which cap. Pure.

The cap is of nodes isolated within a window of time, since more of them at once are more likely a switch, or a limit of
the checks that is wrong, than as many bad nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from transom_cli.core.incident import Diagnosis
from transom_cli.core.operator.actions import Isolate
from transom_cli.core.operator.state import State
from transom_cli.plural import several


@dataclass(frozen=True)
class Choice:
    """again: nodes kept away on suspicion that are to be drained now that it is sure: nothing is isolated anew.
    capped: in words, who stays in for the cap. refused: why the run must stop, where proven faults alone are beyond it.
    """

    new: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    capped: str = ""
    refused: str = ""

    def orders(self, state: State, diagnosis: Diagnosis, incident: str) -> tuple[Isolate, ...]:
        asked = [(f"{incident}/drain/{n}", n) for n in self.again] + [(f"{incident}/isolate/{n}", n) for n in self.new]
        can = state.policy.drain
        return tuple(Isolate(k, n, diagnosis.reason(n), can and diagnosis.isolates(n) == "drain") for k, n in asked)


def choose(state: State, diagnosis: Diagnosis, at: float) -> Choice:
    """Beyond the cap nodes that are only suspected stay in, all of them: nothing tells which are the bad ones."""
    known = {x.node: x for x in state.exclusions}
    blamed = [n for n in diagnosis.nodes if diagnosis.isolates(n) != "none" and n in state.nodes]
    again = tuple(n for n in blamed if n in known and known[n].until is not None and diagnosis.sure_of(n))
    new = tuple(n for n in blamed if n not in known)
    sure = tuple(n for n in new if diagnosis.sure_of(n))
    if len(new) <= room(state, at):
        return Choice(new, again)
    if len(sure) > room(state, at):
        return Choice(refused=f"{diagnosis.words}; not isolated: {beyond(state)}{or_the_checks(diagnosis)}")
    left = ", ".join(n for n in new if n not in sure)
    who = f"{left} only suspected" if sure else diagnosis.words
    return Choice(sure, again, f"{who}; not isolated: {beyond(state)}")


def or_the_checks(diagnosis: Diagnosis | None) -> str:
    if diagnosis is None or not diagnosis.faults:
        return ""
    return "; so many bad nodes may also be a limit of the checks that is wrong (`transom nodes` lists them)"


def cap(state: State) -> int:
    return max(state.policy.cap_nodes, int(state.policy.cap_fraction * (state.num_nodes or len(state.nodes))))


def beyond(state: State) -> str:
    return f"that would be more than {several(cap(state), 'node')} in {state.policy.cap_window / 60:g} minutes"


def room(state: State, at: float) -> int:
    """How many nodes may still be isolated within the window, those that have been lifted again counted too."""
    recent = sum(1 for t in state.isolations if t > at - state.policy.cap_window)
    return max(0, cap(state) - recent)


def count(state: State, at: float, nodes: int) -> State:
    recent = tuple(t for t in state.isolations if t > at - state.policy.cap_window)
    return replace(state, isolations=recent + (at,) * nodes)
