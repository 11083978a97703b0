"""The launcher's core: what is relaunched, and what is handed up."""

from __future__ import annotations

import pytest
from core_launcher import NODES, exits, feed, fresh, killed, lost, outcome, started, training, with_spare

from transom_cli.core import launcher
from transom_cli.core.diagnose import facts_of
from transom_cli.core.events import RankExit, Stall
from transom_cli.core.launcher import Phase, decide
from transom_cli.core.launcher.judgement import run_facts


def test_a_dead_rank_is_relaunched_on_the_same_nodes_once_nothing_is_left() -> None:
    state, actions = feed(training(), launcher.RanksExited(9.0, 0, exits(None, -9, None)), launcher.Tick(9.2))
    assert actions == [], "the others are given a moment to say how they ended"
    state, actions = feed(state, launcher.Tick(10.0))
    assert actions == [
        launcher.Journal("l1", "seen", "rank 1 on n2 killed by SIGKILL"),
        launcher.EndLaunch(0, "l1", evidence=False),
    ]
    state, actions = feed(state, launcher.LaunchEnded(11.0, 0))
    assert actions == [launcher.ReadLogs(0, 1)]
    state, actions = feed(state, launcher.LogsRead(12.0, 0, "unknown", "", "no log"))
    assert actions[-1] == launcher.StartLaunch(1, NODES)
    assert actions[0] == launcher.Journal(
        "l1", "diagnosed", "rank 1 on n2 killed by SIGKILL", "rank_killed", ("n2",), step=4
    )
    state, actions = feed(state, launcher.Stepped(20.0, 1, 5))
    assert actions == [launcher.Journal("l1", "recovered", "step 5 done in launch 1")]
    assert [(i.id, i.result) for i in state.history.incidents] == [("l1", "recovered")]


def test_rank_that_died_first_may_report_last() -> None:
    late = RankExit(2, "n3", None, 11, 5.0)
    state, _ = feed(training(), launcher.RanksExited(9.0, 0, exits(1, None, None)), launcher.Tick(9.5))
    state, actions = feed(state, launcher.LaunchEnded(11.0, 0, (*exits(1, -15, None), late)))
    assert actions == [launcher.ReadLogs(0, 2)]
    _, actions = feed(state, launcher.LogsRead(12.0, 0, "unknown", ""))
    assert actions[0] == launcher.Journal(
        "l1", "diagnosed", "rank 2 on n3 killed by SIGSEGV", "rank_killed", ("n3",), step=4
    )


def test_when_all_have_ended_nothing_is_waited_for() -> None:
    _, actions = feed(training(), launcher.RanksExited(9.0, 0, exits(-15, -9, -15)))
    assert actions[-1] == launcher.EndLaunch(0, "l1", evidence=False)


def test_silence_of_a_trainer_that_never_beats_is_only_reported_whatever_is_durable() -> None:
    state, _ = feed(fresh(), launcher.AttemptStarted(0.0, durable=40), launcher.CheckpointDurable(5.0, 50))
    words = "no step seen for 1800 s: a hang, or a trainer that reports none (no `beat(step)`)"
    reported = [launcher.Journal("", "late", words)]
    assert feed(state, launcher.Stalled(1900.0, 0, Stall(-1, 1800.0, 1800.0)))[1] == reported


def test_evidence_of_many_ranks_is_cut() -> None:
    state, _ = feed(training(), launcher.Stalled(9.0, 0, Stall(4, 8.0, 7.0, (1,), ("n2",))))
    state, actions = feed(state, launcher.LaunchEnded(11.0, 0, evidence=tuple(f"rank {n}: T" for n in range(1000))))
    found = [o.words for o in actions if isinstance(o, launcher.Journal)]
    assert len(found) == 65 and found[-1] == "... and 936 more, in the attempt's evidence folder"


def test_a_hang_is_relaunched_after_evidence() -> None:
    state, actions = feed(training(), launcher.Stalled(9.0, 0, Stall(4, 8.0, 7.0, (1,), ("n2",))))
    assert actions[-1] == launcher.EndLaunch(0, "l1", evidence=True)
    state, actions = feed(state, launcher.LaunchEnded(11.0, 0, exits(-9, -9, -9), evidence=("rank 1: T, in read",)))
    assert actions == [launcher.Journal("l1", "evidence", "rank 1: T, in read"), launcher.ReadLogs(0, None)]
    _, actions = feed(state, launcher.LogsRead(12.0, 0, "unknown", ""))
    assert actions[-1] == launcher.StartLaunch(1, NODES)


@pytest.mark.parametrize(
    ("ended", "words", "missing"),
    [
        (launcher.LaunchEnded(11.0, 0, unheard=("n3",)), "no answer from n3", ("n3",)),
        (
            launcher.LaunchEnded(11.0, 0, exits(-15, -9, -15), survivors=(("n3", "process 5 (python, D)"),)),
            "cannot be ended",
            (),
        ),
    ],
)
def test_what_may_still_live_is_never_started_beside(
    ended: launcher.LaunchEnded, words: str, missing: tuple[str, ...]
) -> None:
    state, _ = feed(training(), launcher.RanksExited(9.0, 0, exits(-15, -9, None)), launcher.Tick(10.0), ended)
    _, actions = feed(state, launcher.LogsRead(12.0, 0, "unknown", ""))
    left = outcome(actions)
    assert left.outcome.status == "failed" and words in left.outcome.why
    assert (left.outcome.missing, left.exit_code) == (missing, 128 + 15)
    assert not any(isinstance(o, launcher.StartLaunch) for o in actions)


@pytest.mark.parametrize(("code", "category"), [(93, "unknown"), (15, "unknown")])
def test_what_a_relaunch_would_not_mend_is_handed_up(code: int, category: str) -> None:
    state, _ = feed(training(), launcher.RanksExited(9.0, 0, exits(code, code, code)), launcher.LaunchEnded(11.0, 0))
    _, actions = feed(state, launcher.LogsRead(12.0, 0, category, ""))
    assert (outcome(actions).outcome.status, outcome(actions).exit_code) == ("failed", code)


def test_a_run_directory_that_was_never_seen_is_handed_up_and_one_that_was_is_tried_again() -> None:
    state, _ = feed(
        fresh(),
        launcher.AttemptStarted(0.0),
        launcher.RanksExited(3.0, 0, exits(14, 14, 14)),
        launcher.LaunchEnded(4.0, 0),
    )
    _, actions = feed(state, launcher.LogsRead(5.0, 0, "unknown", ""))
    assert (outcome(actions).exit_code, outcome(actions).again) == (14, "")
    state, _ = feed(training(), launcher.RanksExited(9.0, 0, exits(14, 14, 14)), launcher.LaunchEnded(11.0, 0))
    assert started(feed(state, launcher.LogsRead(12.0, 0, "unknown", ""))[1]) == [NODES], "a disk in need"
    state, _ = feed(with_spare(), launcher.RanksExited(9.0, 0, exits(-15, 14, -15)), launcher.LaunchEnded(11.0, 0))
    assert started(feed(state, launcher.LogsRead(12.0, 0, "unknown", ""))[1]) == [("n1", "n4", "n3")], (
        "a node's own trouble"
    )


def test_a_rank_that_is_stopped_before_the_runs_first_step_is_a_hang_all_the_same() -> None:
    state, _ = feed(fresh(), launcher.AttemptStarted(0.0))
    _, actions = feed(state, launcher.Stalled(9.0, 0, Stall(-1, 8.0, 5.0, (1,), ("n2",))))
    assert [one.what for one in actions if isinstance(one, launcher.Journal)] == ["late"] and len(actions) == 1
    _, actions = feed(state, launcher.Stalled(9.0, 0, Stall(-1, 8.0, 5.0, (1,), ("n2",), stopped=True)))
    assert actions[-1] == launcher.EndLaunch(0, "l1", evidence=True)


def test_silent_node_is_given_up_for_a_spare_if_no_rank_steps() -> None:
    """However few steps were seen: their usual time may not be known yet."""
    state, actions = feed(
        with_spare(),
        launcher.NodeUnreachable(19.9, "n2", 15.0),
        launcher.NodeUnreachable(30.0, "n2", 14.9),
        launcher.NodeUnreachable(30.0, "n4", 99.0),
    )
    assert actions == [], "a rank stepped 15 s ago; it is not silent for long; a spare"
    stepping, _ = feed(state, launcher.Stepped(31.0, 0, 5))
    assert feed(stepping, launcher.NodeUnreachable(40.0, "n2", 25.0))[1] == [], "its agent is dead, not the node"
    state, actions = feed(state, launcher.NodeUnreachable(30.1, "n2", 15.0))
    words = "n2 has been silent for 15 s, its slurmd does not answer, and no rank has stepped since step 4"
    assert actions[0] == launcher.Journal("l1", "seen", words, "hang", ("n2",))
    state, _ = feed(state, launcher.LaunchEnded(40.0, 0, unheard=("n2",)))
    assert started(feed(state, launcher.LogsRead(41.0, 0, "unknown", ""))[1]) == [("n1", "n4", "n3")]
    state, actions = feed(training(), launcher.NodeUnreachable(40.0, "n2", 35.0))
    assert actions == [], "there is no spare: the operator probes the node"
    assert isinstance(feed(state, launcher.NodeUnreachable(50.0, "n2", 45.0))[1][-1], launcher.EndLaunch)


@pytest.mark.parametrize(("stopped", "category"), [(True, "process_crash"), (False, "nccl_hang")])
def test_a_rank_whose_process_is_stopped_is_no_hang_of_nccl_whatever_its_peers_print(
    stopped: bool, category: str
) -> None:
    stall = Stall(4, 9.0, 8.0, (1,), ("n2",), stopped=stopped)
    state, _ = feed(training(), launcher.Stalled(30.0, 0, stall), launcher.LaunchEnded(40.0, 0))
    state, _ = feed(state, launcher.LogsRead(41.0, 0, "nccl_hang", "Watchdog caught collective operation timeout"))
    incident = state.incident or state.history.incidents[-1]
    assert incident.diagnosis is not None and incident.diagnosis.cause == "hang"
    assert facts_of(incident.diagnosis, incident, run_facts(state)).category == category


def test_steps_that_take_long_are_waited_for_as_long_as_they_usually_take() -> None:
    assert feed(with_spare(), launcher.NodeUnreachable(60.0, "n2", 55.0, limit=160.0))[1] == []
    assert started(lost(with_spare(), 166.0, "n2")[1]) == [("n1", "n4", "n3")]


def test_a_node_that_dies_before_the_first_step_of_a_launch_is_swapped_too() -> None:
    state, _ = feed(
        with_spare(),
        launcher.RanksExited(9.0, 0, exits(-9, None, None)),
        launcher.Tick(11.0),
        launcher.LaunchEnded(12.0, 0),
    )
    state, _ = feed(state, launcher.LogsRead(13.0, 0, "unknown", ""), launcher.TasksSeen(14.0, 1))
    assert feed(state, launcher.NodeUnreachable(27.0, "n2", 15.0))[1] == [], "the launch began 14 s ago"
    _, actions = feed(
        state,
        launcher.NodeUnreachable(28.0, "n2", 15.0),
        launcher.LaunchEnded(30.0, 1, unheard=("n2",)),
        launcher.LogsRead(31.0, 1, "unknown", ""),
    )
    assert "no rank has made a step" in actions[0].words and started(actions) == [("n1", "n4", "n3")]


def test_a_users_error_before_the_first_step_is_handed_up() -> None:
    state, _ = feed(
        fresh(),
        launcher.AttemptStarted(0.0),
        launcher.RanksExited(3.0, 0, exits(1, 1, 1)),
        launcher.LaunchEnded(4.0, 0),
    )
    _, actions = feed(state, launcher.LogsRead(5.0, 0, "user_code", "ValueError: a wrong shape", "rank-0.log"))
    assert outcome(actions).outcome.why.startswith("ValueError: a wrong shape")


def test_the_same_node_twice_is_for_the_operator_to_exclude() -> None:
    state = killed(training(), 9.0)
    state, _ = feed(
        state,
        launcher.Stepped(20.0, 1, 6),
        launcher.CheckpointDurable(21.0, 6),
        launcher.RanksExited(22.0, 1, exits(None, -9, None)),
    )
    state, _ = feed(state, launcher.Tick(24.0), launcher.LaunchEnded(25.0, 1, exits(-15, -9, -15)))
    _, actions = feed(state, launcher.LogsRead(26.0, 1, "unknown", ""))
    assert "n2 for the second time" in outcome(actions).outcome.why


def test_without_progress_the_relaunches_are_spent_and_with_it_refilled() -> None:
    state = training(relaunches=1)
    state = killed(state, 9.0, (-9, None, None))
    assert (state.phase, state.launch.number) == (Phase.TRAINING, 1)
    again = killed(state, 19.0)
    assert again.phase is Phase.OVER, "no newer checkpoint: spent"
    state, _ = feed(state, launcher.Stepped(15.0, 1, 8), launcher.CheckpointDurable(16.0, 8))
    refilled = killed(state, 19.0)
    assert (refilled.phase, refilled.launch.number) == (Phase.TRAINING, 2)


def test_no_relaunches_at_all() -> None:
    assert killed(training(relaunches=0), 9.0).phase is Phase.OVER


def test_nothing_is_started_again_after_a_stop_request() -> None:
    state, _ = feed(
        training(),
        launcher.RanksExited(9.0, 0, exits(-9, -9, -9)),
        launcher.StopRequested(9.5, "TERM"),
        launcher.LaunchEnded(10.0, 0),
    )
    _, actions = feed(state, launcher.LogsRead(11.0, 0, "unknown", ""))
    assert outcome(actions).outcome.status == "stopped"
    _, actions = feed(training(), launcher.StopRequested(9.0, "TERM"), launcher.RanksExited(9.5, 0, exits(0, 0, 0)))
    assert outcome(actions).outcome.status == "stopped", "in good order, but not at its end"


def test_a_hang_that_is_handed_up_names_its_suspects() -> None:
    state, _ = feed(
        training(relaunches=0),
        launcher.Stalled(9.0, 0, Stall(4, 8.0, 7.0, (1,), ("n2",))),
        launcher.LaunchEnded(11.0, 0),
    )
    _, actions = feed(state, launcher.LogsRead(12.0, 0, "unknown", ""))
    found = outcome(actions).outcome
    assert (found.cause, found.suspects, found.exits, found.durable) == ("hang", ("n2",), (), 4)


def test_of_a_hang_the_evidence_names_its_suspects_better() -> None:
    def suspects(*found: str) -> tuple[str, ...]:
        quiet = launcher.Stalled(9.0, 0, Stall(4, 8.0, 7.0, (1,), ("n2",)))
        state, _ = feed(training(relaunches=0), quiet, launcher.LaunchEnded(11.0, 0, suspects=found))
        return outcome(feed(state, launcher.LogsRead(12.0, 0, "unknown", ""))[1]).outcome.suspects

    assert suspects() == ("n2",)
    assert suspects("n1") == ("n1",)
    assert suspects("of another job") == ("n2",)


def test_the_end_of_a_training() -> None:
    _, actions = feed(
        training(), launcher.RanksExited(9.0, 0, exits(0, 0, None)), launcher.RanksExited(9.1, 0, exits(0, 0, 0))
    )
    assert (outcome(actions).outcome.status, outcome(actions).exit_code) == ("done", 0)
    state = killed(training(), 9.0)
    _, actions = feed(state, launcher.RanksExited(20.0, 1, exits(0, 0, 0)))
    assert outcome(actions).outcome.status == "done", "a relaunch that had only the end left to do"


def test_srun_that_ends_without_a_word_of_its_ranks() -> None:
    state, actions = feed(training(), launcher.RanksExited(9.0, 0, (), over=True, srun_code=1), launcher.Tick(13.9))
    assert actions == [], "their words may be on the way, through a network file system"
    state, actions = feed(state, launcher.Tick(14.0))
    assert actions[-1] == launcher.EndLaunch(0, "l1", evidence=False)
    _, actions = feed(state, launcher.LaunchEnded(15.0, 0), launcher.LogsRead(16.0, 0, "unknown", ""))
    assert actions[-1] == launcher.StartLaunch(1, NODES)


def test_srun_that_ended_well_without_a_word_of_its_ranks_is_a_good_end() -> None:
    state, actions = feed(
        training(), launcher.RanksExited(9.0, 0, exits(0, None, 0), over=True, srun_code=0), launcher.Tick(13.9)
    )
    assert actions == []
    _, actions = feed(state, launcher.Tick(14.0))
    assert (outcome(actions).outcome.status, outcome(actions).exit_code) == ("done", 0)


def test_an_srun_that_was_killed_gives_a_shells_exit_code() -> None:
    state, _ = feed(
        training(relaunches=0),
        launcher.RanksExited(9.0, 0, (), over=True, srun_code=-9),
        launcher.Tick(14.0),
        launcher.LaunchEnded(15.0, 0),
    )
    _, actions = feed(state, launcher.LogsRead(16.0, 0, "unknown", ""))
    assert outcome(actions).exit_code == 128 + 9


def test_a_relaunch_that_starts_no_task_is_handed_up() -> None:
    state = killed(training(), 9.0)  # relaunched at 13
    state, actions = feed(state, launcher.Tick(132.9))
    assert actions == []
    state, actions = feed(
        state, launcher.Tick(133.0), launcher.LaunchEnded(134.0, 1), launcher.LogsRead(135.0, 1, "unknown", "")
    )
    assert "launch 1 did not start a task within 120 s" in outcome(actions).outcome.why
    state, actions = feed(killed(training(), 9.0), launcher.TasksSeen(100.0, 1), launcher.Tick(900.0))
    assert actions == [], "it is there, and as slow as it likes"


def test_a_relaunch_is_given_the_time_that_the_first_launch_took() -> None:
    state, _ = feed(fresh(), launcher.AttemptStarted(0.0), launcher.TasksSeen(300.0, 0), launcher.Stepped(400.0, 0, 4))
    state = killed(state, 500.0)  # relaunched at 504
    assert feed(state, launcher.Tick(504.0 + 899.0))[1] == []
    assert any(isinstance(o, launcher.EndLaunch) for o in feed(state, launcher.Tick(504.0 + 900.0))[1])


def test_a_launch_that_cannot_even_be_requested_is_handed_up() -> None:
    _, actions = feed(
        killed(training(), 9.0), launcher.StartFailed(20.0, 1, "launch 1 cannot be started: no space left")
    )
    assert outcome(actions).outcome.why == "launch 1 cannot be started: no space left"


def test_what_is_never_answered_is_handed_up() -> None:
    ending, _ = feed(training(), launcher.RanksExited(9.0, 0, exits(-15, -9, -15)))
    assert feed(ending, launcher.Tick(128.9))[1] == []
    reading, actions = feed(ending, launcher.Tick(129.0))
    assert actions == [launcher.ReadLogs(0, 0)]
    assert feed(reading, launcher.Tick(158.9))[1] == []
    _, actions = feed(reading, launcher.Tick(159.0))
    assert "cannot be ended" in outcome(actions).outcome.why


def test_out_of_time_the_outcome_is_written_whatever_is_under_way() -> None:
    ending, _ = feed(
        training(), launcher.RanksExited(9.0, 0, exits(-15, -9, -15)), launcher.StopRequested(10.0, "SIGTERM")
    )
    _, actions = feed(ending, launcher.GracePeriodOver(37.0))
    assert (outcome(actions).outcome.status, outcome(actions).exit_code) == ("stopped", 128 + 15)


def test_what_is_reported_of_another_launch_changes_nothing() -> None:
    state = killed(training(), 9.0)
    for late in (
        launcher.TasksSeen(20.0, 0),
        launcher.StartFailed(20.0, 0, "x"),
        launcher.RanksExited(20.0, 0, exits(1, 1, 1)),
        launcher.Stalled(20.0, 0, Stall(4, 8.0, 7.0)),
        launcher.LaunchEnded(20.0, 0),
        launcher.Stepped(20.0, 0, 99),
        launcher.LogsRead(20.0, 0, "user_code", "x"),
    ):
        assert decide(state, late) == (state, ())
