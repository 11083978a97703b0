"""The launcher of a run that is only observed: it reports what it would do, once, and its launch lives on."""

from __future__ import annotations

from core_launcher import NODES, exits, feed, training, with_spare

from transom_cli.core import launcher
from transom_cli.core.events import NodeFault, Stall
from transom_cli.core.incident import Stage
from transom_cli.core.launcher import Action, Phase, State, observing


class Observed:
    """The launcher's loop without its processes: what it carries out, and what it withholds."""

    def __init__(self, state: State, *, begun: bool = True) -> None:
        self.state = self.before = state
        self.begun, self.lives = begun, True
        self.step = 4
        self.done: list[Action] = []

    def feed(self, *received: launcher.Event) -> list[Action]:
        new: list[Action] = []
        for one in received:
            if observing.undecided(self.state):
                self.before = self.state
            self.state, actions = feed(self.state, one)
            for action in actions:
                new += self._do(action, one.at)
        self.done += new
        return new

    def _do(self, action: Action, at: float) -> list[Action]:
        newest = launcher.Stepped(at, 0, self.step)
        kept = observing.withhold(self.before, self.state, action, newest, begun=self.begun, lives=self.lives)
        if kept is None:
            self.begun = self.begun or isinstance(action, launcher.StartLaunch)
            return [action]
        self.state, instead = kept
        return [done for one in instead for done in self._do(one, at)]


def words(actions: list[Action]) -> list[str]:
    return [a.words for a in actions if isinstance(a, launcher.Journal) and a.what == "withheld"]


def hang(run: Observed, at: float) -> list[Action]:
    run.feed(launcher.Stalled(at, 0, Stall(4, 8.0, 7.0, (1,), ("n2",))))
    run.feed(launcher.LaunchEnded(at + 1, 0, evidence=("rank 1 on n2, state S",)))
    return run.feed(launcher.LogsRead(at + 2, 0, "unknown", ""))


def test_a_hang_is_reported_once_until_the_ranks_step_again() -> None:
    run = Observed(training())
    assert words(hang(run, 9.0)) == ["relaunched the ranks on the same nodes"]
    state = run.state
    assert (state.phase, state.launch.number, state.nodes.training) == (Phase.TRAINING, 0, NODES)
    assert state.incident is not None and state.incident.stage is Stage.WITHHELD
    assert run.feed(launcher.Stalled(30.0, 0, Stall(4, 30.0, 7.0, (1,), ("n2",))), launcher.Tick(60.0)) == []
    assert run.feed(launcher.Stepped(70.0, 0, 4)) == [], "a step that was done before the hang"
    (entry,) = run.feed(launcher.Stepped(71.0, 0, 5))
    assert isinstance(entry, launcher.Journal) and entry.what == "recovered"
    again = hang(run, 90.0)
    assert any(isinstance(a, launcher.WithheldOutcome) for a in again), "a later hang of the same rank is another one"


def test_a_dead_rank_ends_the_attempt_only_with_its_launch() -> None:
    run = Observed(training())
    bad = exits(-9, None, None)
    run.feed(launcher.RanksExited(9.0, 0, bad), launcher.Tick(10.0))
    run.feed(launcher.LaunchEnded(11.0, 0), launcher.LogsRead(12.0, 0, "unknown", ""))
    assert words(run.done) == ["relaunched the ranks on the same nodes"]
    assert run.feed(launcher.Stepped(12.5, 0, 5)) == [], "the others finish the step that they were in"
    assert run.feed(launcher.RanksExited(13.0, 0, bad), launcher.Tick(300.0)) == [], "two ranks live on"
    run.lives = False
    left = run.feed(launcher.RanksExited(400.0, 0, exits(-9, 1, 1), True, 137))
    assert isinstance(left[-1], launcher.FinishAttempt) and left[-1].exit_code == 137
    assert run.state.phase is Phase.OVER


def test_a_step_that_was_done_just_before_the_fault_is_no_recovery() -> None:
    run = Observed(training())
    run.step = 5  # its heartbeat is read after the rank's end
    hang(run, 9.0)
    assert run.feed(launcher.Stepped(20.0, 0, 5)) == [] and run.state.withheld
    assert run.feed(launcher.Stepped(21.0, 0, 6)) != [] and not run.state.withheld


def test_a_spare_is_named_and_not_used() -> None:
    run = Observed(with_spare())
    run.feed(launcher.FaultsFound(9.0, (NodeFault("n2", "xid", "FAIL", "Xid 79"),)))
    run.feed(launcher.LaunchEnded(11.0, 0), launcher.LogsRead(12.0, 0, "unknown", ""))
    assert words(run.done) == ["relaunched the ranks without n2"]
    assert run.state.nodes.training == NODES and run.state.nodes.ready == ("n4",)
    assert run.feed(launcher.FaultsFound(20.0, (NodeFault("n2", "xid", "FAIL", "Xid 79"),))) == []


def test_an_attempt_that_would_have_ended_lives_on_and_its_outcome_is_recorded() -> None:
    run = Observed(training(relaunches=0))
    hang(run, 9.0)
    (record,) = [a for a in run.done if isinstance(a, launcher.WithheldOutcome)]
    assert record.outcome.cause == "hang" and run.state.phase is Phase.TRAINING
    run.lives = False
    done = run.feed(launcher.RanksExited(90.0, 0, exits(0, 0, 0), True, 0))
    assert isinstance(done[-1], launcher.FinishAttempt) and done[-1].outcome.status == "done"


def test_checks_before_the_first_launch_keep_no_node_out() -> None:
    state = launcher.State(7, 0, launcher.Nodes(NODES, 3), 1, launcher.Policy(preflight=True))
    run = Observed(state, begun=False)
    run.feed(launcher.AttemptStarted(0.0))
    done = run.feed(launcher.NodesChecked(5.0, "preflight", (NodeFault("n2", "xid", "FAIL", "Xid 79"),), "1 bad"))
    (record,) = [a for a in done if isinstance(a, launcher.WithheldOutcome)]
    assert [f.node for f in record.outcome.faults] == ["n2"]
    assert done[-1] == launcher.StartLaunch(0, NODES)


def test_no_checkpoint_is_requested_before_the_time_limit() -> None:
    run = Observed(training())
    done = run.feed(launcher.TimeLimitNear(50.0))
    assert [type(a) for a in done] == [launcher.Journal]
    assert run.feed(launcher.Tick(60.0), launcher.CheckpointDurable(61.0, 9)) == []
