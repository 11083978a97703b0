"""The detector of silence, against simulated runs: `Job` plays ranks, agents and observer on one clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.core import stall
from transom_cli.core.stall import STOPPED, FirstStep, NodeBack, NodeSilent, RanksResumed, Stall, StallLimits
from transom_cli.heartbeat.table import NodeTable, RankBeat

LIMITS = StallLimits()


@dataclass
class Job:
    """Ranks 0..n-1, two a node, whose agents write once a second and whose observer looks every `look` seconds."""

    ranks: int = 4
    look: float = 0.5
    limits: StallLimits = LIMITS
    launch: int = 0
    now: float = 1000.0
    state: stall.StallState = field(default_factory=stall.start)
    findings: list[tuple[float, stall.StallFinding]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.beats = [RankBeat(r, self.launch, -1, 0, 0.0, None, "start", 100 + r, "S") for r in range(self.ranks)]
        self.seqs: dict[str, int] = {f"n{r // 2}": 0 for r in range(self.ranks)}
        self.dead: set[str] = set()
        self.tables: dict[str, NodeTable] = {}
        self.write_due = self.look_due = self.now

    def pass_time(self, seconds: float) -> list[stall.StallFinding]:
        """Let time go by; what was found in it."""
        before, end = len(self.findings), self.now + seconds
        while (due := min(self.write_due, self.look_due)) <= end:
            self.now = due
            if due == self.write_due:
                self.write()
                self.write_due += 1.0
            else:
                self.observe()
                self.look_due += self.look
        self.now = end
        return [found for _, found in self.findings[before:]]

    def write(self) -> None:
        for node in self.seqs.keys() - self.dead:
            self.seqs[node] += 1
            ranks = tuple(b for b in self.beats if f"n{b.rank // 2}" == node)
            self.tables[node] = NodeTable(node, "7.0", self.seqs[node], ranks)

    def observe(self) -> None:
        self.state, found = stall.watch(self.state, dict(self.tables), self.now, self.limits)
        self.findings += [(self.now, f) for f in found]

    def set(self, ranks: list[int] | None = None, **changes: object) -> None:
        for r in range(self.ranks) if ranks is None else ranks:
            self.beats[r] = self.beats[r]._replace(**changes)  # type: ignore[arg-type]

    def step(self, seconds: float, ranks: list[int] | None = None) -> list[stall.StallFinding]:
        found = self.pass_time(seconds)
        for r in range(self.ranks) if ranks is None else ranks:
            b = self.beats[r]
            phase = "step" if b.phase == "start" else b.phase
            self.beats[r] = b._replace(step=b.step + 1, count=b.count + 1, phase=phase)
        return found

    def steps(self, seconds: list[float]) -> list[stall.StallFinding]:
        return [found for s in seconds for found in self.step(s)]

    def settle(self, step: float = 1.0) -> None:
        """Past start-up: 130 s of regular steps."""
        assert self.steps([step] * int(130 / step) + [step] * 4) in ([], [FirstStep(0)])
        self.pass_time(1.0)


def alarms(found: list[stall.StallFinding]) -> list[stall.StallFinding]:
    return [f for f in found if isinstance(f, NodeSilent | Stall)]


jitter = st.lists(st.floats(0.5, 2.0), min_size=5, max_size=20)


@settings(max_examples=25, deadline=None)
@given(base=st.floats(0.05, 20.0), factors=jitter, compile_time=st.floats(0, 500), look=st.floats(0.2, 4.0))
def test_a_regular_run_never_alarms(base: float, factors: list[float], compile_time: float, look: float) -> None:
    job = Job(ranks=3, look=look)
    found = job.steps([compile_time] + [base * f for f in factors] * 2) + job.pass_time(look + 1.0)
    assert alarms(found) == []
    assert sum(isinstance(f, FirstStep) for f in found) == 1


@settings(max_examples=15, deadline=None)
@given(base=st.floats(0.3, 10.0), factors=jitter, saving=st.floats(1, 200), every=st.integers(3, 12))
def test_checkpoints_are_aside(base: float, factors: list[float], saving: float, every: int) -> None:
    job = Job(ranks=3, look=1.0)
    found = job.steps([3.0])
    for n, f in enumerate(factors * 2):
        found += job.step(base * f)
        if n % every == every - 1:
            job.set(phase="checkpoint")
            found += job.pass_time(saving)
            job.set(phase="step")
    assert alarms(found) == []
    assert max(job.state.times.samples, default=0.0) < 2.0 * base + 3.0, "the time of saving is in no sample"


@settings(max_examples=30, deadline=None)
@given(
    base=st.floats(0.05, 15.0),
    factors=jitter,
    look=st.floats(0.2, 4.0),
    proc=st.sampled_from("SRDT"),
    stopped=st.integers(0, 3),
)
def test_a_full_stop_is_found_within_the_limit_and_one_reading(
    base: float, factors: list[float], look: float, proc: str, stopped: int
) -> None:
    job = Job(look=look)
    assert alarms(job.steps([5.0] + [base * f for f in factors])) == []
    job.set([stopped], proc=proc)
    job.pass_time(1.0 + 2 * look)  # until the last step has been seen
    stop = job.now
    limit = job.state.limit
    while job.now < stop + LIMITS.first_step + look and not any(isinstance(f, Stall) for _, f in job.findings):
        job.pass_time(look)
    job.pass_time(50.0)
    quiet_found = [(at, f) for at, f in job.findings if isinstance(f, Stall)]
    assert len(quiet_found) == 1, "one stall is one finding"
    at, found = quiet_found[0]
    assert at - stop <= max(limit, found.limit) + look
    assert job.state.stalled == (0, 1, 2, 3)
    assert found.nodes == tuple(dict.fromkeys(f"n{rank // 2}" for rank in found.culprits))
    assert found.step == job.beats[0].step
    if proc in "TD":
        assert found.culprits == (stopped,)
    factor = STOPPED if proc in "TXZ" else LIMITS.factor
    assert found.limit >= factor * job.state.times.median or found.limit == LIMITS.first_step


def test_a_stopped_process_is_found_at_the_tight_limit_and_named() -> None:
    job = Job()
    job.settle(0.5)
    job.set([2], proc="T")
    found = alarms(job.pass_time(8.0))
    assert [type(f) for f in found] == [Stall]
    assert found[0].limit == LIMITS.floor and found[0].culprits == (2,)


def test_a_silence_soon_after_the_first_step_says_that_its_limit_was_wider() -> None:
    job = Job()
    assert alarms(job.steps([10.0] + [0.2] * 40)) == []
    (found,) = alarms(job.pass_time(60.0))
    assert isinstance(found, Stall) and found.early
    assert found.limit == pytest.approx(36.0, abs=4.0), "four times the startup, less the 8 s of steps"
    assert "wider soon after the first step" in found.words and found.seconds >= found.limit


def test_a_late_silence_has_the_learned_limit() -> None:
    job = Job()
    job.settle(0.5)
    (found,) = alarms(job.pass_time(60.0))
    assert isinstance(found, Stall) and not found.early and "soon after" not in found.words


def test_a_stop_inside_a_checkpoint_does_not_wait_for_its_long_limit() -> None:
    job = Job()
    job.settle()
    job.set(phase="checkpoint")
    job.set([1], proc="T")
    found = alarms(job.pass_time(30.0))
    assert [f.culprits for f in found] == [(1,)]


def test_evaluation_of_twenty_steps_length_passes_the_first_time() -> None:
    job = Job()
    job.settle()
    assert job.steps(([1.0] * 50 + [20.0]) * 4) == []


def test_a_longer_evaluation_alarms_once_and_then_never() -> None:
    job = Job()
    job.settle()
    rounds = [1.0] * 50 + [60.0] + [1.0] * 3
    first = job.steps(rounds)
    assert [type(f) for f in first] == [Stall, RanksResumed]
    assert first[0].culprits == () and first[1].ranks == (0, 1, 2, 3)
    assert job.steps(rounds * 3) == []
    assert job.state.limit >= 60.0


def test_compilation_of_a_second_shape_early_in_the_run_is_waited_for() -> None:
    job = Job()
    assert alarms(job.steps([30.0] + [1.0] * 10 + [90.0] + [1.0] * 10)) == []


@pytest.mark.parametrize(("start_up", "found_after"), [(4.0, 10.0), (60.0, 99.0)])
def test_a_hang_without_a_sign_is_found_the_sooner_the_faster_the_job_came_up(
    start_up: float, found_after: float
) -> None:
    job = Job()
    assert alarms(job.steps([start_up] + [0.2] * 100)) == []
    assert alarms(job.pass_time(found_after - 1.0)) == []
    assert [type(f) for f in alarms(job.pass_time(3.0))] == [Stall]


def test_whoever_comes_late_does_not_know_how_long_the_start_took(  # an operator that is started again
) -> None:
    job = Job()
    job.set(step=40, count=41, phase="step")
    assert alarms(job.steps([0.2] * 50) + job.pass_time(100.0)) == []


def test_a_launch_that_steps_as_soon_as_it_is_seen_came_up_at_once() -> None:
    job = Job()
    job.state, _ = stall.watch(job.state, {}, job.now - 1.0, LIMITS)  # there was nothing yet
    job.set(step=0, count=1, phase="step")
    assert alarms(job.steps([0.2] * 100)) == []
    assert [type(f) for f in alarms(job.pass_time(12.0))] == [Stall]


def test_a_growing_slow_down_is_no_silence() -> None:
    job = Job()
    job.settle()
    assert job.steps([1.0 * 1.05**n for n in range(80)]) == []


def test_a_silence_that_ended_with_a_stopped_process_teaches_nothing() -> None:
    job = Job()
    job.settle()
    before = job.state.limit
    job.set([0], proc="T")
    job.pass_time(300.0)
    job.set([0], proc="S")
    back = job.steps([1.0] * 20)
    assert [type(f) for f in back] == [RanksResumed]
    job.pass_time(1.0)
    assert job.state.limit <= before * 1.5


def test_a_dead_node_is_silent_once_and_its_ranks_are_the_culprits() -> None:
    job = Job()
    job.settle()
    job.dead = {"n1"}
    found = alarms(job.pass_time(60.0))
    assert {type(f) for f in found} == {NodeSilent, Stall} and len(found) == 2
    for f in found:
        if isinstance(f, NodeSilent):
            assert f.node == "n1" and LIMITS.node_silent <= f.silent_for <= LIMITS.node_silent + job.look
        else:
            assert f.culprits == (2, 3) and f.seconds < LIMITS.node_silent
    job.dead = set()
    assert NodeBack("n1") in job.pass_time(2.0)


def test_hang_after_ten_fast_steps_that_were_read_twice_is_found_in_a_minute() -> None:
    """Steps count, not readings: ten steps of 0.2 s are read once or twice."""
    job = Job()
    job.pass_time(10)
    job.set(step=6, count=6, phase="step")
    job.pass_time(2)
    job.set(step=10, count=10)
    found = job.pass_time(60)
    assert [type(one) for one in found] == [Stall], job.state.limit


def test_five_steps_in_two_readings_are_too_few_to_know_how_long_one_takes() -> None:
    job = Job()
    job.pass_time(10)
    job.set(step=1, count=1, phase="step")
    job.pass_time(2)
    job.set(step=5, count=5)
    assert job.pass_time(600) == [], "the limit of the first step still applies"


def test_a_dead_agent_is_a_silent_node_but_no_silence_of_a_training_that_goes_on() -> None:
    job = Job()
    job.settle()
    job.dead = {"n1"}
    found = alarms(job.steps([1.0] * 60))
    assert [(type(f), f.node) for f in found if isinstance(f, NodeSilent)] == [(NodeSilent, "n1")] and len(found) == 1
    found = alarms(job.pass_time(60.0))
    assert [f.culprits for f in found if isinstance(f, Stall)] == [(2, 3)], "now the others wait, too"


def test_steps_are_those_of_the_ranks_that_can_be_seen_when_an_agent_is_dead() -> None:
    job = Job()
    job.settle()
    job.dead = {"n1"}
    job.steps([1.0] * 60)
    assert job.state.step >= job.beats[0].step - 2, "the table of n1 is late: where its ranks are is unknown"
    job.dead = set()
    job.pass_time(3.0)
    assert job.state.step == job.beats[0].step


def test_a_pause_that_is_nothing_unusual_is_none_either_while_an_agent_is_dead() -> None:
    """An evaluation, or a checkpoint that the trainer writes by itself."""
    job = Job()
    job.steps([0.1] * 1300)
    job.dead = {"n1"}
    for _ in range(3):
        found = alarms(job.steps([0.1] * 100) + job.step(4.0))
        assert not any(isinstance(f, Stall) for f in found)


def test_one_table_that_still_comes_tells_for_all() -> None:
    job = Job(ranks=8)
    job.settle()
    job.dead = {"n0", "n1", "n2"}
    found = alarms(job.steps([1.0] * 60))
    assert {f.node for f in found if isinstance(f, NodeSilent)} == job.dead and len(found) == 3
    assert job.state.step >= job.beats[0].step - 2
    assert any(isinstance(f, Stall) for f in job.pass_time(60.0)), "it does not step either"


@settings(max_examples=25, deadline=None)
@given(dead=st.sets(st.sampled_from(["n0", "n1", "n2"]), max_size=2), paces=st.lists(st.floats(0.2, 3.0), min_size=3))
def test_a_training_that_steps_is_never_found_quiet_whichever_agents_are_dead(
    dead: set[str], paces: list[float]
) -> None:
    job = Job(ranks=6)
    job.settle()
    job.dead = dead
    found = job.steps(paces * 3)
    assert not any(isinstance(f, Stall) for f in found)
    job.pass_time(10.0)
    assert job.state.step == job.beats[0].step


def test_one_rank_behind_the_others_is_the_culprit() -> None:
    job = Job()
    job.settle()
    job.step(1.0, ranks=[0, 1, 3])
    found = alarms(job.pass_time(60.0))
    assert [f.culprits for f in found] == [(2,)]


def test_steps_that_count_differently_are_not_compared() -> None:
    job = Job()
    job.settle()
    job.set([0], since_start=False, step=job.beats[0].step + 210)  # only its log shows the training's own step
    job.set([1, 2, 3], since_start=True)
    found = alarms(job.pass_time(60.0))
    assert [f.culprits for f in found] == [()]


def test_ranks_that_never_beat_are_not_judged() -> None:
    job = Job()
    found = [f for _ in range(200) for f in job.step(1.0, ranks=[0])]
    assert found == [FirstStep(0)] and job.state.step == 198
    assert len(alarms(job.pass_time(100.0))) == 1 and job.state.stalled == (0,)


def test_finished_ranks_are_not_quiet() -> None:
    job = Job()
    job.settle()
    job.set([1, 2, 3], phase="done", proc="X")
    job.set([0], phase="checkpoint")
    assert job.pass_time(600.0) == []
    job.set([0], phase="done", proc="X")
    job.pass_time(1.5)
    job.dead = {"n0", "n1"}  # the agents end with their job
    assert job.pass_time(600.0) == []


def test_a_closed_table_is_no_silence() -> None:
    job = Job()
    job.settle()
    job.tables = {n: replace(t, seq=t.seq + 1, closed=True) for n, t in job.tables.items()}
    job.dead = {"n0", "n1"}
    assert job.pass_time(600.0) == []


def test_no_verdict_before_a_full_limit_of_listening() -> None:
    job = Job()
    job.settle()
    job.pass_time(3.0)
    job.state = stall.start()  # a new observer of a job that has stalled: it must listen for itself
    assert job.pass_time(LIMITS.first_step - 2.0) == [FirstStep(job.state.step)]
    assert len(alarms(job.pass_time(5.0))) == 1


def test_time_in_which_the_observer_slept_is_not_silence() -> None:
    job = Job()
    job.settle()
    job.look_due = job.now + 3600.0  # suspended: agents write, nobody looks
    assert job.pass_time(3600.0 + 1.0) == []
    assert len(alarms(job.pass_time(60.0))) == 1, "from now on it listens again"


def test_time_in_which_everything_was_stopped_is_neither_silence_nor_a_lesson() -> None:
    job = Job()
    job.settle()
    times = job.state.times
    assert job.pass_time(4.0) == []
    job.now = job.write_due = job.look_due = job.now + 3600.0
    job.state = stall.resumed(job.state, job.now)
    assert job.steps([1.0] * 3) == []
    assert job.state.times.patient(3.0, 1.0, 1.0, 1e9) <= times.patient(3.0, 1.0, 1.0, 1e9)
    job.dead = {"n1"}
    found = job.pass_time(LIMITS.node_silent + 3.0)
    assert [f.node for f in found if isinstance(f, NodeSilent)] == ["n1"]


def test_a_node_that_never_sent_a_table_is_found_when_it_was_expected() -> None:
    job = Job(state=stall.start(expected=["n0", "n1", "n2"]))
    found = alarms(job.steps([1.0] * 70))
    assert [(f.node, f.limit) for f in found] == [("n2", LIMITS.missing)]


def test_two_tables_of_one_node_one_of_them_fresh_is_not_a_silent_node() -> None:
    job = Job(ranks=2)
    tables = {
        f"n0.rank{r}": NodeTable("n0", "7.0", 1, (RankBeat(r, 0, 5, 5, 0.0, None, "step", 9 + r, "S"),)) for r in (0, 1)
    }
    state = stall.start()
    found: list[stall.StallFinding] = []
    for second in range(40):
        tables["n0.rank1"] = replace(tables["n0.rank1"], seq=second + 2)
        state, new = stall.watch(state, tables, float(second), job.limits)
        found += new
    assert not any(isinstance(f, NodeSilent) for f in found)


def test_a_launch_that_was_ended_for_its_silence_alone_teaches_patience() -> None:
    """An evaluation that is longer than all that was seen: each time it is ended, the next one may take longer."""
    job = Job()
    job.settle()
    limits = []
    for launch in (1, 2, 3):
        (found,) = alarms(job.pass_time(job.state.limit + 5.0))
        assert isinstance(found, Stall)
        limits.append(found.limit)
        job.set(launch=launch, step=-1, count=0, phase="start")
        job.pass_time(2.0)
        job.set(phase="step")
        job.settle()
    assert limits[1] > 1.4 * limits[0] and limits[2] > 1.4 * limits[1]


def relaunched(job: Job, silence: float, launches: int, *, apart: int = 0) -> tuple[int, float]:
    """Each launch goes on from step 99 and is silent after step 499, or `apart` steps later than the one before.

    How many were ended for it, and the last one's limit.
    """
    job.steps([0.3] * 500)
    for launch in range(launches):
        silent = 0.0
        while silent < silence and not alarms(job.pass_time(1.0)):
            silent += 1.0
        if silent >= silence:
            return launch, job.state.limit
        job.set(launch=launch + 1, step=99, count=0, phase="start")
        job.pass_time(2.0)
        job.steps([0.3] * (400 + (launch + 1) * apart))
    return launches, job.state.limit


def test_three_relaunches_learn_an_evaluation_fifty_times_as_long_as_the_first_limit() -> None:
    assert relaunched(Job(look=1.0), 500.0, 4)[0] == 3


def test_silences_at_different_steps_do_not_blunt_the_detector() -> None:
    at_one_step, apart = relaunched(Job(look=1.0), 2000.0, 3), relaunched(Job(look=1.0), 2000.0, 3, apart=1)
    assert at_one_step[0] == apart[0] == 3
    assert apart[1] < 60.0 and at_one_step[1] > 8 * apart[1]


def test_a_launch_that_never_made_a_step_teaches_nothing_of_steps() -> None:
    job = Job(look=1.0)
    job.steps([0.3] * 500)
    learned = job.state.times
    job.set(launch=1, step=-1, count=0, phase="start")
    assert alarms(job.pass_time(LIMITS.first_step + 5.0))
    job.set(launch=2)
    job.pass_time(2.0)
    assert job.state.times == learned


def test_a_relaunch_forgets_the_ranks_and_keeps_what_was_learned() -> None:
    job = Job()
    job.settle()
    learned = job.state.times.samples
    job.set([0], proc="X")
    assert alarms(job.pass_time(20.0)) != []
    job.set(launch=1, step=-1, count=0, phase="start", proc="S")
    assert job.pass_time(600.0) == [], "a new launch may take its time"
    assert job.state.times.samples == learned and job.state.step == -1
    job.set(step=130)
    assert job.step(1.5) == [FirstStep(130)]


def test_a_table_of_an_older_launch_changes_nothing() -> None:
    state = stall.start()
    beat = RankBeat(0, 1, 7, 8, 0.0, None, "step", 1, "S")
    state, _ = stall.watch(state, {"a": NodeTable("a", "7.0", 1, (beat,))}, 0.0, LIMITS)
    late = NodeTable("b", "7.0", 1, (beat._replace(launch=0, step=3),))
    after, found = stall.watch(state, {"a": NodeTable("a", "7.0", 1, (beat,)), "b": late}, 1.0, LIMITS)
    assert found == () and after.step == 7 and set(after.pulses) == {0}


def test_ranks_that_tell_the_trainings_step_are_believed_before_those_that_count_from_their_start() -> None:
    """Rank 0 alone calls beat(), once in several optimizer steps; the hook counts on the others."""
    job = Job()
    job.set(since_start=True)
    job.steps([1.0] * 5)
    job.pass_time(2.0)
    assert (job.state.step, job.state.since_start) == (4, True)
    job.set([0], since_start=False, step=2, count=9)
    job.pass_time(2.0)
    assert (job.state.step, job.state.since_start) == (2, False)


class Passed(Job):
    """Judged by what another observer passes on, every five seconds."""

    def observe(self) -> None:
        heard = stall.HeardBefore(dict.fromkeys(self.tables, 0.75), {})
        if self.now % 5.0 < self.look:
            self.state, found = stall.watch(self.state, dict(self.tables), self.now, self.limits, heard)
            self.findings += [(self.now, f) for f in found]
        else:
            self.state = stall.listened(self.state, self.now, self.limits)


def test_the_age_of_a_table_that_is_passed_on_counts() -> None:
    job = Passed(ranks=4, look=0.25)
    assert alarms(job.steps([1.0] * 134)) == []
    began = job.now
    job.dead.add("n1")
    job.pass_time(60.0)
    (silent,) = [(at, f) for at, f in job.findings if isinstance(f, NodeSilent)]
    assert silent[1].node == "n1" and silent[1].silent_for >= 10.0 and silent[0] - began <= 15.0
    job.dead.clear()
    assert [f for f in job.pass_time(10.0) if isinstance(f, stall.NodeBack)] == [stall.NodeBack("n1")]


def test_an_observer_who_vouches_for_nodes_renews_the_patience_with_them() -> None:
    job = Job(ranks=4, look=0.25)
    job.settle()
    job.dead |= {"n0", "n1"}
    job.pass_time(9.0)
    job.state = stall.vouched(job.state, 4.0, ["n0", "unknown"])
    silent = {f.node: job.now for f in job.pass_time(2.0) if isinstance(f, NodeSilent)}
    assert set(silent) == {"n1"}
    assert [f.node for f in job.pass_time(5.0) if isinstance(f, NodeSilent)] == ["n0"]


def test_a_pause_that_was_normal_in_this_run_is_no_hang_the_next_time_even_beyond_the_ceiling() -> None:
    job = Job(limits=replace(LIMITS, ceiling=60.0))
    job.settle()
    first = job.step(300.0)
    assert [type(f) for f in first] == [Stall], "nothing was known about such a pause"
    job.steps([1.0] * 5)
    assert alarms(job.step(300.0)) == []
    job.steps([1.0] * 5)
    (again,) = alarms(job.pass_time(400.0))
    assert isinstance(again, Stall)
    assert again.limit < 340.0, "a longer one is found soon after the length that was normal"
    assert f"it once paused for {again.paused:.1f} s" in again.words


def test_a_long_barrier_while_saving_is_normal_the_next_time_a_run_saves_but_not_between_its_steps() -> None:
    job = Job(limits=replace(LIMITS, ceiling=60.0, checkpoint=90.0))
    job.settle()

    def save() -> list[stall.StallFinding]:
        job.set(phase="checkpoint")
        found = job.pass_time(500.0)
        job.set(phase="step")
        return alarms([*found, *job.steps([1.0] * 5)])

    assert len(save()) == 1
    assert save() == []
    assert len(alarms(job.pass_time(100.0))) == 1
