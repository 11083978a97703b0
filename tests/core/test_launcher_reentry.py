"""The launcher's core: survivors of a fault stay, and enter their training again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_launcher import NODES, exits, feed, fresh, training, with_spare

from transom_cli.core import launcher
from transom_cli.core.events import NodeFault, RankExit, Stall
from transom_cli.core.launcher import Phase, State, next_deadline

KILLED = exits(None, -9, None)


def failed(state: State, launch: int = 0, at: float = 9.0) -> tuple[State, list[launcher.Action]]:
    return feed(state, launcher.RanksExited(at, launch, KILLED), launcher.Tick(at + 1))


def reentered() -> State:
    state, _ = failed(training(recoverable=True))
    return feed(state, launcher.LogsRead(11.0, 0, "unknown", "", hearing=(0, 2)))[0]


def test_survivors_stay_and_the_lost_rank_is_replaced() -> None:
    state, actions = failed(training(recoverable=True))
    assert actions == [
        launcher.Journal("l1", "seen", "rank 1 on n2 killed by SIGKILL"),
        launcher.ReadLogs(0, 1, alive=True),
    ]
    state, actions = feed(state, launcher.LogsRead(11.0, 0, "unknown", "", hearing=(0, 2)))
    assert actions[-1] == launcher.StartLaunch(1, NODES, lost=(1,))
    said = "2 ranks to enter the training again in the same process; rank 1 to replace"
    assert actions[-2] == launcher.Journal("l1", "reentry", said, nodes=("n2",))
    assert (state.launch.kept, state.launch.replaced) == ((0, 2), (1,))
    state, _ = feed(state, launcher.RanksEntered(11.5, 1, (0,)), launcher.RanksEntered(12.0, 1, (0, 1, 2)))
    state, actions = feed(state, launcher.Stepped(13.0, 1, 4))
    words = "recovered in 3.0 s: a new process took rank 1, 2 survivors re-entered, step 4 repeated"
    assert actions == [launcher.Journal("l1", "recovered", words)]


def test_standby_that_started_from_scratch_is_not_called_one() -> None:
    state, _ = feed(reentered(), launcher.StandbyTook(11.0, 1), launcher.StandbyTook(11.2, 1, took=False))
    _, actions = feed(state, launcher.RanksEntered(12.0, 1, (0, 1, 2)), launcher.Stepped(13.0, 1, 4))
    assert isinstance(actions[-1], launcher.Journal) and "a new process took rank 1" in actions[-1].words


def test_elastic_replicas_train_without_the_lost_rank_until_it_joins() -> None:
    state, _ = failed(training(recoverable=True))
    state, actions = feed(state, launcher.LogsRead(11.0, 0, "unknown", "", hearing=(0, 2), elastic=True))
    assert actions[-1] == launcher.StartLaunch(1, NODES, lost=(1,), replicas=(0, 2))
    state, _ = feed(state, launcher.StandbyTook(11.0, 1), launcher.RanksEntered(11.5, 1, (0, 2)))
    state, actions = feed(state, launcher.Stepped(11.6, 1, 5))
    words = "recovered in 1.6 s: a standby took rank 1, 2 survivors re-entered, continued at step 5"
    assert actions == [launcher.Journal("l1", "recovered", words)]
    state, actions = feed(state, launcher.RanksEntered(12.0, 1, (0, 1, 2), (0, 2)))
    assert (state.launch.absent, actions) == ((1,), [])
    state, actions = feed(state, launcher.RanksEntered(14.0, 1, (0, 1, 2), (0, 1, 2)))
    joined = launcher.Journal("", "joined", "rank 1 joined the others, 3.0 s after launch 1 began")
    assert (state.launch.absent, actions) == ((), [joined])


def test_another_rank_may_be_lost_before_the_first_one_has_joined() -> None:
    state, _ = failed(training(recoverable=True))
    state, _ = feed(state, launcher.LogsRead(11.0, 0, "unknown", "", hearing=(0, 2), elastic=True))
    state, _ = feed(state, launcher.RanksEntered(11.5, 1, (0, 2)), launcher.Stepped(12.0, 1, 5))
    state, _ = feed(state, launcher.RanksExited(13.0, 1, exits(None, None, -9)), launcher.Tick(14.0))
    state, actions = feed(state, launcher.LogsRead(15.0, 1, "unknown", "", hearing=(0,), elastic=True))
    assert actions[-1] == launcher.StartLaunch(2, NODES, lost=(2,), replicas=(0,))
    assert (state.launch.awaited, state.launch.absent) == ((0,), (1, 2))


def test_without_the_setting_the_launch_is_ended() -> None:
    assert failed(training())[1][-1] == launcher.EndLaunch(0, "l1", evidence=False)


@pytest.mark.parametrize("hearing", [(), (0,), (1, 2)])
def test_if_one_survivor_cannot_enter_again_the_launch_is_ended(hearing: tuple[int, ...]) -> None:
    state, _ = failed(training(recoverable=True))
    state, actions = feed(state, launcher.LogsRead(11.0, 0, "unknown", "", hearing=hearing))
    assert (actions[-1], state.phase) == (launcher.EndLaunch(0, "l1", evidence=False), Phase.ENDING)
    assert isinstance(actions[0], launcher.Journal) and "not wait for orders" in actions[0].words
    state, actions = feed(state, launcher.LaunchEnded(12.0, 0), launcher.LogsRead(13.0, 0, "unknown", ""))
    assert actions[-1] == launcher.StartLaunch(1, NODES)


def test_rank_that_dies_while_the_logs_are_read_is_replaced_with_the_first() -> None:
    state, _ = failed(training(recoverable=True))
    both = exits(None, -9, -9)
    state, actions = feed(state, launcher.RanksExited(10.5, 0, both))
    assert (actions, launcher.reading(state)) == ([], True)
    state, actions = feed(state, launcher.LogsRead(11.0, 0, "unknown", "", hearing=(0, 2)))
    assert actions[-1] == launcher.StartLaunch(1, NODES, lost=(1, 2))
    assert (state.launch.kept, state.launch.replaced) == ((0,), (1, 2))


@pytest.mark.parametrize(
    ("later", "why"),
    [
        (launcher.RanksExited(10.5, 0, exits(-9, -9, -9)), "no rank survives"),
        (launcher.RanksExited(10.5, 0, exits(0, -9, None)), "a rank has ended with exit code 0"),
        (launcher.RanksExited(10.5, 0, KILLED, over=True), "the training step has ended"),
    ],
)
def test_launch_is_ended_if_no_rank_can_stay_any_more_when_the_logs_have_been_read(
    later: launcher.Event, why: str
) -> None:
    state, _ = failed(training(recoverable=True))
    state, _ = feed(state, later)
    _, actions = feed(state, launcher.LogsRead(11.0, 0, "unknown", "", hearing=(0, 2)))
    assert isinstance(actions[0], launcher.Journal) and actions[0].words.endswith(why)
    assert isinstance(actions[-1], launcher.EndLaunch)


def stuck() -> tuple[State, list[launcher.Action]]:
    """Rank 2 has entered launch 1 in time, and rank 0 has not."""
    state, _ = feed(reentered(), launcher.RanksEntered(12.0, 1, (2,)))
    due = next_deadline(state)
    assert due == 11.0 + state.policy.reenter
    return feed(state, launcher.Tick(due))


def test_survivor_that_does_not_enter_in_time_is_killed_and_replaced_alone() -> None:
    state, actions = stuck()
    words = "rank 0 did not enter launch 1 within 15 s: killed, to be replaced alone"
    assert actions == [launcher.Journal("l1", "reentry", words), launcher.KillRanks(1, (0,))]
    state, actions = feed(state, launcher.RanksKilled(27.0, 1, exits(-9, None, None)))
    said = launcher.Journal("l1", "reentry", "rank 0 to replace in launch 1")
    assert actions == [said, launcher.ReplaceRanks(1, (0,))]
    assert (state.launch.kept, state.launch.replaced, state.phase) == ((2,), (0, 1), Phase.TRAINING)
    state, actions = feed(state, launcher.RanksEntered(29.0, 1, (0, 1, 2)), launcher.Stepped(30.0, 1, 4))
    words = "recovered in 20.0 s: new processes took ranks 0, 1, 1 survivor re-entered, step 4 repeated"
    assert actions == [launcher.Journal("l1", "recovered", words)]


@pytest.mark.parametrize(
    "answer",
    [
        launcher.RanksKilled(27.0, 1, exits(-9, None, None), words="rank 0 cannot be killed"),
        launcher.RanksKilled(27.0, 1, (), ("n1",)),
        launcher.RanksKilled(27.0, 1, exits(-9, None, 1)),
        launcher.RanksKilled(27.0, 1, ()),
        launcher.Tick(57.0),
    ],
)
def test_all_ranks_are_ended_if_a_stuck_one_cannot_be_replaced_alone(answer: launcher.Event) -> None:
    state, actions = feed(stuck()[0], answer)
    assert actions[0] == launcher.Journal("l2", "seen", "rank 0 did not enter launch 1 within 15 s")
    assert (actions[-1], state.phase) == (launcher.EndLaunch(1, "l2", evidence=False), Phase.ENDING)


def test_stuck_ranks_are_replaced_once_in_a_launch() -> None:
    """If one of them fails before a step, what has survived stays once more."""
    state, _ = feed(stuck()[0], launcher.RanksKilled(27.0, 1, exits(-9, None, None)))
    state, actions = feed(state, launcher.RanksExited(40.0, 1, exits(1, None, None)), launcher.Tick(41.0))
    assert actions[-1] == launcher.ReadLogs(1, 0, alive=True)
    _, actions = feed(state, launcher.LogsRead(42.0, 1, "unknown", "", hearing=(1, 2)))
    assert actions[-1] == launcher.StartLaunch(2, NODES, lost=(0,))


def test_if_no_survivor_enters_or_replicas_are_elastic_all_ranks_are_ended() -> None:
    state, _ = failed(training(recoverable=True))
    elastic, _ = feed(state, launcher.LogsRead(11.0, 0, "unknown", "", hearing=(0, 2), elastic=True))
    for begun in (reentered(), feed(elastic, launcher.RanksEntered(12.0, 1, (2,)))[0]):
        _, actions = feed(begun, launcher.Tick(26.0))
        assert actions[-1] == launcher.EndLaunch(1, "l2", evidence=False)


def died(state: State, launch: int, rank: int, at: float) -> tuple[State, list[launcher.Action]]:
    codes = tuple(-9 if one == rank else None for one in range(3))
    return feed(state, launcher.RanksExited(at, launch, exits(*codes)), launcher.Tick(at + 1))


def test_survivors_stay_once_more_if_another_rank_dies_before_the_first_step() -> None:
    state, _ = feed(reentered(), launcher.RanksEntered(12.0, 1, (0, 1, 2)))
    state, actions = died(state, 1, 2, 14.0)
    assert actions[-1] == launcher.ReadLogs(1, 2, alive=True)
    state, actions = feed(state, launcher.LogsRead(16.0, 1, "unknown", "", hearing=(0, 1)))
    assert actions[-1] == launcher.StartLaunch(2, NODES, lost=(2,))
    state, _ = feed(state, launcher.RanksEntered(17.0, 2, (0, 1, 2)))
    assert died(state, 2, 0, 18.0)[1][-1] == launcher.EndLaunch(2, "l3", evidence=False)
    stepped, _ = feed(state, launcher.Stepped(18.0, 2, 4))
    assert died(stepped, 2, 0, 19.0)[1][-1] == launcher.ReadLogs(2, 0, alive=True)


def test_node_on_which_the_new_rank_dies_too_is_replaced_by_a_spare() -> None:
    for begun, answer in ((with_spare, launcher.StartLaunch(2, ("n1", "n4", "n3"), lost=(1,))), (training, None)):
        state, _ = failed(begun(recoverable=True))
        state, _ = feed(state, launcher.LogsRead(11.0, 0, "unknown", "", hearing=(0, 2)))
        state, _ = feed(state, launcher.RanksEntered(12.0, 1, (0, 1, 2)))
        state, _ = failed(state, 1, 14.0)
        state, actions = feed(state, launcher.LogsRead(16.0, 1, "unknown", "", hearing=(0, 2)))
        assert actions[-1] == (answer or launcher.EndLaunch(1, "l2", evidence=False))


def test_launch_that_began_with_new_ranks_is_not_entered_before_a_step() -> None:
    state, _ = feed(fresh(recoverable=True), launcher.AttemptStarted(0.0))
    assert failed(state)[1][-1] == launcher.EndLaunch(0, "l1", evidence=False)


def test_hang_before_the_first_step_ends_the_launch() -> None:
    state, _ = feed(reentered(), launcher.RanksEntered(12.0, 1, (0, 1, 2)))
    _, actions = feed(state, launcher.Stalled(200.0, 1, Stall(-1, 180.0, 120.0, (1,), stopped=True)))
    assert actions[-1] == launcher.EndLaunch(1, "l2", evidence=True)


def another_dies() -> tuple[State, list[launcher.Action]]:
    """Rank 2 dies while the new rank 1 still starts."""
    state, _ = feed(reentered(), launcher.RanksEntered(12.0, 1, (0, 2)))
    state, actions = died(state, 1, 2, 13.0)
    assert actions[-1] == launcher.ReadLogs(1, 2, alive=True)
    return feed(state, launcher.LogsRead(15.0, 1, "unknown", "", hearing=(0,)))


def test_new_rank_that_still_starts_is_replaced_with_the_next_lost_one() -> None:
    state, actions = another_dies()
    words = "rank 1 had not begun yet: killed, to be replaced too"
    assert actions == [launcher.Journal("l2", "reentry", words), launcher.KillRanks(1, (1,))]
    assert feed(state, launcher.LogsRead(15.5, 1, "unknown", "", hearing=(0,))) == (state, [])
    state, actions = feed(state, launcher.RanksKilled(16.0, 1, exits(None, -9, -9)))
    assert actions == [launcher.ReadLogs(1, 2, alive=True)]
    state, actions = feed(state, launcher.LogsRead(17.0, 1, "unknown", "", hearing=(0,)))
    assert actions[-1] == launcher.StartLaunch(2, NODES, lost=(1, 2))
    assert (state.launch.kept, state.launch.replaced) == ((0,), (1, 2))


@pytest.mark.parametrize(
    "answer",
    [
        launcher.RanksKilled(16.0, 1, exits(None, None, -9)),
        launcher.RanksKilled(16.0, 1, exits(None, -9, -9), words="rank 1 cannot be killed"),
        launcher.RanksKilled(16.0, 1, exits(None, None, -9), ("n2",)),
        launcher.RanksKilled(16.0, 1, exits(0, -9, -9)),
        launcher.RanksKilled(16.0, 1, exits(-9, -9, -9)),
        launcher.Tick(46.0),
    ],
)
def test_all_ranks_are_ended_if_a_new_one_cannot_be_killed_alone(answer: launcher.Event) -> None:
    state, actions = feed(another_dies()[0], answer)
    assert (actions[-1], state.phase) == (launcher.EndLaunch(1, "l2", evidence=False), Phase.ENDING)


def test_survivor_that_waits_for_no_order_is_not_taken_for_a_new_rank() -> None:
    state, _ = feed(reentered(), launcher.RanksEntered(12.0, 1, (0, 1, 2)))
    state, _ = failed(state, 1, 14.0)
    _, actions = feed(state, launcher.LogsRead(16.0, 1, "unknown", "", hearing=(0,)))
    assert actions[-1] == launcher.EndLaunch(1, "l2", evidence=False)


def test_reentries_without_progress_spend_the_budget_of_relaunches() -> None:
    state, at, started = training(recoverable=True), 9.0, 0
    for launch in range(6):
        codes = tuple(-9 if rank == launch % 3 else None for rank in range(3))
        others = tuple(rank for rank in range(3) if rank != launch % 3)
        state, _ = feed(state, launcher.RanksExited(at, launch, exits(*codes)), launcher.Tick(at + 1))
        state, actions = feed(state, launcher.LogsRead(at + 2, launch, "unknown", "", hearing=others))
        if isinstance(actions[-1], launcher.EndLaunch):
            break
        started += 1
        state, _ = feed(state, launcher.RanksEntered(at + 3, launch + 1, (0, 1, 2)))
        state, _ = feed(state, launcher.Stepped(at + 4, launch + 1, 4))
        at += 10
    assert started == state.policy.relaunches


def test_user_error_twice_at_the_same_step_ends_the_run_as_without_survivors() -> None:
    state, at = training(recoverable=True), 9.0
    found = exits(None, 1, None)
    for launch in range(6):
        state, _ = feed(state, launcher.RanksExited(at, launch, found), launcher.Tick(at + 1))
        line = "ValueError: bad batch"
        state, actions = feed(state, launcher.LogsRead(at + 2, launch, "user_code", line, "rank-1.log", hearing=(0, 2)))
        if isinstance(actions[-1], launcher.EndLaunch):
            state, actions = feed(state, launcher.LaunchEnded(at + 3, launch))
            state, actions = feed(state, launcher.LogsRead(at + 4, launch, "user_code", line, "rank-1.log"))
            break
        state, _ = feed(state, launcher.RanksEntered(at + 3, launch + 1, (0, 1, 2)))
        state, _ = feed(state, launcher.Stepped(at + 4, launch + 1, 4))
        at += 10
    assert any(isinstance(one, launcher.FinishAttempt | launcher.PersistMemory) for one in actions)


@pytest.mark.parametrize("found", [exits(None, 0, None), exits(1, 1, 1), ()])
def test_other_ends_are_not_met_by_entering_again(found: tuple[launcher.events.RankExit, ...]) -> None:
    _, actions = feed(training(recoverable=True), launcher.RanksExited(9.0, 0, found), launcher.Tick(10.0))
    assert not any(isinstance(one, launcher.ReadLogs) for one in actions)


def test_reports_of_other_launches_change_nothing() -> None:
    state = reentered()
    assert feed(state, launcher.RanksEntered(12.0, 0, (0, 2)))[0] == state


# --- hangs ---

STALL = Stall(4, 9.0, 8.0, (1,), ("n2",), stopped=True)


def stalled(
    state: State, launch: int = 0, at: float = 9.0, stall: Stall = STALL
) -> tuple[State, list[launcher.Action]]:
    return feed(state, launcher.Stalled(at, launch, stall))


def culprit_killed(state: State, launch: int = 0, at: float = 9.0) -> State:
    state, _ = stalled(state, launch, at)
    judged = launcher.HangJudged(at + 1, launch, (1,), ("rank 1 is stopped",), ("n2",))
    return feed(state, judged, launcher.RanksKilled(at + 2, launch, KILLED))[0]


def test_only_the_rank_that_the_others_wait_for_is_killed_after_a_hang() -> None:
    state, actions = stalled(training(recoverable=True))
    assert (actions[-1], state.phase) == (launcher.JudgeHang(0, "l1"), Phase.READING)
    state, actions = feed(state, launcher.HangJudged(10.0, 0, (1,), ("rank 1 is stopped",), ("n2",)))
    assert actions == [
        launcher.Journal("l1", "evidence", "rank 1 is stopped"),
        launcher.Journal("l1", "reentry", "the others wait for rank 1: killed, so that the others can stay"),
        launcher.KillRanks(0, (1,)),
    ]
    assert feed(state, launcher.LogsRead(10.5, 0, "unknown", "", hearing=(0, 1, 2))) == (state, [])
    state, actions = feed(state, launcher.RanksKilled(11.0, 0, KILLED))
    assert actions == [launcher.ReadLogs(0, 1, alive=True)]
    state, actions = feed(state, launcher.LogsRead(11.5, 0, "unknown", "", hearing=(0, 1, 2)))
    assert actions[-1] == launcher.StartLaunch(1, NODES, lost=(1,))
    assert (state.launch.kept, state.budget.spent("hang")) == ((0, 2), 1)


def test_hang_of_ranks_that_nobody_sees_ends_the_launch() -> None:
    """A rank stands out that is on another node than the silent one, or no spare is ready for that."""
    for nodes in (("n2",), ("n3",)):
        stall = Stall(4, 9.0, 8.0, (1,), nodes, overdue=("n3",))
        _, actions = stalled(training(recoverable=True), stall=stall)
        assert actions[-1] == launcher.EndLaunch(0, "l1", evidence=True)
        assert isinstance(actions[-2], launcher.Journal) and actions[-2].what == "reentry"


def test_without_the_setting_a_hang_ends_the_launch() -> None:
    assert stalled(training())[1][-1] == launcher.EndLaunch(0, "l1", evidence=True)


@pytest.mark.parametrize("ranks", [(), (2,), (0, 1)])
def test_uncertain_hang_ends_the_launch(ranks: tuple[int, ...]) -> None:
    """No culprit, another one than the heartbeats show, or too many."""
    state, _ = stalled(training(recoverable=True))
    state, actions = feed(state, launcher.HangJudged(10.0, 0, ranks, suspects=("n2",)))
    assert (actions[-1], state.phase) == (launcher.EndLaunch(0, "l1", evidence=False), Phase.ENDING)
    assert state.incident is not None and state.incident.suspect_nodes == ("n2",)


@pytest.mark.parametrize("found", [(), exits(None, None, -9), exits(None, -9, 0), exits(1, -9, 1)])
def test_launch_is_ended_unless_the_culprit_alone_has_died(found: tuple[launcher.events.RankExit, ...]) -> None:
    state, _ = stalled(training(recoverable=True))
    state, actions = feed(state, launcher.HangJudged(10.0, 0, (1,)), launcher.RanksKilled(11.0, 0, found))
    assert (actions[-1], state.phase) == (launcher.EndLaunch(0, "l1", evidence=False), Phase.ENDING)


def test_unanswered_questions_about_a_hang_end_the_launch() -> None:
    for answers, evidence in (((), True), ((launcher.HangJudged(9.0, 0, (1,)),), False)):
        state, _ = stalled(training(recoverable=True))
        state, _ = feed(state, *answers)
        due = next_deadline(state)
        assert due == 9.0 + state.policy.reading
        state, actions = feed(state, launcher.Tick(due))
        assert actions[-1] == launcher.EndLaunch(0, "l1", evidence=evidence)
        assert feed(state, launcher.HangJudged(due, 0, (1,)), launcher.RanksKilled(due, 0, KILLED))[1] == []


def test_hang_that_comes_back_without_progress_ends_the_launch() -> None:
    state = culprit_killed(training(recoverable=True))
    state, _ = feed(
        state,
        launcher.LogsRead(12.0, 0, "unknown", "", hearing=(0, 2)),
        launcher.RanksEntered(12.5, 1, (0, 1, 2)),
        launcher.Stepped(13.0, 1, 4),
    )
    assert stalled(state, 1, 30.0)[1][-1] == launcher.EndLaunch(1, "l2", evidence=True)
    state, _ = feed(state, launcher.Stepped(14.0, 1, 9), launcher.CheckpointDurable(14.5, 9))
    assert stalled(state, 1, 30.0)[1][-1] == launcher.JudgeHang(1, "l2")


# --- lost nodes ---

LOST = Stall(4, 9.0, 8.0, (1,), ("n2",), overdue=("n2",))


@pytest.mark.parametrize(
    "sign",
    [
        launcher.Stalled(30.0, 0, LOST),
        launcher.NodeUnreachable(30.0, "n2", 20.0),
        launcher.FaultsFound(30.0, (NodeFault("n2", "gpu", "FAIL", "gone"),)),
    ],
)
def test_spare_takes_the_ranks_of_a_lost_node_and_the_others_stay(sign: launcher.Event) -> None:
    state, actions = feed(with_spare(recoverable=True), sign)
    assert actions[-1] == launcher.KillRanks(0, (1,))
    state, actions = feed(state, launcher.RanksKilled(31.0, 0, (), ("n2",)))
    assert actions == [launcher.ReadLogs(0, None, alive=True, without=("n2",))]
    state, actions = feed(state, launcher.LogsRead(32.0, 0, "unknown", "", hearing=(0, 2)))
    assert actions[-1] == launcher.StartLaunch(1, ("n1", "n4", "n3"), lost=(1,))
    assert [one.what for one in actions if isinstance(one, launcher.Journal)][-2:] == ["swapped", "reentry"]
    assert (state.launch.kept, state.launch.replaced) == ((0, 2), (1,))
    assert state.nodes.given_up == ("n2",)


def test_node_that_answers_keeps_its_ranks_after_a_silence() -> None:
    state, _ = feed(
        with_spare(recoverable=True), launcher.Stalled(30.0, 0, LOST), launcher.RanksKilled(31.0, 0, KILLED)
    )
    _, actions = feed(state, launcher.LogsRead(32.0, 0, "unknown", "", hearing=(0, 2)))
    assert actions[-1] == launcher.StartLaunch(1, NODES, lost=(1,))


def test_without_a_spare_the_loss_of_a_node_ends_the_launch() -> None:
    _, actions = feed(training(recoverable=True), launcher.NodeUnreachable(90.0, "n2", 80.0))
    assert actions[-1] == launcher.EndLaunch(0, "l1", evidence=True)


def test_survivor_on_a_replaced_node_is_not_kept() -> None:
    """A node with two ranks is blamed twice for the death of one of them."""
    state = replace(with_spare(recoverable=True), tasks_on_node=2)
    for launch, at in ((0, 9.0), (1, 29.0)):
        state, _ = feed(state, launcher.RanksExited(at, launch, (RankExit(2, "n2", None, 9),)), launcher.Tick(at + 1))
        state, actions = feed(state, launcher.LogsRead(at + 2, launch, "unknown", "", hearing=(0, 1, 3, 4, 5)))
        ended = [one for one in actions if isinstance(one, launcher.EndLaunch)]
        assert bool(ended) == (launch == 1)
        state, _ = feed(state, launcher.RanksEntered(at + 3, launch + 1, tuple(range(6))))
        state, _ = feed(state, launcher.Stepped(at + 4, launch + 1, 9 + launch))


def test_stop_request_during_a_hang_ends_the_launch() -> None:
    state, _ = stalled(training(recoverable=True))
    state, _ = feed(state, launcher.StopRequested(9.5, "TERM"))
    _, actions = feed(state, launcher.HangJudged(10.0, 0, (1,)))
    assert actions[-1] == launcher.EndLaunch(0, "l1", evidence=False)
