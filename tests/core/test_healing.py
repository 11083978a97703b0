"""Faults that the launcher handles itself, as an operator follows them: also one that takes over in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from transom_cli.core import events as ev
from transom_cli.core.incident import Stage
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Budget, Phase, Request, State

NODES = ("n1", "n2", "n3")
BEGUN = (
    ev.Started(0.0, 1),
    ev.Submitted(1.0, "submit", 7),
    ev.JobSeen(2.0, 7, 0, "RUNNING", nodes=NODES, batch_host="n1"),
    ev.LaunchSeen(3.0, "7.0", 0, NODES, 3),
    ev.StepSeen(5.0, "7.0", 0),
)
KILLED = "rank 1 on n2 killed by SIGKILL"


def seen(at: float, name: str, what: str, words: str = KILLED, cause: str = "") -> ev.RecoverySeen:
    return ev.RecoverySeen(at, "7.0", name, what, words, cause, ("n2",) if cause else ())


TWICE = (
    seen(30.0, "l1", "seen"),
    seen(31.0, "l1", "diagnosed", cause="rank_killed"),
    ev.LaunchSeen(32.0, "7.0", 1, NODES, 3),
    ev.StepSeen(38.0, "7.0", 41),
    seen(39.0, "l1", "recovered"),
    seen(50.0, "l2", "seen", "no step for 9.0 s", "hang"),
    seen(51.0, "l2", "evidence", "rank 1: T"),
    ev.LaunchSeen(53.0, "7.0", 2, NODES, 3),
    ev.StepSeen(59.0, "7.0", 60),
    seen(60.0, "l2", "recovered"),
)


def play(events: Sequence[ev.Event], state: State | None = None) -> State:
    state = state or State(request=Request(num_nodes=3))
    for event in events:
        state, _ = decide(state, event)
    return state


def story(state: State) -> list[tuple[str, str, list[str]]]:
    open_one = [state.incident] if state.incident else []
    return [(i.id, i.result, [m.words for m in i.marks]) for i in (*state.incidents, *open_one)]


@pytest.mark.parametrize("after", range(len(TWICE) + 1))
def test_an_operator_that_takes_over_hears_the_launchers_journal_again_in_vain(after: int) -> None:
    """Its follower begins at the top of the journal, so everything up to now is reported a second time."""
    before = play((*BEGUN, *TWICE[:after]))
    again = [replace(e, at=70.0) for e in (*BEGUN, *TWICE[:after]) if isinstance(e, ev.LaunchSeen | ev.RecoverySeen)]
    state = play((ev.Started(70.0, 2), *again), before)
    assert story(state) == story(before)
    state = play(TWICE[after:], state)
    assert story(state) == story(play((*BEGUN, *TWICE)))
    assert (state.phase, [i.result for i in state.incidents]) == (Phase.TRAINING, ["recovered"] * 2)


def test_the_next_attempts_launcher_counts_from_one_again() -> None:
    state = play((*BEGUN, *TWICE, ev.JobSeen(80.0, 7, 1, "RUNNING", nodes=NODES, batch_host="n1")))
    state = play((ev.LaunchSeen(82.0, "7.1", 0, NODES, 3), ev.StepSeen(83.0, "7.1", 61)), state)
    state = play((replace(seen(90.0, "l1", "seen"), attempt="7.1"),), state)
    assert state.incident is not None and state.incident.stage is Stage.RELAUNCHING


def test_a_job_that_slurm_forgets_while_its_launcher_heals_is_restarted() -> None:
    state = play((*BEGUN, TWICE[0], ev.JobGone(35.0, 7)))
    assert state.incident is not None and (state.incident.stage, state.incident.ended) == (Stage.EXAMINING, "GONE")


def test_a_restart_on_a_silence_alone_is_called_off_by_a_relaunch() -> None:
    """The operator took the silence for a hang and waits its back-off; meanwhile the launcher has relaunched."""
    quiet = ev.Stalled(20.0, "7.0", ev.Stall(0, 9.0, 8.0, (1,), ("n2",)))
    state = play((*BEGUN, quiet))
    for _ in range(3):  # the node answers its probes, the logs say nothing
        for action in state.pending:
            if action.key.startswith("i1/probe"):
                state = play((ev.Probed(21.0, action.key, "n2", "PASS", "up"),), state)
    waiting = replace(state, budget=Budget(no_progress=1))
    assert waiting.incident is not None
    waiting = replace(waiting, incident=replace(waiting.incident, stage=Stage.WAITING, not_before=60.0), pending=())
    state = play((ev.LaunchSeen(40.0, "7.0", 1, NODES, 3),), waiting)
    assert state.incident is None and [i.result for i in state.incidents] == ["nothing"]
    state = play((ev.StepSeen(45.0, "7.0", 1), ev.Tick(61.0)), state)
    assert (state.phase, state.pending) == (Phase.TRAINING, ())


def test_a_dead_node_is_restarted_without_whatever_the_launcher_does() -> None:
    quiet = ev.Stalled(20.0, "7.0", ev.Stall(0, 9.0, 8.0, (1,), ("n2",)))
    state = play((*BEGUN, quiet))
    for number in (1, 2):
        state = play((ev.Probed(21.0 + number, f"i1/probe/n2/{number}", "n2", "FAIL", "refused"),), state)
    state = play((ev.LaunchSeen(40.0, "7.0", 1, NODES, 3),), state)
    assert state.incident is not None and state.incident.dead == ("n2",)


def test_the_wait_for_slurmctld_is_part_of_the_story_and_of_what_comes_next() -> None:
    from transom_cli.view.outlook import next_steps

    waits = seen(34.0, "l1", "waiting", "launch 1 waits for slurmctld, which gives no answer")
    state = play((*BEGUN, *TWICE[:3], waits, ev.SlurmLost(35.0, "Socket timed out")))
    assert state.incident is not None and state.incident.stage is Stage.STARTING
    assert [m.what for m in state.incident.marks] == ["seen", "diagnosed", "launched", "waiting"]
    (found,) = next_steps(state, None, warned=True)
    assert found.message == "i1: waiting for slurmctld, which is needed to start ranks"
    (found,) = next_steps(play((ev.SlurmBack(36.0),), state), None, warned=True)
    assert found.message == "i1: waiting for Slurm to start the ranks"
    state = play((ev.StepSeen(38.0, "7.0", 41),), state)
    assert (state.phase, state.incidents[-1].result) == (Phase.TRAINING, "recovered")
