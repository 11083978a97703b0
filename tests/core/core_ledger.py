"""Counts what the core orders and holds it to its promises. It trusts events and actions alone, not the core's state
(but for the names of closed incidents, whose open questions are withdrawn, and for causes)."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from transom_cli.core import events as ev
from transom_cli.core.operator import actions as act
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.incident import REQUESTED
from transom_cli.core.operator.state import Phase, Policy, State

_ANSWERS: dict[type[ev.Event], tuple[type[act.Action], ...]] = {
    ev.Submitted: (act.Submit,),
    ev.Probed: (act.Probe,),
    ev.Examined: (act.ReadLogs,),
    ev.Isolated: (act.Isolate,),
    ev.Restarted: (act.Restart,),
    ev.Acted: (act.Patch, act.Release, act.Cancel),
    ev.ActionFailed: (act.Action,),
}


OF_TIME = ("time_limit", "preempted", "maintenance")


@dataclass
class Ledger:
    """Feed it events; it runs the core, and fails when a promise is broken."""

    state: State
    own_jobs: set[int] = field(default_factory=set)
    own_nodes: set[str] = field(default_factory=set)
    accused: set[str] = field(default_factory=set)  # nodes that some event spoke against
    proven: set[str] = field(default_factory=set)  # nodes of which a check proved a fault
    preflight: set[str] = field(default_factory=set)  # nodes with which a preflight found fault
    paid: set[str] = field(default_factory=set)  # incidents that isolated one of those
    paid_in_a_row: int = 0  # restarts of such incidents, without any progress told
    asked: dict[str, act.Action] = field(default_factory=dict)  # not answered
    since_started: set[str] = field(default_factory=set)
    ever: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    verdicts: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    kept_away: set[str] = field(default_factory=set)
    isolated_at: list[float] = field(default_factory=list)
    best: tuple[int, int] = (-1, -1)  # newest checkpoint, highest step that any event told
    best_at_restart: tuple[int, int] = (-1, -1)
    vain: int = 0  # restarts in a row without any progress told
    stopping: bool = False  # a cancel was ordered: nothing else is wanted from then on
    superseded: set[str] = field(default_factory=set)  # patches that a later word on exclusions replaced
    over: bool = False

    @property
    def policy(self) -> Policy:
        return self.state.policy

    def feed(self, event: ev.Event) -> tuple[act.Action, ...]:
        before = self.state
        if isinstance(event, ev.Resumed) and self.over and before.phase is not Phase.DONE:
            self._begin_again()
        self._learn(event)
        self.state, actions = decide(before, event)
        assert decide(before, event) == (self.state, actions), "not deterministic"
        if self.over:
            assert not actions, f"ordered after the end: {actions}"
        if isinstance(event, ev.SlurmLost):
            assert not actions, f"a silent Slurm is no reason to act: {actions}"
        if isinstance(event, ev.Started):
            self._check_started(actions)
        for action in actions:
            self._check(action, event.at)
        self.over = self.state.phase.over
        return actions

    def _begin_again(self) -> None:
        """A person continues the run: nothing is asked any more, and no restart was in vain."""
        self.over = self.stopping = False
        self.asked, self.superseded, self.vain, self.paid_in_a_row = {}, set(), 0, 0
        self.best_at_restart = self.best

    def _learn(self, event: ev.Event) -> None:
        key = getattr(event, "key", None)
        asked = self.asked.get(key) if isinstance(key, str) else None
        same = asked is None or getattr(asked, "node", None) == getattr(event, "node", getattr(asked, "node", None))
        if asked is not None and isinstance(asked, _ANSWERS.get(type(event), ())) and same:
            action = self.asked.pop(asked.key)
            if isinstance(event, ev.Probed) and isinstance(action, act.Probe):
                self.verdicts[_about(action.key), action.node].append(event.verdict)
            if isinstance(event, ev.ActionFailed):
                self.failed.add(key)
        if isinstance(event, ev.Submitted | ev.Restarted):
            self.own_jobs.add(event.job_id)
        if isinstance(event, ev.JobSeen) and event.succeeds in self.own_jobs:
            self.own_jobs.add(event.job_id)
        if isinstance(event, ev.JobSeen) and event.job_id in self.own_jobs:
            self.own_nodes.update(event.nodes)
        if isinstance(event, ev.LaunchSeen):
            self.own_nodes.update((*event.nodes, *event.idle))
        if isinstance(event, ev.RecoverySeen) and event.what == "swapped":
            self.accused.update(event.nodes)
        if isinstance(event, ev.RecoverySeen | ev.OutcomeSeen | ev.LaunchSeen):
            self.accused.update(f.node for f in event.faults)
            self.proven.update(f.node for f in event.faults if f.verdict == "FAIL")
        if isinstance(event, ev.OutcomeSeen) and event.cause == "preflight":
            self.preflight.update(f.node for f in event.faults)
        if isinstance(event, ev.NodeSilent):
            self.accused.add(event.node)
        if isinstance(event, ev.Stalled):
            self.accused.update(event.stall.nodes)
        if isinstance(event, ev.OutcomeSeen) and int(event.attempt.partition(".")[0]) in self.own_jobs:
            self.own_nodes.update(event.nodes if event.cause in ("preflight", "isolated_nodes") else ())
        if isinstance(event, ev.OutcomeSeen):
            self.accused.update(x.node for x in event.exits)
            self.accused.update((*event.missing, *event.blamed, *event.suspects))
        if isinstance(event, ev.StepSeen):
            self.best = (self.best[0], max(self.best[1], event.step))
        if isinstance(event, ev.CheckpointSeen):
            self.best = (max(self.best[0], event.step), self.best[1])

    def _check_started(self, actions: tuple[act.Action, ...]) -> None:
        self.since_started.clear()
        closed = {i.id for i in self.state.incidents}
        withdrawn = {k for k, a in self.asked.items() if self.stopping and not isinstance(a, act.Cancel)}
        withdrawn |= self.superseded | {k for k in self.asked if k.partition("/")[0] in closed}
        wanted = set(self.asked) - withdrawn
        told = {a.key for a in actions}
        if self.over:
            return
        assert told - {"submit"} == wanted - {"submit"}, "a new operator repeats what is unanswered, and nothing else"

    def _check(self, action: act.Action, at: float) -> None:
        key = action.key
        assert key not in self.since_started, f"{key} ordered twice"
        self.since_started.add(key)
        first = key not in self.ever
        self.ever.add(key)
        if isinstance(action, act.Patch | act.Restart):
            self.superseded.update(k for k, a in self.asked.items() if isinstance(a, act.Patch) and k != key)
        self.asked[key] = action
        self.stopping = self.stopping or key.startswith("cancel/")
        if isinstance(action, act.Probe | act.Isolate):
            assert action.node in self.own_nodes, f"{action} touches a node that is not ours"
        if isinstance(action, act.Isolate):
            self._check_isolate(action, at, first)
        if isinstance(action, act.Restart):
            self._check_restart(action, first)
        if isinstance(action, act.Patch):
            new = set(action.exclude) - self.kept_away
            assert new <= self.own_nodes
            self._isolations(at, len(new) if first else 0)
            if first:
                self.kept_away = set(action.exclude) | self._being_isolated()

    def _check_isolate(self, action: act.Isolate, at: float, first: bool) -> None:
        verdicts = self.verdicts[_about(action.key), action.node]
        if action.drain:
            proven = action.node in self.proven or verdicts[-2:] == ["FAIL", "FAIL"]
            assert proven, f"{action.node} drained after {verdicts}"
        else:
            assert action.node in self.accused or verdicts[-2:] == ["FAIL", "FAIL"]
        self._isolations(at, 1 if first and action.node not in self.kept_away else 0)
        if action.node in self.preflight:
            self.paid.add(_about(action.key))
        self.kept_away.add(action.node)

    def _being_isolated(self) -> set[str]:
        """Nodes whose isolation is ordered and unanswered: they are excluded once it is answered."""
        return {action.node for action in self.asked.values() if isinstance(action, act.Isolate)}

    def _isolations(self, at: float, count: int) -> None:
        self.isolated_at += [at] * count
        recent = sum(1 for t in self.isolated_at if t > at - self.policy.cap_window)
        assert recent <= self.policy.cap_nodes, f"{recent} nodes isolated within the window"

    def _check_restart(self, action: act.Restart, first: bool) -> None:
        incident, _, word = action.key.partition("/")
        assert word in ("restart", "restart/2"), action.key
        if word == "restart/2":
            assert f"{incident}/restart" in self.failed, "a second try only after a refusal"
        assert set(action.exclude) <= self.kept_away, "excluded without having been isolated"
        if first:  # a new operator repeats it without the nodes that were isolated since
            self.kept_away = set(action.exclude) | self._being_isolated()
        if first and word == "restart" and not self._requested():
            further = self.best != self.best_at_restart
            self.best_at_restart = self.best
            self.vain = 0 if further or self._as_far_as_time_went() else self.vain + 1
            self.paid_in_a_row = 0 if further else self.paid_in_a_row + (incident in self.paid)
            spared = min(self.policy.cap_nodes, self.paid_in_a_row)
            assert self.vain <= self.policy.max_without_progress + spared, "a restart loop"

    def _requested(self) -> bool:
        """A person wants this restart: the budget does not count it."""
        diagnosis = self.state.incident.diagnosis if self.state.incident is not None else None
        return diagnosis is not None and diagnosis.cause == REQUESTED

    def _as_far_as_time_went(self) -> bool:
        """What keeps its own checkpoints, or none, comes as far as Slurm's limits let it: nobody can tell how far."""
        diagnosis = self.state.incident.diagnosis if self.state.incident is not None else None
        return self.best[0] < 0 and diagnosis is not None and diagnosis.cause in OF_TIME


def _about(key: str) -> str:
    """The incident that an action belongs to, or the attempt whose idle nodes it is about.

    A lift gives the keys of what is asked after it another name (`idle._key`); what a node had answered before stands.
    """
    key = re.sub(r"^(idle/[^/+]*)\+\d+/", r"\1/", key)
    return key.rpartition(f"/{key.split('/')[2]}")[0] if key.startswith("idle/") else key.partition("/")[0]
