"""A slurmctld that was away, and what it knows of our job when it is back: the state that each case must lead to."""

from __future__ import annotations

import pytest

from transom_cli.core import events as ev
from transom_cli.core.operator.actions import Action, Patch, Restart
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Phase, Request, State
from transom_cli.core.slurm_messages import was_cancelled

NODES = ("n1", "n2", "n3")
TRAINS = (
    ev.Started(0.0, 1),
    ev.Submitted(1.0, "submit", 7, released=True),
    ev.JobSeen(2.0, 7, 0, "RUNNING", nodes=NODES, batch_host="n1"),
    ev.LaunchSeen(3.0, "7.0", 0, NODES, 3),
    ev.StepSeen(5.0, "7.0", 4),
    ev.SlurmLost(100.0, "Socket timed out"),
)
TERM = "told to stop by SIGTERM: rank 0 on n1 killed by SIGTERM"


def play(*events: ev.Event) -> tuple[State, list[Action]]:
    state, ordered = State(request=Request(num_nodes=3)), []
    for event in (*TRAINS, *events):
        state, actions = decide(state, event)
        ordered += actions
    return state, ordered


def stopped() -> ev.OutcomeSeen:
    return ev.OutcomeSeen(700.0, "7.0", "stopped", TERM, nodes=NODES)


def requeued(lost: tuple[str, ...], held: bool = False, reason: str = "") -> ev.JobSeen:
    return ev.JobSeen(701.0, 7, 1, "PENDING", lost_nodes=lost, held=held, reason=reason)


def answered(*events: ev.Event) -> tuple[State, list[Action]]:
    """All that is asked about the nodes and the logs is answered with nothing odd."""
    state, ordered = play(*events)
    for at in range(702, 760):
        probes = [ev.Probed(at, a.key, a.node, "PASS", "answers") for a in ordered if type(a).__name__ == "Probe"]
        looks = [
            ev.Examined(at, a.key, "unknown", "rank 0 goes on", "x") for a in ordered if type(a).__name__ == "ReadLogs"
        ]
        for event in (*probes, *looks, ev.Tick(float(at))):
            state, actions = decide(state, event)
            ordered += actions
    return state, ordered


def test_a_long_silence_alone_changes_nothing() -> None:
    state, ordered = play(*(ev.Tick(float(at)) for at in range(101, 700)), ev.StepSeen(700.0, "7.0", 999))
    assert (state.phase, state.incident, state.slurm_error) == (Phase.TRAINING, None, "Socket timed out")
    assert len(ordered) == 1, "the submission"
    state, _ = decide(state, ev.JobSeen(701.0, 7, 0, "RUNNING", nodes=NODES))
    assert state.slurm_error == ""


def test_cancelled_meanwhile_it_is_stopped() -> None:
    state, ordered = play(ev.JobSeen(701.0, 7, 0, "CANCELLED", nodes=NODES))
    assert (state.phase, state.exit_code) == (Phase.STOPPED, 130)
    assert state.verdict == "the job was cancelled in Slurm (scancel)"
    assert len(ordered) == 1


def test_cancelled_and_forgotten_it_is_stopped_on_the_word_of_its_own_log() -> None:
    state, ordered = play(stopped(), ev.JobGone(705.0, 7, "CANCELLED", source="the job's log"))
    assert (state.phase, state.exit_code) == (Phase.STOPPED, 130)
    assert state.verdict == "the job was cancelled in Slurm (scancel), according to the job's log"
    assert not [a for a in ordered if isinstance(a, Restart)]


@pytest.mark.parametrize("events", [(), (stopped(),)], ids=["without a word", "told to stop, nobody knows why"])
def test_forgotten_without_being_cancelled_it_continues(events: tuple[ev.Event, ...]) -> None:
    state, ordered = answered(*events, ev.JobGone(701.0, 7))
    (restart,) = [a for a in ordered if isinstance(a, Restart)]
    assert (restart.job_id, restart.exclude, restart.dead) == (7, (), ())
    assert state.incident is not None and state.incident.diagnosis is not None
    words = state.incident.diagnosis.words
    assert words == "Slurm no longer knows the job: slurmctld has lost it, or it ended long ago"


JOB = "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T18:43:16"


@pytest.mark.parametrize(
    ("text", "cancelled"),
    [
        ("", False),
        (f"a\n{JOB} ***\nb", True),
        (f"{JOB} DUE to SIGNAL Terminated ***", True),
        (f"{JOB} DUE TO TIME LIMIT ***", False),
        (f"{JOB} DUE TO JOB REQUEUE ***", False),
        (f"{JOB} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", False),
        (f"{JOB} DUE TO PREEMPTION ***", False),
        (f"{JOB} DUE TO JOB REQUEUE ***\nnext attempt\n{JOB} ***", True),
        (f"{JOB} ***\nof an earlier one\n{JOB} DUE TO TIME LIMIT ***", False),
        (f"{JOB.replace('JOB 7', 'JOB 77')} ***", False),
        ("slurmstepd: error: *** STEP 7.2 ON n1 CANCELLED AT 2026-11-22T18:43:16 ***", False),
    ],
)
def test_what_a_jobs_log_says_of_its_end(text: str, cancelled: bool) -> None:
    assert was_cancelled(text, 7) is cancelled


@pytest.mark.parametrize(
    ("lost", "kept", "found"),
    [
        ((), (), ""),
        (("n2",), ("n2",), ""),
        (("n1", "n3"), ("n1", "n3"), ""),
        (NODES, (), "n1, n2, n3 not excluded: all of the job's nodes are down at once"),
    ],
    ids=["none", "one", "two", "all"],
)
def test_requeued_with_nodes_down_the_job_keeps_off_some_and_never_off_all(
    lost: tuple[str, ...], kept: tuple[str, ...], found: str
) -> None:
    state, ordered = play(requeued(lost))
    assert state.isolation.excluded == kept and state.phase is Phase.RECOVERING
    patches = [(a.exclude, a.start) for a in ordered if isinstance(a, Patch)]
    assert patches == ([] if found else [(kept, True)]), (
        "Slurm's two minutes, where old processes may live on its nodes"
    )
    assert state.incident is not None
    assert [m.words for m in state.incident.marks if m.what == "capped"] == ([found] if found else [])


def test_beyond_the_cap_none_is_kept_away_for_what_slurm_says_alone() -> None:
    nodes = tuple(f"n{n}" for n in range(1, 9))
    state, _ = play(ev.JobSeen(101.0, 7, 0, "RUNNING", nodes=nodes), requeued(nodes[:5]))
    assert state.isolation.excluded == () and state.incident is not None
    assert "n1, n2, n3, n4, n5 not excluded: the cap is reached" in [m.words for m in state.incident.marks]


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [
        ("JobHeldAdmin", "an administrator holds the job in Slurm (JobHeldAdmin)"),
        ("JobHeldUser", "the job is held in Slurm, not by transom (JobHeldUser)"),
        (
            "job_requeued_in_held_state",
            "the job was requeued and held in Slurm, not by transom (job_requeued_in_held_state)",
        ),
        ("SomethingNew", "Slurm holds the job: SomethingNew"),
    ],
)
def test_held_by_a_person_it_waits_for_one(reason: str, verdict: str) -> None:
    state, ordered = play(requeued((), held=True, reason=reason))
    assert (state.phase, state.verdict) == (Phase.HELD, verdict)
    assert len(ordered) == 1, "nothing is ordered: not even its start"
    state, _ = decide(state, ev.JobSeen(900.0, 7, 1, "PENDING", reason="Resources"))
    assert state.phase is Phase.PENDING and state.verdict == ""


def test_suspects_are_let_in_again_where_slurm_has_no_others_that_are_up() -> None:
    down = "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
    state, ordered = play(requeued(("n2",)), ev.Acted(703.0, "patch/1", "excluded: n2"), requeued((), reason=down))
    assert state.isolation.excluded == ()
    assert [a.drop for a in ordered if isinstance(a, Patch)][-1] == ("n2",)


def test_replaced_job_does_not_become_ours_again() -> None:
    """A late report that names the old job as the new one's successor changes nothing."""
    state = State()
    for event in (
        ev.Started(0.0, 1),
        ev.Submitted(0.0, "submit", 7),
        ev.LaunchSeen(1.0, "7.0", 0, ("n1",), 1),
        ev.LaunchSeen(2.0, "8.0", 0, ("n1",), 1, succeeds=7),
        ev.LaunchSeen(3.0, "7.0", 0, ("n1",), 1, succeeds=8),
    ):
        state, _ = decide(state, event)
    assert state.attempt == "8.0"
