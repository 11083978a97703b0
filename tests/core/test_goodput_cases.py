"""Stories of runs, each with the seconds that belong to each kind of time."""

from __future__ import annotations

from dataclasses import replace

from goodput_world import Launched, accounted, played, row, running, seconds, submitted

from transom_cli.core import events as ev
from transom_cli.core.goodput import NS, account, cost, counted_from_zero, history
from transom_cli.view.goodput import goodput_lines


def healed(at: float, incident: str, words: str = "rank 1 on n2 killed by SIGKILL") -> ev.RecoverySeen:
    return ev.RecoverySeen(at, "7.0", incident, "seen", words)


def done(at: float, restarts: int = 0) -> tuple[ev.Event, ...]:
    name = f"7.{restarts}"
    return ev.OutcomeSeen(at, name, "done", "ok"), ev.JobSeen(at + 2, 7, restarts, "COMPLETED")


def test_a_healthy_run() -> None:
    first = Launched("7.0", 12).checked(20).launch(21).steps((25, 1), (85, 61), (125, 101)).ended(125, "done")
    found = accounted((*submitted(), running(10), *done(126)), first)
    assert row(found) == [
        (10, "queue", "start"),
        (2, "restart", "start"),
        (8, "preflight", "start"),
        (5, "restart", "start"),
        (100, "productive", ""),
        (3, "idle", ""),
    ]
    assert found.over and found.whole.goodput == 100 / 128
    assert found.whole.ettr == 100 / 125 and found.whole.runtime == 100 / 115


def test_a_relaunch_loses_steps_and_does_them_again() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61)).fault(90, "l1").launch(95)
    first.steps((100, 52), (160, 112)).ended(160, "done")
    events = (*submitted(), running(10), ev.StepSeen(20, "7.0", 1), healed(90.1, "l1"), *done(160))
    found = accounted(events, first)
    assert row(found)[2:-1] == [
        (60, "productive", ""),
        (10, "detection", "i1"),
        (10, "restart", "i1"),
        (9, "redone", "i1"),  # 52 to 61, a step a second
        (51, "productive", ""),
    ]
    priced, sums = found.by_cause[0]
    assert (priced.key, priced.category, priced.lost) == ("i1", "rank_killed", 10)
    assert sums.wall == 29 * NS and cost(found, "i1") == sums and cost(found, "i2") is None


def test_steps_that_only_the_exit_records_know_are_repeated_too() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61)).fault(90, "l1").launch(95)
    first.steps((100, 52), (160, 112)).ended(160, "done")
    known = ev.RecoverySeen(90.2, "7.0", "l1", "diagnosed", "rank 1 on n2 killed by SIGKILL", "rank_killed", step=64)
    events = (*submitted(), running(10), ev.StepSeen(20, "7.0", 1), healed(90.1, "l1"), known, *done(160))
    found = accounted(events, first)
    assert {cause.key: cause.lost for cause in found.causes}["i1"] == 13  # 52 to 64
    assert (12, "redone", "i1") in row(found)


def test_growing_is_a_cause_of_its_own_and_costs_the_next_incident_nothing() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61)).relaunched(83, "grown", "grow").launch(83)
    first.steps((93, 60), (153, 120)).fault(160, "l1").launch(163).steps((173, 121), (233, 181)).ended(233, "done")
    found = accounted((*submitted(), running(10), ev.StepSeen(20, "7.0", 1), healed(160.1, "l1"), *done(233)), first)
    assert row(found)[2:-1] == [
        (60, "productive", ""),
        (13, "restart", "7.0.1"),
        (1, "redone", "7.0.1"),
        (59, "productive", ""),
        (7, "detection", "i1"),
        (13, "restart", "i1"),
        (60, "productive", ""),
    ]
    causes = {cause.key: (cause.category, cause.planned, cause.recovery) for cause, _ in found.by_cause}
    assert causes["7.0.1"] == ("grow", True, "") and causes["i1"] == ("rank_killed", False, "relaunch")
    assert "growth (planned), 2 steps repeated" in "\n".join(goodput_lines("run", found))


def test_leaving_a_node_that_is_drained_is_planned_and_a_fault_meanwhile_is_not() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61)).relaunched(83, "swapped", "maintenance").launch(83)
    first.steps((93, 62), (153, 122)).relaunched(160, "growing", "grow").fault(161, "l1").launch(163)
    first.steps((173, 123), (233, 183)).ended(233, "done")
    found = accounted((*submitted(), running(10), ev.StepSeen(20, "7.0", 1), healed(161.1, "l1"), *done(233)), first)
    causes = {cause.key: (cause.category, cause.planned) for cause in found.causes if cause.key != "start"}
    assert causes == {"7.0.1": ("maintenance", True), "i1": ("rank_killed", False)}
    assert row(found)[-4:-1] == [(8, "detection", "i1"), (12, "restart", "i1"), (60, "productive", "")]


def test_a_stall_is_taken_from_the_steps_around_it() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61), (140, 121), stalled=(0, 6, 6)).ended(140, "done")
    found = accounted((*submitted(), running(10), *done(140)), first)
    assert row(found)[2:5] == [(54, "productive", ""), (6, "checkpoint", ""), (60, "productive", "")]


def test_sums_that_begin_again_or_are_absurd_stall_nothing_or_all() -> None:
    for result, stall in (((50, 3), 0), ((0, 1e6), 60), ((0, float("inf")), 0)):
        first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61), stalled=result).ended(80, "done")
        assert seconds(accounted((*submitted(), running(10), *done(80)), first)).get("checkpoint", 0) == stall


def test_the_operator_requeues_a_run_off_a_dead_node() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61), (100, 81))
    second = Launched("7.1", 150).checked(158).launch(160).steps((170, 80), (230, 140)).ended(230, "done")
    events = (
        *submitted(),
        running(10),
        ev.LaunchSeen(11, "7.0", 0, ("n1", "n2"), 2),
        ev.StepSeen(20, "7.0", 1),
        ev.NodeSilent(110, "7.0", "n2", 10),
        ev.Probed(111, "i1/probe/n2/1", "n2", "FAIL", "no slurmd"),
        ev.Probed(112, "i1/probe/n2/2", "n2", "FAIL", "no slurmd"),
        ev.Isolated(113, "i1/isolate/n2", "n2", "drained", ""),
        ev.Restarted(115, "i1/restart", 7, 1, "requeued"),
        running(145, 1),
        ev.StepSeen(170, "7.1", 80),
        *done(230, 1),
    )
    found = accounted(events, first, second)
    assert row(found)[2:] == [
        (80, "productive", ""),
        (10, "detection", "i1"),
        (5, "restart", "i1"),
        (30, "queue", "i1"),
        (5, "restart", "i1"),
        (8, "preflight", "i1"),
        (12, "restart", "i1"),
        (1, "redone", "i1"),
        (59, "productive", ""),
        (2, "idle", ""),
    ]
    assert [name for name, _ in found.attempts] == ["7.0", "7.1"]


def test_left_for_the_time_limit_nothing_is_detected() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61)).ended(85, "left", "time_limit", 61)
    second = Launched("7.1", 120).launch(121).steps((130, 62), (190, 122))
    events = (
        *submitted(),
        running(10),
        ev.StepSeen(20, "7.0", 1),
        ev.OutcomeSeen(86, "7.0", "left", "the time limit is near", cause="time_limit"),
        ev.Restarted(90, "i1/restart", 7, 1, "requeued"),
        running(118, 1),
        ev.StepSeen(130, "7.1", 62),
    )
    found = accounted(events, first, second, now=200)
    assert row(found)[2:] == [
        (60, "productive", ""),
        (10, "restart", "i1"),
        (28, "queue", "i1"),
        (2, "restart", "i1"),  # Slurm runs it, and its launcher is not up yet
        (10, "restart", "i1"),
        (70, "productive", ""),
    ]
    assert not found.over and found.by_cause[0][0].category == "time_limit"


def test_a_launcher_alone_hands_the_job_on_while_the_operator_is_away() -> None:
    """Hours without an operator: the launchers' own words are enough, and what it reads later has their times."""
    first = Launched("7.0", 10).launch(10).steps((20, 1), (3620, 3601)).fault(3630, "l1").ended(3640, "failed")
    first.handoff(3660, "requeued")
    second = Launched("7.1", 3800).launch(3800).steps((3810, 3601), (7210, 7001)).fault(7220, "l1").launch(7225)
    second.steps((7230, 7001), (9990, 9761))
    events = (
        *submitted(),
        running(10),
        ev.StepSeen(20, "7.0", 1),
        ev.Started(9000, 2),
        running(9001, 1),
        ev.LaunchSeen(9002, "7.1", 0, ("n1", "n2"), 2),
        ev.RecoverySeen(9002, "7.1", "l1", "seen", "rank 1 on n2 killed by SIGKILL"),
        ev.LaunchSeen(9002, "7.1", 1, ("n1", "n2"), 2),
        ev.StepSeen(9003, "7.1", 8700),
    )
    found = accounted(events, first, second, now=10000)
    assert row(found)[2:] == [
        (3600, "productive", ""),
        (10, "detection", "7.0/l1"),
        (30, "restart", "7.0/l1"),
        (140, "queue", "7.0/l1"),
        (10, "restart", "7.0/l1"),
        (3400, "productive", ""),
        (10, "detection", "i2"),
        (10, "restart", "i2"),
        (2770, "productive", ""),
    ]


def test_a_job_that_its_launcher_holds_waits_for_a_person() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61)).fault(81, "l1").ended(90, "failed")
    first.handoff(100, "held")
    second = Launched("7.1", 5000).launch(5000).steps((5010, 61), (5070, 121))
    held = ev.JobSeen(4000, 7, 1, "PENDING", held=True, held_why="no progress")
    events = (
        *submitted(),
        running(10),
        ev.StepSeen(20, "7.0", 1),
        ev.Started(3900, 2),
        held,
        ev.JobSeen(4400, 7, 1, "PENDING", reason="Resources"),
        running(4990, 1),
        ev.StepSeen(5010, "7.1", 61),
    )
    found = accounted(events, first, second, now=5080)
    assert seconds(found)["hold"] == 4300 and seconds(found)["queue"] == 10 + 590
    assert found.whole.ettr == seconds(found)["productive"] / (5080 - 4300)


def test_nobody_is_there_to_start_it_again() -> None:
    """The job has failed, the launcher could not give it back, and the operator comes an hour later."""
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61)).fault(81, "l1").ended(90, "failed", step=61)
    away = (*submitted(), running(10), ev.StepSeen(20, "7.0", 1))
    assert row(accounted(away, first, now=4000, alive=False))[-2:] == [(9, "restart", "7.0/l1"), (3910, "idle", "")]
    back = (ev.Started(3690, 2), ev.OutcomeSeen(3690, "7.0", "failed", "rank 1 killed by SIGKILL"))
    found = accounted((*away, *back), first, now=3700)
    assert row(found)[-3:] == [(9, "restart", "7.0/l1"), (3600, "idle", ""), (10, "restart", "7.0/l1")]


def test_steps_of_a_killed_launcher_end_with_what_the_exit_records_say() -> None:
    """The launcher's lines are further and further apart; the operator reads how the ranks ended."""
    first = Launched("7.0", 10).launch(10).steps((20, 1), (60, 41))
    second = Launched("7.1", 110).launch(110).steps((120, 51), (160, 91)).ended(160, "done")
    ended = [ev.RankExit(rank, f"n{rank + 1}", None, 15, wall=wall, step=81) for rank, wall in ((0, 99.0), (1, 1e4))]
    outcome = ev.OutcomeSeen(101, "7.0", "failed", "rank 0 killed by SIGTERM, and the launcher is silent", tuple(ended))
    events = (*submitted(), running(10), ev.StepSeen(20, "7.0", 1), ev.StepSeen(90, "7.0", 71), outcome)
    found = accounted((*events, running(105, 1), ev.StepSeen(120, "7.1", 51), *done(160, 1)), first, second)
    spent = seconds(found)
    assert (spent["productive"], spent["redone"]) == (79 + 10, 30), "81 steps and 10 more; 52 to 81 again"
    assert spent["detection"] == 2 and found.by_cause[0][0].lost == 31


def test_a_batch_host_dies_unseen_and_slurm_requeues() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61), (140, 121))
    second = Launched("7.1", 900).launch(901).steps((910, 101), (970, 161), (1030, 221))
    found = accounted((*submitted(), running(10), ev.StepSeen(20, "7.0", 1)), first, second, now=1040, alive=False)
    assert row(found)[2:5] == [(120, "productive", ""), (760, "detection", "7.0"), (10, "restart", "7.0")]
    assert seconds(found)["redone"] == 20


def test_a_training_that_has_long_reported_nothing_is_not_called_productive() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61))
    found = accounted((*submitted(), running(10)), first, now=1000, alive=False)
    assert row(found)[-2:] == [(60 + 180, "productive", ""), (740, "unseen", "")]


def test_a_training_that_makes_no_step_now_is_productive_up_to_its_last_one() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61))
    seen, attempts = played(*submitted(), running(10)), [first.told]
    past = history(seen, attempts, 120.0, alive=True)
    assert row(account(past))[-1] == (100, "productive", "")
    assert row(account(replace(past, stepless=90 * NS)))[-2:] == [(70, "productive", ""), (30, "unseen", "")]


def test_a_script_without_a_launcher_is_known_by_its_checkpoints() -> None:
    events = (
        *submitted(),
        running(10),
        ev.CheckpointSeen(100, 50),
        ev.CheckpointSeen(200, 100),
        ev.JobSeen(250, 7, 0, "NODE_FAIL"),
    )
    found = accounted(events, now=260)
    assert row(found) == [
        (10, "queue", "start"),
        (90, "unseen", ""),
        (100, "productive", ""),
        (50, "unseen", ""),
        (10, "restart", "i1"),
    ]
    assert not found.steps_seen


def test_a_script_of_which_nothing_is_known_but_that_it_ran() -> None:
    found = accounted((*submitted(), running(10), ev.JobSeen(500, 7, 0, "COMPLETED")))
    assert row(found) == [(10, "queue", "start"), (490, "unseen", "")]


def test_a_false_alarm_costs_nothing() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61), (140, 121))
    events = (
        *submitted(),
        running(10),
        ev.LaunchSeen(11, "7.0", 0, ("n1", "n2"), 2),
        ev.StepSeen(20, "7.0", 1),
        ev.NodeSilent(100, "7.0", "n2", 10),
        ev.Probed(101, "i1/probe/n2/1", "n2", "PASS", "slurmd answers"),
    )
    found = accounted(events, first, now=150)
    assert row(found)[2:] == [(130, "productive", "")]


def test_nodes_that_preflight_finds_bad_cost_what_follows() -> None:
    first = Launched("7.0", 10).checked(18).ended(19, "left", "preflight")
    events = (
        *submitted(),
        running(10),
        ev.OutcomeSeen(20, "7.0", "left", "n2 is bad", nodes=("n1", "n2"), cause="preflight", blamed=("n2",)),
    )
    found = accounted(events, first, now=25)
    assert [one[:2] for one in row(found)] == [(10, "queue"), (8, "preflight"), (7, "restart")]
    assert [cause.key for cause, _ in found.by_cause] == ["start", "i1"]


def test_a_clock_that_is_ahead_is_set_right() -> None:
    """The launcher's clock shows 30 s more: nothing can have been seen before it happened."""
    first = Launched("7.0", 42).launch(42).steps((50, 1), (110, 61)).ended(110, "done")
    events = (*submitted(), running(10), ev.LaunchSeen(12, "7.0", 0, ("n1", "n2"), 2), *done(80.5))
    assert row(accounted(events, first)) == [
        (10, "queue", "start"),
        (10, "restart", "start"),
        (60, "productive", ""),
        (2.5, "idle", ""),
    ]


def test_records_of_another_version_are_left_out() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61)).ended(80, "done")
    first.journal += [
        {"type": "launch"},
        {"type": "recovery", "wall": "x"},
        {"type": "launch", "wall": 5, "launch": None},
    ]
    first.progress += [{"wall": float("nan"), "launch": 0, "step": 5}, {"wall": 70, "launch": 0}, {"step": True}]
    assert seconds(accounted((*submitted(), running(10), *done(80)), first))["productive"] == 60


def test_before_anything_happened() -> None:
    assert accounted(()).spans == ()
    found = accounted((ev.Started(5, 1),), now=9)
    assert row(found) == [(4, "idle", "")] and found.whole.ettr is None and found.whole.goodput == 0.0


def test_slurm_requeues_the_job_behind_our_back() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61))
    second = Launched("7.1", 300).launch(300).steps((310, 41), (370, 101))
    events = (
        *submitted(),
        running(10),
        ev.StepSeen(20, "7.0", 1),
        ev.JobSeen(100, 7, 1, "PENDING", reason="BeginTime", lost_nodes=("n2",)),
        running(290, 1),
        ev.StepSeen(310, "7.1", 41),
    )
    found = accounted(events, first, second, now=370)
    assert row(found)[2:] == [
        (60, "productive", ""),
        (20, "detection", "i1"),
        (190, "queue", "i1"),
        (10, "restart", "i1"),
        (10, "restart", "i1"),
        (20, "redone", "i1"),
        (40, "productive", ""),
    ]
    assert found.by_cause[0][0].lost == 21


def test_a_launcher_submits_another_job_in_its_place() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61)).fault(85, "l1").ended(90, "failed")
    first.handoff(100, "resubmitted")
    second = Launched("9.0", 400).launch(400).steps((410, 62), (470, 122))
    found = accounted((*submitted(), running(10), ev.StepSeen(20, "7.0", 1)), first, second, now=470, alive=False)
    assert row(found)[-4:] == [
        (15, "restart", "7.0/l1"),
        (300, "queue", "7.0/l1"),
        (10, "restart", "7.0/l1"),
        (60, "productive", ""),
    ]
    assert [name for name, _ in found.attempts] == ["7.0", "9.0"]


def test_a_person_holds_a_job_that_waits_and_stops_the_run_later() -> None:
    events = (
        *submitted(),
        ev.JobSeen(10, 7, 0, "PENDING", held=True, reason="JobHeldUser"),
        ev.JobSeen(50, 7, 0, "PENDING", reason="Resources"),
        ev.StopRequested(70, "somebody"),
        ev.JobSeen(75, 7, 0, "CANCELLED"),
    )
    found = accounted(events)
    assert row(found) == [(10, "queue", "start"), (40, "hold", "start"), (20, "queue", "start"), (5, "idle", "")]
    assert found.whole.ettr == 0.0 and found.whole.runtime is None


def test_a_launch_that_is_ended_for_a_finding_while_its_ranks_step_on() -> None:
    """A GPU's fault is reported at second 80; the ranks are ended at 84, and stepped until then."""
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61), (83, 64)).fault(81, "l1", "gpu_hardware")
    first.launch(90).steps((95, 61), (155, 121)).ended(155, "done")
    events = (*submitted(), running(10), ev.StepSeen(20, "7.0", 1), healed(81.1, "l1"), *done(155))
    assert row(accounted(events, first))[2:-1] == [
        (63, "productive", ""),
        (12, "restart", "i1"),
        (3, "redone", "i1"),
        (57, "productive", ""),
    ]


def test_steps_are_lost_by_the_fault_that_undid_them_and_not_by_one_at_the_start_after_it() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61)).fault(82, "l1").launch(90)
    first.fault(95, "l2", "rendezvous_port").launch(100).steps((105, 42), (165, 102)).ended(165, "done")
    launched = [ev.LaunchSeen(at, "7.0", number, ("n1", "n2"), 2) for number, at in enumerate((10.1, 90.1))]
    events = (*submitted(), running(10), launched[0], ev.StepSeen(20, "7.0", 1), healed(82.1, "l1"), launched[1])
    found = accounted((*events, healed(95.1, "l2", "port in use"), *done(165)), first)
    assert row(found)[2:-1] == [
        (60, "productive", ""),
        (2, "detection", "i1"),
        (13, "restart", "i1"),
        (10, "restart", "i2"),
        (19, "redone", "i1"),
        (41, "productive", ""),
    ]
    assert {cause.key: cause.lost for cause in found.causes} == {"start": 0, "i1": 20, "i2": -1}


def test_an_operator_that_comes_back_takes_two_faults_for_one_and_pays_for_both() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61)).fault(82, "l1").launch(90)
    first.steps((95, 61), (155, 121)).fault(160, "l2").launch(170).steps((175, 121), (1175, 1121))
    back = (ev.Started(1000, 2), healed(1001, "l1", "one"), healed(1001, "l2", "two"))
    found = accounted((*submitted(), running(10), ev.StepSeen(20, "7.0", 1), *back), first, now=1200)
    assert {cause.key for cause in found.causes} == {"start", "i1"}
    assert [one for one in row(found) if one[1] == "detection"] == [(2, "detection", "i1"), (5, "detection", "i1")]


def test_of_steps_that_count_from_the_start_of_a_process_nothing_is_said_to_be_done_again() -> None:
    for counted in (True, False):
        result = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61)).fault(90, "l1").launch(95)
        result.steps((100, 2), (160, 42)).ended(160, "done", step=61)
        if counted:
            result.progress = [{**line, "since_start": True} for line in result.progress]
            result.outcome["since_start"] = True
        found = accounted((*submitted(), running(10), healed(90.1, "l1"), *done(160)), result)
        assert ("redone" in seconds(found)) is not counted
        assert any(cause.lost > 0 for cause, _ in found.by_cause) is not counted
        assert [cause.step for cause in found.causes if cause.key == "i1"] == [61]


def test_without_a_checkpoint_steps_of_a_later_launch_are_repeated_up_to_the_newest() -> None:
    result = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61)).fault(90, "l1").launch(95)
    result.steps((100, 2), (199, 101)).ended(199, "done", step=101)
    result.progress = [{**line, "since_start": True} for line in result.progress]
    past = history(played(*submitted(), running(10), healed(90.1, "l1"), *done(200)), [result.told], 0.0, alive=True)
    assert past.counted and "redone" not in seconds(account(past))
    found = account(counted_from_zero(past))
    assert found.from_zero and not counted_from_zero(past).counted
    assert (seconds(found)["redone"], seconds(found)["productive"]) == (59, 100), "each step counts once"
    assert [cause.lost for cause in found.causes if cause.key == "i1"] == [61]


def test_survivors_of_a_reentry_count_on_so_their_steps_are_not_said_to_be_repeated() -> None:
    result = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61)).fault(90, "l1").launch(95, lost=[1])
    result.steps((100, 1), (200, 101)).ended(200, "done")
    result.progress = [{**line, "since_start": True} for line in result.progress]
    past = history(played(*submitted(), running(10), healed(90.1, "l1"), *done(200)), [result.told], 0.0, alive=True)
    assert "redone" not in seconds(account(counted_from_zero(past)))


def test_time_is_summed_by_how_the_training_continued() -> None:
    first = Launched("7.0", 10).launch(10).steps((20, 1), (80, 61)).fault(81, "l1").launch(85).steps((90, 62))
    first.fault(91, "l2").standby(92).launch(92, lost=[1]).steps((93, 63)).fault(94, "l3", cause="hang")
    first.launch(95, lost=[1]).steps((96, 64)).fault(97, "l4").launch(98, lost=[0]).steps((99, 65))
    first.fault(100, "l5").standby(101).launch(101).steps((102, 66)).fault(103, "l6").ended(104, "failed", step=66)
    second = Launched("7.1", 120).launch(121).steps((130, 67), (190, 127))
    told = accounted((*submitted(), running(10), running(120, 1)), first, second, now=190)
    found = {one.name: (one.causes, one.sums.wall // NS) for one in told.by_recovery}
    assert found == {
        "relaunch": (1, 10),
        "re-entry with standby": (1, 3),
        "re-entry after a hang": (1, 3),
        "re-entry": (1, 3),
        "standby": (1, 3),
        "new attempt": (1, 28),
    }
