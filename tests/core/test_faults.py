"""What checks found against nodes, as the operator's core takes it: each node by its own fault, and never for ever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.core import events as ev
from transom_cli.core.diagnose import diagnose
from transom_cli.core.incident import Diagnosis, Incident
from transom_cli.core.operator import actions as act
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Job, Phase, Policy, Request, State

NODES = ("n1", "n2", "n3")


def fault(node: str, verdict: str = "FAIL", check: str = "xid", evidence: str = "Xid 79") -> ev.NodeFault:
    return ev.NodeFault(node, check, verdict, evidence)


class Player:
    """A run whose orders are carried out at once; every start gets n1 and new nodes."""

    def __init__(self, policy: Policy | None = None, pause: float = 30.0) -> None:
        self.state = State(policy=policy or Policy(backoff=1.0), request=Request(num_nodes=3))
        self.now, self.pause, self.number = 0.0, pause, 3
        self.restarts = 0
        self.done: list[act.Action] = []
        self.feed(ev.Started(0.0, 1), ev.Submitted(0.0, "submit", 7))
        self.start(NODES)

    def feed(self, *events: ev.Event) -> None:
        for event in events:
            self.state, actions = decide(self.state, event)
            for action in actions:
                self.done.append(action)
                self._answer(action)

    def _answer(self, action: act.Action) -> None:
        if isinstance(action, act.Isolate):
            self.feed(ev.Isolated(self.now, action.key, action.node, "drained" if action.drain else "excluded", ""))
        if isinstance(action, act.ReadLogs):
            self.feed(ev.Examined(self.now, action.key, "user_code", "RuntimeError: CUDA error", "rank-0.log"))
        if isinstance(action, act.Probe):
            self.feed(ev.Probed(self.now, action.key, action.node, "PASS", "up"))
        if isinstance(action, act.Restart):
            self.restarts += 1
            self.feed(ev.Restarted(self.now, action.key, 7, self.restarts, "requeued"))

    def start(self, nodes: tuple[str, ...]) -> None:
        self.nodes = nodes
        self.feed(ev.JobSeen(self.now, 7, self.restarts, "RUNNING", nodes=nodes, batch_host=nodes[0]))

    def new_start(self) -> None:
        self.number += 2
        self.start(("n1", f"n{self.number}", f"n{self.number + 1}"))

    def end(self, *faults: ev.NodeFault, status: str = "left", cause: str = "preflight", **more: object) -> None:
        result = ev.OutcomeSeen(
            self.now, self.state.attempt, status, "why", nodes=self.nodes, cause=cause, faults=faults, **more  # type: ignore[arg-type]
        )  # fmt: skip
        self.feed(result)
        for _ in range(40):  # back-off
            self.now += 10.0
            self.feed(ev.Tick(self.now))

    @property
    def isolated(self) -> list[tuple[str, bool]]:
        return [(a.node, a.drain) for a in self.done if isinstance(a, act.Isolate)]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 3), st.integers(0, 3), st.sampled_from(("FAIL", "SUSPECT")), st.sampled_from((30.0, 4000.0)),
    st.integers(1, 2),
)  # fmt: skip
def test_checks_that_find_fault_with_ever_new_nodes_come_to_an_end(
    budget: int, cap: int, verdict: str, pause: float, bad: int
) -> None:
    """Also where each start waits so long in the queue that the cap's window never fills."""
    player = Player(Policy(budget, 1.0, cap_nodes=cap, cap_fraction=0.0), pause)
    for _ in range(20):
        player.end(*(fault(n, verdict) for n in player.nodes[1 : 1 + bad]))
        if player.state.phase in (Phase.STOPPING, Phase.FAILED):
            break
        player.now += pause
        player.new_start()
    assert player.state.exit_code == 21 and player.restarts <= budget + cap
    assert "a limit of the checks that is wrong" in player.state.verdict


def test_progress_makes_preflights_free_again() -> None:
    player = Player(Policy(max_without_progress=0, cap_nodes=9), pause=0.0)
    for step in (1, 2, 3, 4):
        for _ in range(2):
            player.end(fault(player.nodes[1], "SUSPECT"))
            player.now += 4000.0
            player.new_start()
        player.feed(ev.LaunchSeen(player.now, player.state.attempt, 0, player.nodes, 3))
        player.feed(ev.StepSeen(player.now, player.state.attempt, step), ev.CheckpointSeen(player.now, step))
    assert player.state.phase is Phase.TRAINING and player.restarts == 8


def test_fault_of_a_foreign_node_is_ignored() -> None:
    player = Player()
    player.end(fault("x9"))
    assert player.isolated == [] and player.state.budget.no_progress == 1
    assert all("x9" not in m.words for i in player.state.incidents for m in i.marks)


def test_the_worst_fault_of_a_node_counts_and_is_its_reason() -> None:
    player = Player()
    player.end(fault("n2", "SUSPECT", "disk", "96 % full"), fault("n2"), fault("n3", "SUSPECT", "disk", "97 % full"))
    isolate = {a.node: a for a in player.done if isinstance(a, act.Isolate)}
    assert isolate["n2"].reason == "xid: Xid 79 (and 1 more)" and isolate["n2"].drain
    assert isolate["n3"].reason == "disk: 97 % full" and not isolate["n3"].drain
    until = {x.node: x.until for x in player.state.isolation.exclusions}
    assert until["n2"] is None and until["n3"] is not None


def test_without_the_right_to_drain_it_is_kept_off_until_a_person_lifts_it() -> None:
    player = Player(Policy(drain=False))
    player.end(fault("n2"))
    assert player.isolated == [("n2", False)]
    assert [(x.node, x.until) for x in player.state.isolation.exclusions] == [("n2", None)]


@pytest.mark.parametrize(
    ("verdict", "cause", "stops"), [("SUSPECT", "", True), ("SUSPECT", "node_fault", False), ("FAIL", "", False)]
)
def test_a_mere_suspicion_is_no_excuse_for_a_users_error(verdict: str, cause: str, stops: bool) -> None:
    """A traceback before the very first step would come again; a proven fault explains it."""
    player = Player()
    player.feed(ev.LaunchSeen(1.0, "7.0", 0, NODES, 3))
    exits = (ev.RankExit(0, "n2", 1, None),)
    player.end(fault("n2", verdict), status="failed", cause=cause, exits=exits)
    assert (player.state.exit_code is not None) is stops
    assert player.isolated == ([] if stops else [("n2", verdict == "FAIL")])


def test_a_fault_beside_another_cause_isolates_its_node_alone() -> None:
    player = Player()
    player.feed(ev.LaunchSeen(1.0, "7.0", 0, NODES, 3), ev.StepSeen(2.0, "7.0", 4), ev.CheckpointSeen(3.0, 4))
    player.end(fault("n3", "SUSPECT"), cause="time_limit")
    assert player.isolated == [("n3", False)]
    assert player.state.incident is not None and player.state.incident.diagnosis is not None
    assert player.state.incident.diagnosis.cause == "time_limit"


def test_a_suspicion_says_nothing_more_of_a_lost_node_but_a_proof_does() -> None:
    from transom_cli.core.incident import NodeProbes

    incident = Incident("i1", 7, 0, 0.0, 5, probes=(NodeProbes("n2", fails=2, evidence="no slurmd"),))
    for verdict, reason in (("SUSPECT", "node_lost: n2 lost: no slurmd"), ("FAIL", "xid: Xid 79")):
        faults = (fault("n2", verdict),)
        result = Incident(**{**vars(incident), "faults": faults})
        diagnosis = diagnose(result, State(job=Job(nodes=NODES)))
        assert diagnosis is not None and diagnosis.cause == "node_lost"
        assert (diagnosis.reason("n2"), diagnosis.isolates("n2"), diagnosis.sure_of("n2")) == (reason, "drain", True)


def test_nodes_without_a_fault_go_by_the_diagnosis() -> None:
    diagnosis = Diagnosis("hang", "w", ("n1", "n2"), False, "none", True, faults=(fault("n2"),))
    assert [diagnosis.isolates(n) for n in ("n1", "n2")] == ["none", "drain"]
    assert [diagnosis.sure_of(n) for n in ("n1", "n2")] == [False, True]


def test_an_answer_to_an_exclusion_does_not_undo_the_drain_that_followed_it() -> None:
    """Two hands carry them out, and the slower one answers last."""
    state = Player().state
    swap = {"incident": "", "what": "swapped", "words": "n4 for n2", "cause": "node_fault", "nodes": ("n2",)}
    for verdict in ("SUSPECT", "FAIL"):
        state, _ = decide(state, ev.RecoverySeen(9.0, "7.0", **swap, faults=(fault("n2", verdict),)))  # type: ignore[arg-type]
    assert len(state.isolation.times) == 1, "one node, once within the cap"
    state, _ = decide(state, ev.Isolated(10.0, "idle/7.0/n2/drain", "n2", "drained", ""))
    state, _ = decide(state, ev.Isolated(11.0, "idle/7.0/n2/exclude", "n2", "excluded", ""))
    assert [(x.how, x.until) for x in state.isolation.exclusions] == [("drained", None)]
    assert [x.faults[0].verdict for x in state.isolation.exclusions] == ["FAIL"]


def test_probe_of_a_spare_that_an_earlier_attempt_has_asked_for_counts_no_more() -> None:
    """Two failed probes are evidence against a node, but not one of each attempt."""
    story: list[ev.Event] = [ev.Started(0.0, 1), ev.Submitted(0.0, "submit", 7)]
    for number in (0, 1):
        attempt = f"7.{number}"
        story += [
            ev.JobSeen(1.0, 7, number, "RUNNING", nodes=NODES, batch_host="n1"),
            ev.LaunchSeen(2.0, attempt, 0, ("n1", "n2"), 2, idle=("n3",), faults=(fault("n3", "SUSPECT"),)),
        ]
        story += [ev.JobGone(3.0, 7, "", None, None, "")] if number == 0 else []
    state = State(request=Request(num_nodes=2))
    for event in story:
        state, _ = decide(state, event)
    state, actions = decide(state, ev.Probed(4.0, "idle/7.0/n3/1", "n3", "FAIL", "no slurmd"))
    assert actions == ()
    _, actions = decide(state, ev.Probed(5.0, f"idle/{state.attempt}/n3/1", "n3", "FAIL", "no slurmd"))
    assert [action.key for action in actions] == [f"idle/{state.attempt}/n3/2"]


def test_a_suspected_node_that_turns_out_dead_is_drained_in_the_same_incident() -> None:
    """While the restart waits its back-off. The action has a key of its own: it is another one."""
    killed = ev.OutcomeSeen(
        50.0, "7.0", "failed", "w", (ev.RankExit(1, "n2", None, 9),), faults=(fault("n2", "SUSPECT"),)
    )
    story: list[ev.Event] = [
        ev.Started(0.0, 1),
        ev.Submitted(0.0, "submit", 7),
        ev.JobSeen(1.0, 7, 0, "RUNNING", nodes=NODES, batch_host="n1"),
        ev.LaunchSeen(2.0, "7.0", 0, NODES, 3),
        killed,
        ev.Examined(51.0, "i1/examine", "unknown", "", ""),
        ev.Isolated(52.0, "i1/isolate/n2", "n2", "excluded", ""),
        ev.NodeSilent(53.0, "7.0", "n2", 11.0),
        ev.Probed(54.0, "i1/probe/n2/1", "n2", "FAIL", "no slurmd"),
        ev.Probed(55.0, "i1/probe/n2/2", "n2", "FAIL", "no slurmd"),
        ev.Isolated(56.0, "i1/drain/n2", "n2", "drained", ""),
    ]
    state, orders = State(request=Request(num_nodes=3)), []
    for event in story:
        state, actions = decide(state, event)
        orders += [(a.key, a.drain) for a in actions if isinstance(a, act.Isolate)]
    assert orders == [("i1/isolate/n2", False), ("i1/drain/n2", True)]
    assert [(x.how, x.until) for x in state.isolation.exclusions] == [("drained", None)]
    assert len(state.isolation.times) == 1


def test_a_swap_beyond_the_cap_isolates_nobody_and_says_so() -> None:
    player = Player(Policy(cap_nodes=0, cap_fraction=0.0))
    player.feed(ev.LaunchSeen(1.0, "7.0", 0, ("n1", "n2"), 2, idle=("n3",)), ev.StepSeen(2.0, "7.0", 1))
    seen = ev.RecoverySeen(3.0, "7.0", "l1", "seen", "n2: xid", "node_fault", ("n2",), (fault("n2"),))
    swapped = ev.RecoverySeen(4.0, "7.0", "l1", "swapped", "n3 for n2", "node_fault", ("n2",), (fault("n2"),))
    player.feed(seen, swapped)
    assert player.isolated == [] and player.state.incident is not None
    assert player.state.incident.marks[-1].words == (
        "n2 not isolated: that would be more than 0 nodes in 60 minutes (xid: Xid 79)"
    )
    assert player.state.phase is Phase.RECOVERING, "the training continues without it"


def test_a_lift_counts_once_and_the_node_may_be_isolated_again() -> None:
    player = Player(Policy(cap_nodes=5))
    player.end(fault("n2"))
    player.new_start()
    lift = ev.LiftRequested(player.now, "ann", "lift-1.json", ("n2",))
    player.feed(lift)
    assert [x.until for x in player.state.isolation.exclusions] == [player.now]
    player.end(fault(player.nodes[1]))
    assert [x.node for x in player.state.isolation.exclusions] == [player.nodes[1]]
    player.start(("n1", "n2", "n9"))
    player.end(fault("n2"))
    player.feed(lift)
    assert "n2" in player.state.isolation.excluded, "the same request does not lift it a second time"


def test_an_exclusion_has_a_reason_before_a_probe_answers_and_ends_for_people_once_it_is_lifted() -> None:
    player = Player(Policy(cap_nodes=5))
    player.feed(
        ev.LaunchSeen(1.0, "7.0", 0, ("n1", "n2"), 2, idle=("n3",)),
        ev.RecoverySeen(2.0, "7.0", "l1", "seen", "rank 0 on n1 ended with exit code 2"),
        ev.RecoverySeen(3.0, "7.0", "l1", "diagnosed", "n1 for the second time", "rank_failed", ("n1",)),
        ev.RecoverySeen(4.0, "7.0", "l1", "swapped", "continues on 1 of 2 nodes, without n1", "rank_failed", ("n1",)),
    )
    assert [(x.node, x.reason) for x in player.state.avoided] == [("n1", "rank_failed: n1 for the second time")]
    player.feed(ev.LiftRequested(5.0, "ann", "lift-1.json", ("n1",)))
    assert player.state.avoided == () and player.state.isolation.exclusions, "it is dropped at the next restart"


class Late(Player):
    """Its probes are answered when it says so."""

    def _answer(self, action: act.Action) -> None:
        if not isinstance(action, act.Probe):
            super()._answer(action)


def test_a_lifted_node_that_turns_out_dead_is_isolated_by_an_action_of_its_own() -> None:
    player = Late(Policy(backoff=1.0, drain=False))
    player.feed(ev.RecoverySeen(1.0, "7.0", "l1", "swapped", "n2 out", "node_fault", ("n2",), (fault("n2"),)))
    player.feed(ev.LiftRequested(2.0, "ann", "lift-1.json", ("n2",)))
    for at in (3.0, 4.0):
        (probe,) = [a for a in player.state.pending if isinstance(a, act.Probe) and a.node == "n2"]
        player.feed(ev.Probed(at, probe.key, "n2", "FAIL", "no slurmd listens on it"))
    first, second = (a for a in player.done if isinstance(a, act.Isolate) and a.node == "n2")
    assert first.key != second.key and second.reason.startswith("node_lost")


def test_what_a_trainer_prints_of_hardware_drains_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank's log is its user's to write. Again and again on one node it excludes, for a while."""
    xid = "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    player = Player(Policy(max_without_progress=9, backoff=1.0))
    answer = player._answer

    def printed(action: act.Action) -> None:
        if isinstance(action, act.ReadLogs):
            player.feed(ev.Examined(player.now, action.key, "gpu_hardware", xid, "rank-1.log"))
        else:
            answer(action)

    monkeypatch.setattr(player, "_answer", printed)
    for _ in range(3):
        player.feed(ev.LaunchSeen(player.now, player.state.attempt, 0, NODES, 3))
        player.end(status="failed", cause="", exits=(ev.RankExit(1, "n2", 1, None),))
        player.start(NODES)
    assert player.isolated and not any(drain for _, drain in player.isolated), player.isolated
