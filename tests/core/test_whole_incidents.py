"""A whole run in a simulated world: faults at any moment, operators that die, Slurm that is away. It always ends well
or says why, and no incident hangs."""

from __future__ import annotations

from core_world import NODES, World
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from transom_cli.core import events as ev
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Policy, Request, State


class WholeIncidents(RuleBasedStateMachine):
    world: World

    @initialize(budget=st.integers(1, 3), backoff=st.sampled_from((0.0, 5.0)), cap=st.integers(1, 3))
    def begin(self, budget: int, backoff: float, cap: int) -> None:
        self.world = World(Policy(budget, backoff, release_held=True, cap_nodes=cap, cap_fraction=0.0, expiry=500.0))
        self.world.act(0)
        self.world.schedule()
        self.world.observe()

    @rule(seconds=st.sampled_from((0.1, 1.0, 6.0, 700.0)))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.tell(ev.Tick(self.world.now))

    @rule(which=st.integers(0, 5))
    def a_hand_answers(self, which: int) -> None:
        self.world.act(which)

    @rule()
    def everything_is_seen(self) -> None:
        self.world.observe()

    @rule()
    def slurm_schedules(self) -> None:
        self.world.schedule()

    @rule()
    def the_operator_dies_and_another_begins(self) -> None:
        self.world.start_operator()

    @rule()
    def slurm_goes_or_comes(self) -> None:
        self.world.slurm = not self.world.slurm
        if self.world.slurm:
            self.world.tell(ev.SlurmBack(self.world.now))
        else:
            self.world.tell(ev.SlurmLost(self.world.now, "timed out"))

    @rule(node=st.sampled_from(NODES[:6]))
    def a_node_dies(self, node: str) -> None:
        if len(self.world.dead) < 3:
            self.world.dead.add(node)

    @rule(node=st.sampled_from(NODES), verdict=st.sampled_from(("", "SUSPECT", "FAIL")))
    def a_preflight_would_find_this(self, node: str, verdict: str) -> None:
        self.world.sick.pop(node, None)
        if verdict:
            self.world.sick[node] = verdict

    @rule(nodes=st.lists(st.sampled_from(NODES), max_size=2, unique=True), name=st.sampled_from(("a", "b", "c")))
    def a_person_lifts_exclusions(self, nodes: list[str], name: str) -> None:
        self.world.tell(ev.LiftRequested(self.world.now, "ann", name, tuple(nodes)))

    @rule()
    def the_ranks_hang_or_go_on(self) -> None:
        self.world.hung = not self.world.hung

    @rule(ending=st.sampled_from(("", "RUNNING", "FAILED", "NODE_FAIL", "TIMEOUT")))
    def attempts_end_like_this(self, ending: str) -> None:
        self.world.failing = ending

    @rule()
    def a_checkpoint_is_published(self) -> None:
        self.world.durable = max(self.world.durable, self.world.step)
        self.world.tell(ev.CheckpointSeen(self.world.now, self.world.durable))

    @rule(held=st.sampled_from(("", "launch_failed_requeued_held")))
    def slurm_requeues_the_job(self, held: str) -> None:
        self.world.requeue_behind(held)

    @precondition(lambda self: self.world.status == "RUNNING")
    @rule(ending=st.sampled_from(("FAILED", "TIMEOUT", "PREEMPTED")))
    def the_job_ends(self, ending: str) -> None:
        self.world.status = ending

    @rule(odds=st.integers(0, 9))
    def a_person_stops_it(self, odds: int) -> None:
        if odds == 0:
            self.world.tell(ev.StopRequested(self.world.now, "ann"))

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.settle()
        state = world.ledger.state
        trains = state.phase.value == "training" and state.incident is None and not world.stuck
        assert state.phase.over or trains, f"it hangs: {state.phase}, {state.incident}, {state.pending}"
        if state.phase.over:
            assert world.status not in ("PENDING", "RUNNING"), "the run is over, and its job lives on"
            assert state.phase.value == "done" or state.verdict, "it ended and does not say why"
        assert len(set(world.starts)) == len(world.starts)
        folded = State(policy=state.policy, request=Request(num_nodes=state.request.num_nodes))
        for event in world.journal:
            folded, _ = decide(folded, event)
        assert folded == state, "the journal tells another story"


TestWholeIncidents = WholeIncidents.TestCase
TestWholeIncidents.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
