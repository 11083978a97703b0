"""What a view makes of a state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from view_made import JOB, Made

from transom_cli.core.events import JobSeen, OutcomeSeen, RankExit, RecoverySeen
from transom_cli.core.incident import Diagnosis, Incident, Stage
from transom_cli.core.operator.decide import decide
from transom_cli.core.operator.state import Budget, Idle, Job, Phase, Request, State
from transom_cli.core.progress import Progress
from transom_cli.view.model import NodeView, Operation, build_view
from transom_cli.view.outlook import next_steps
from transom_cli.view.runs import list_lines
from transom_cli.view.status import status_lines


def test_words_of_several_lines_are_told_in_one() -> None:
    said = "Cannot submit the job:\nsbatch: error: Invalid partition\n  name specified"
    view = build_view("r1", State(phase=Phase.FAILED, verdict=said), {}, 0.0, operator=False)
    assert view.verdict == "Cannot submit the job: sbatch: error: Invalid partition name specified"


def test_a_training_without_a_step_for_long_says_so_in_its_first_line() -> None:
    view = build_view("r1", State(phase=Phase.TRAINING), {}, 100.0, operator=True)
    ranks = (NodeView("n1", "ranks", "ok", 40, 73.0), NodeView("n2", "ranks", "ok", 40, 74.0))
    hung = replace(view, job_id=4, step_time=0.2, node_views=ranks)
    assert "no step for 1m 13s" in status_lines(hung)[0]
    assert hung.no_step_for == 73.0 and hung.health == "healthy", "an evaluation looks the same"
    moving = replace(hung, node_views=(*ranks, NodeView("n3", "ranks", "ok", 41, 0.3)))
    slow = replace(hung, step_time=20.0)
    saving = replace(hung, operations=(Operation("saving", 40, "saves", 90.0, 1, 2, "ranks"),))
    assert [one.no_step_for for one in (moving, slow, saving)] == [None, None, None]
    assert "no step" not in status_lines(moving)[0]


def test_without_an_operator_the_checkpoints_on_disk_are_looked_at(tmp_path: Path) -> None:
    made = Made(tmp_path).began().stepped().saved().beats().operator(None)
    manifest = made.run.checkpoints / "step-18400" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    assert (made.view().durable, made.view().durable_age) == (18400, None)


def test_a_run_that_is_done_still_says_that_its_loss_is_no_number(tmp_path: Path) -> None:
    made = Made(tmp_path).began().stepped().report("nan_loss", "the loss is NaN since step 67").report("slow", "x")
    made.seen((5.0, JobSeen(0, JOB, 0, "COMPLETED", exit_code=0)))
    view = made.operator(None).view()
    assert (view.phase, view.reports) == ("done", ("the loss is NaN since step 67",))


def test_first_line_keeps_the_state_on_a_narrow_screen(tmp_path: Path) -> None:
    view = Made(tmp_path).began().stepped().beats().operator().view()
    for width in (20, 30, 40):
        assert "TRAINING" in status_lines(view, width)[0]
    assert status_lines(view, 80)[0].startswith(view.run_id)


def test_a_run_that_shrank_says_on_how_many_of_its_nodes_it_trains(tmp_path: Path) -> None:
    view = replace(Made(tmp_path).began().stepped().beats().operator().view(), wanted_nodes=4, slurm_state="RUNNING")
    assert not any("of 4 nodes" in line for line in status_lines(view, 120))
    assert any("on 3 of 4 nodes" in line for line in status_lines(replace(view, nodes=view.nodes[:3]), 120))


def test_a_pending_job_that_slurm_says_has_failed_is_not_all_right() -> None:
    view = build_view("r1", State(phase=Phase.PENDING), {}, 100.0, operator=True)
    asked = replace(view, job_id=4, slurm_state="FAILED", slurm_queried_at=99.0)
    assert status_lines(asked)[0].startswith("r1  PENDING, SLURM SAYS FAILED") and asked.health == "degraded"
    assert replace(asked, slurm_queried_at=None).health == "healthy", "what the operator saw is its to judge"


def test_a_run_that_stops_says_when_slurm_still_cleans_up() -> None:
    job = Job(id=4, state="RUNNING", completing=True)
    view = build_view("r1", State(phase=Phase.STOPPING, job=job), {}, 0.0, operator=True)
    assert view.slurm_state == "COMPLETING"
    assert "COMPLETING" in next_steps(State(phase=Phase.STOPPING, job=job), None, warned=False)[0].message


def test_used_restarts_are_shown_until_there_is_progress() -> None:
    again = Progress(step=125, max_step=125, durable=120).charged().new_start()
    state = State(phase=Phase.TRAINING, budget=Budget(no_progress=1), progress=again)
    assert build_view("r1", state, {}, 5.0, operator=True).restarts_without_progress == 1
    saved = replace(state, progress=replace(again, durable=140))
    assert build_view("r1", saved, {}, 5.0, operator=True).restarts_without_progress == 0


def test_a_requested_requeue_is_a_leave_until_the_job_waits_again() -> None:
    diagnosis = Diagnosis("requested", "requeue requested by bob", (), sure=True, isolate="none", restart=True)
    incident = Incident("i1", 4, 0, 40.0, 25, Stage.RESTARTING, diagnosis=diagnosis)
    job = Job(id=4, state="RUNNING", nodes=("n1",))
    state = State(phase=Phase.RECOVERING, job=job, since=40.0, incident=incident, progress=Progress(step=25))
    view = build_view("r1", state, {}, 43.0, operator=True)
    assert (view.status, view.condition, view.health) == ("leaving", "requeue requested by bob", "healthy")
    assert status_lines(view)[0].startswith("r1  LEAVING 3.0 s")
    waits = replace(state, incident=replace(incident, stage=Stage.STARTING)).in_attempt(4, 1)
    assert build_view("r1", waits, {}, 44.0, operator=True).status == "pending"


def test_a_run_that_recovers_shows_the_step_of_the_exit_records_and_the_time_since_the_fault() -> None:
    outcome = OutcomeSeen(40.0, "a", 1, "failed", exits=(RankExit(1, "n1", 1, None, 39.0, step=25, since_start=True),))
    incident = Incident("i1", 4, 0, 40.0, 2, outcome=outcome, since_start=True)
    progress = Progress(step=2, since_start=True)
    view = build_view(
        "r1",
        State(phase=Phase.RECOVERING, job=Job(id=4), since=95.0, incident=incident, progress=progress),
        {},
        100.0,
        operator=True,
    )
    assert (view.step, view.steps_since_start) == (25, True)
    assert status_lines(view)[0].startswith("r1  RECOVERING 1m 00s")


def test_run_that_was_just_made_is_not_unknown() -> None:
    view = build_view("gpt-20261128-222347-70d0", State(), {}, 1795904627.0 + 3, operator=False)
    assert view.status == "submitting" and "its operator starts" in "".join(
        text for text, _ in list_lines([view], None)[1]
    )
    assert replace(view, now=view.now + 60).status == "unknown"


def test_lost_node_of_a_top_up_job_is_no_spare() -> None:
    job = Job(id=4, state="RUNNING", nodes=("n1", "n2"))
    state = State(phase=Phase.TRAINING, job=job, idle=Idle(nodes=("n4",)), request=Request(num_nodes=3, fewest=1))
    view = build_view("r1", state, {}, 43.0, operator=True)
    assert (view.nodes, view.spares, view.lacking) == (("n1", "n2"), (), 1)
    asks = RecoverySeen(44.0, "4.0", "", "top-up", "job 8 asks Slurm for the nodes that the run lacks")
    state, _ = decide(replace(state, launch=replace(state.launch, started=True)), asks)
    assert build_view("r1", state, {}, 45.0, operator=True).shrunk == f"on 2 of 3 nodes; top-up: {asks.words}"


def test_incident_of_a_held_run_waits_for_the_release() -> None:
    incident = Incident("i1", 4, 0, 40.0, 25, Stage.STARTING)
    state = State(phase=Phase.HELD, job=Job(id=4, state="PENDING"), incident=incident)
    assert build_view("r1", state, {}, 43.0, operator=True).incidents[0].result == "held"
    assert (
        build_view("r1", state.in_phase(Phase.RECOVERING, 43.0), {}, 44.0, operator=True).incidents[0].result
        == "starting"
    )
