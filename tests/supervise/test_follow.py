"""What the operator reads from a run directory, written here by hand as launcher, agents and trainer write it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from transom_cli.core import events as ev
from transom_cli.core.incident import Incident, Stage
from transom_cli.core.operator.silent_launcher import STUCK
from transom_cli.core.operator.state import Job, Request, State
from transom_cli.core.stall import StallLimits
from transom_cli.heartbeat.table import NodeTable, RankBeat, encode
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.supervise.attempt_files import newest_checkpoint, read_outcome
from transom_cli.supervise.follow import Follower

LIMITS = StallLimits(factor=4.0, floor=2.0, ceiling=60.0, node_silent=8.0, settle=0.0, patience=1.0)
STATE = State(job=Job(id=7, restarts=0, nodes=("n1", "n2")), request=Request(num_nodes=2))


class Training:
    """Two nodes, a rank on each. `beats` writes a table as its agent would."""

    def __init__(self, root: Path) -> None:
        self.run = RunDir(root)
        self.follower = Follower(self.run, self.run.checkpoints, LIMITS)
        self.seq = self.signs = 0
        self.state = STATE
        self.now = 1000.0

    def attempt(self, restart: int = 0) -> AttemptDir:
        attempt = self.run.attempt(7, restart)
        attempt.nodes.mkdir(parents=True, exist_ok=True)
        return attempt

    def launch(self, restart: int = 0, launch: int = 0) -> None:
        record = {"type": "launch", "wall": 5.0, "launch": launch, "nodes": ["n1", "n2"], "world_size": 2}
        self.journal({"type": "attempt", "nodes": ["n1", "n2"]}, {**record, "argv": ["srun"]}, restart=restart)

    def journal(self, *records: dict[str, object], restart: int = 0) -> None:
        with self.attempt(restart).launcher_journal.open("a") as f:
            f.writelines(json.dumps(record) + "\n" for record in records)

    def sign(self) -> None:
        """The launcher's sign of life."""
        self.signs += 1
        self.attempt().launcher_alive.write_text(f"{self.signs}\n")

    def beats(self, step: int, *nodes: str, proc: str = "R", restart: int = 0, launch: int = 0) -> None:
        self.seq += 1
        for node in nodes:
            beat = RankBeat(int(node[1]) - 1, launch, step, step + 1, 0.1, None, "step", 100, proc)
            table = NodeTable(node, self.run.attempt(7, restart).name, self.seq, (beat,))
            (self.attempt(restart).nodes / f"{node}.beats").write_bytes(encode(table))

    def poll(self, seconds: float = 1.0) -> list[ev.Event]:
        self.now += seconds
        return list(self.follower.poll(self.state, self.now))


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


def kinds(events: list[ev.Event]) -> list[str]:
    return [type(e).__name__ for e in events]


def test_nothing_there_yet(training: Training) -> None:
    assert training.poll() == []
    training.state = State()
    assert training.poll() == []


def test_a_training_that_runs(training: Training) -> None:
    training.launch()
    launch = ev.LaunchSeen(1001.0, "7.0", 0, ("n1", "n2"), 2)
    assert training.poll() == [launch]
    training.beats(0, "n1", "n2")
    assert training.poll() == [ev.StepSeen(1002.0, "7.0", 0)]
    told: list[ev.Event] = []
    for step in range(1, 130):
        training.beats(step, "n1", "n2")
        told += training.poll()
    assert kinds(told) == ["StepSeen", "StepSeen"], "one line of progress a minute"


def test_a_node_falls_silent_and_the_ranks_with_it(training: Training) -> None:
    training.launch()
    for step in range(20):
        training.beats(step, "n1", "n2")
        training.poll()
    told: list[ev.Event] = []
    for _ in range(15):
        training.beats(19, "n1")  # n1's agent lives; its rank waits for the other one
        told += training.poll()
    silent = [e for e in told if isinstance(e, ev.NodeSilent)]
    assert [(e.attempt, e.node) for e in silent] == [("7.0", "n2")]
    quiet = [e for e in told if isinstance(e, ev.Stalled)]
    assert len(quiet) == 1 and quiet[0].stall.step == 19 and quiet[0].stall.nodes == ("n2",)
    assert ev.StepSeen(quiet[0].at, "7.0", 19) in told, "the last step is told before what happened after it"


def test_a_stopped_rank_and_its_return(training: Training) -> None:
    training.launch()
    for step in range(20):
        training.beats(step, "n1", "n2")
        training.poll()
    told: list[ev.Event] = []
    for _ in range(12):
        training.beats(19, "n1")
        training.beats(19, "n2", proc="T")
        told += training.poll()
    quiet = [e for e in told if isinstance(e, ev.Stalled)]
    assert [(e.stall.culprits, e.stall.nodes) for e in quiet] == [((1,), ("n2",))]
    told = []
    for step in (20, 21):
        training.beats(step, "n1", "n2")
        told += training.poll()
    assert "StallEnded" in kinds(told)


def test_silence_of_a_suspended_job_is_not_told_and_the_watch_starts_again_with_it(training: Training) -> None:
    training.launch()
    for step in range(20):
        training.beats(step, "n1", "n2")
        training.poll()
    running, told = training.state, [e for _ in range(3) for e in training.poll()]
    training.state = replace(running, job=replace(running.job, state="SUSPENDED", suspended_at="05:00"))
    told += [e for _ in range(600) for e in training.poll()]
    training.state = replace(running, job=replace(running.job, state="RUNNING", suspended_at="05:10"))
    told += [e for _ in range(3) for e in training.poll()]
    training.beats(20, "n1")
    told += training.poll()
    assert not [e for e in told if isinstance(e, (ev.NodeSilent, ev.Stalled))], told
    for _ in range(12):
        training.beats(20, "n1")
        told += training.poll()
    assert [e.node for e in told if isinstance(e, ev.NodeSilent)] == ["n2"], "a node that does not come back is told"


def test_a_damaged_table_is_as_good_as_none(training: Training) -> None:
    training.launch()
    training.beats(0, "n1", "n2")
    training.poll()
    (training.attempt().nodes / "n2.beats").write_bytes(b"TBT2 nonsense")
    (training.attempt().nodes / "n2.jsonl").write_text("{}\n")
    assert training.poll() == []


def test_an_outcome_is_told_once_and_after_the_last_step(training: Training) -> None:
    training.launch()
    training.beats(3, "n1", "n2")
    training.poll()
    training.beats(5, "n1", "n2")
    exits = [{"rank": 1, "node": "n2", "code": None, "signal": 9, "wall": 7, "step": 5}]
    data = {"attempt": "lies", "status": "failed", "why": "rank 1 was killed", "exits": exits, "missing": ["n2"]}
    training.attempt().outcome.write_text(json.dumps(data))
    told = training.poll()
    assert kinds(told) == ["StepSeen", "OutcomeSeen"]
    outcome = told[-1]
    assert isinstance(outcome, ev.OutcomeSeen)
    assert (outcome.attempt, outcome.missing) == ("7.0", ("n2",))
    assert outcome.exits == (ev.RankExit(1, "n2", None, 9, 7.0, 5),)
    assert kinds(training.poll()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"status": 5}', '{"why": "no status"}'])
def test_half_an_outcome_is_none(training: Training, text: str) -> None:
    training.attempt().outcome.write_text(text)
    assert read_outcome(training.attempt(), 1.0) is None


def test_a_torn_and_a_strange_line_of_the_launcher(training: Training) -> None:
    path = training.attempt().launcher_journal
    path.write_text('{"type": "launch", "nodes": 7}\n[1]\nnonsense\n{"type": "launch", "launch": 0, "nod')
    assert training.poll() == []
    with path.open("a") as f:
        f.write('es": ["n1"], "world_size": 1}\n')
    assert training.poll() == [ev.LaunchSeen(1002.0, "7.0", 0, ("n1",), 1)]


def test_a_newer_start_is_followed_once_its_launcher_writes(training: Training) -> None:
    training.launch()
    training.poll()
    training.attempt(1)  # its folder alone tells the core nothing
    training.beats(0, "n1", "n2", restart=1)
    assert training.poll() == []
    training.launch(1)
    assert kinds(training.poll()) == ["LaunchSeen", "StepSeen"]


def test_a_new_start_is_not_told_before_the_restart_is_answered(training: Training) -> None:
    """After a crash in the middle of a restart the new start may run already. Told now, the core could not use it."""
    training.launch()
    training.poll()
    training.launch(1)
    training.beats(0, "n1", "n2", restart=1)
    training.state = State(incident=Incident("i1", 7, 0, 0.0, 3, stage=Stage.RESTARTING), job=Job(id=7))
    assert training.poll() == []
    training.state = State(job=Job(id=7, restarts=1))
    assert kinds(training.poll(0.1)) == ["LaunchSeen", "StepSeen"], "and then at once"


def test_a_job_that_the_launcher_submitted_in_its_place_is_followed(training: Training) -> None:
    training.launch()
    training.poll()
    follows = training.run.attempt(9, 0)
    follows.nodes.mkdir(parents=True)
    record = {"type": "launch", "wall": 5.0, "launch": 0, "nodes": ["n1", "n2"], "world_size": 2}
    follows.launcher_journal.write_text(json.dumps(record) + "\n")
    assert training.poll() == [], "anybody's job in this run directory"
    training.journal({"type": "requeued", "how": "resubmitted", "job_id": 9, "restarts": 0, "wall": 4.0})
    assert training.poll() == [ev.LaunchSeen(training.now, "9.0", 0, ("n1", "n2"), 2, succeeds=7)]


def test_checkpoints_count_when_their_manifest_stands(training: Training) -> None:
    for name in ("step-5", "step-40", "step-²", "tmp-99", "step-60"):
        (training.run.checkpoints / name).mkdir(parents=True)
    for name in ("step-5", "step-40", "step-²"):
        (training.run.checkpoints / name / "manifest.json").write_text("{}")
    assert newest_checkpoint(training.run.checkpoints) == 40
    assert training.poll() == [ev.CheckpointSeen(1001.0, 40)]
    assert training.poll() == []


def test_a_request_is_heard_once(training: Training) -> None:
    training.run.requests.mkdir()
    (training.run.requests / "1.json").write_text('{"ask": "stop", "who": "ann"}')
    (training.run.requests / "2.json").write_text('{"ask": "dance"}')
    (training.run.requests / "3.tmp").write_text('{"ask": "stop"}')
    assert training.poll() == [ev.StopRequested(1001.0, "ann")]
    assert training.poll() == []


def test_ranks_that_ended_with_nobody_to_say_so_are_an_outcome_of_their_own(training: Training) -> None:
    training.launch()
    training.beats(5, "n1", "n2")
    training.poll()
    exits = training.attempt().exits(0)
    exits.mkdir(parents=True)
    record = {"schema": 1, "rank": 1, "node": "n2", "pid": 9, "code": 1, "signal": None, "wall": 50.0, "steps": 5}
    (exits / "rank-1.json").write_text(json.dumps(record))
    assert "OutcomeSeen" not in kinds(training.poll() + training.poll()), "the launcher is given its time"
    events = training.poll() + training.poll() + training.poll()
    (outcome,) = [e for e in events if isinstance(e, ev.OutcomeSeen)]
    assert (outcome.status, outcome.missing, [x.rank for x in outcome.exits]) == ("failed", ("n1",), [1])
    assert "the launcher is silent" in outcome.why


def test_ranks_that_ended_well_wait_for_the_launcher(training: Training) -> None:
    training.launch()
    exits = training.attempt().exits(0)
    exits.mkdir(parents=True)
    record = {"schema": 1, "rank": 1, "node": "n2", "pid": 9, "code": 0, "signal": None, "wall": 50.0, "steps": 5}
    (exits / "rank-1.json").write_text(json.dumps(record))
    assert "OutcomeSeen" not in kinds([e for _ in range(8) for e in training.poll()])


def test_a_launcher_that_hangs_after_the_good_end_of_all_ranks_is_not_waited_for(training: Training) -> None:
    training.launch()
    training.state = State(job=Job(id=7, nodes=("n1", "n2"), batch_host="n1"), request=Request(num_nodes=2))
    training.sign()
    exits = training.attempt().exits(0)
    exits.mkdir(parents=True)
    record = {"schema": 1, "pid": 9, "code": 0, "signal": None, "wall": 50.0, "steps": 5}
    (exits / "rank-0.json").write_text(json.dumps({**record, "rank": 0, "node": "n1"}))
    assert "OutcomeSeen" not in kinds([e for _ in range(60) for e in training.poll()]), "one rank still trains"
    (exits / "rank-1.json").write_text(json.dumps({**record, "rank": 1, "node": "n2"}))
    for _ in range(40):
        training.sign()
        assert "OutcomeSeen" not in kinds(training.poll()), "it lives, and has its own account to give"
    assert "OutcomeSeen" not in kinds([e for _ in range(int(STUCK)) for e in training.poll()])
    (outcome,) = [e for _ in range(10) for e in training.poll() if isinstance(e, ev.OutcomeSeen)]
    assert (outcome.status, outcome.missing) == ("failed", ("n1",)) and not any(x.bad for x in outcome.exits)
    assert outcome.why == "every rank ended with exit code 0, and the launcher is silent"


def test_ranks_that_are_gone_without_a_record_are_not_waited_for_for_ever(training: Training) -> None:
    """The disk took neither the ranks' records nor the launcher's account when they died."""
    training.launch()
    training.sign()

    def poll(first: str, second: str) -> list[ev.Event]:
        training.beats(5, "n1", proc=first)
        training.beats(5, "n2", proc=second)
        return training.poll()

    assert "OutcomeSeen" not in kinds([e for _ in range(60) for e in poll("X", "R")])
    assert "OutcomeSeen" not in kinds([e for _ in range(int(STUCK)) for e in poll("X", "X")])
    (outcome,) = [e for _ in range(10) for e in poll("X", "X") if isinstance(e, ev.OutcomeSeen)]
    assert (outcome.status, outcome.why) == (
        "failed",
        "every rank is gone without a word, and the launcher is silent",
    )


def test_a_node_of_the_launch_that_never_sends_a_table_is_silent_too(training: Training) -> None:
    training.launch()
    told = []
    for step in range(75):
        training.beats(step, "n1")
        told += [e for e in training.poll() if isinstance(e, ev.NodeSilent)]
    (silent,) = told
    assert silent.node == "n2" and silent.silent_for >= LIMITS.missing


def test_a_relaunch_begins_with_steps_of_its_own(training: Training) -> None:
    training.launch()
    training.beats(9, "n1", "n2")
    assert kinds(training.poll()) == ["LaunchSeen", "StepSeen"]
    heal = {"type": "recovery", "launch": 0, "incident": "l1", "what": "seen", "words": "rank 1 died", "nodes": ["n2"]}
    training.journal(heal)
    assert training.poll() == [ev.RecoverySeen(1002.0, "7.0", "l1", "seen", "rank 1 died", nodes=("n2",))]
    training.launch(launch=1)
    assert kinds(training.poll()) == ["LaunchSeen"], "the tables are still about the launch before"
    training.beats(-1, "n1", "n2", launch=1)
    assert training.poll() == []
    training.beats(6, "n1", "n2", launch=1)
    assert training.poll() == [ev.StepSeen(1005.0, "7.0", 6)]


def quiet_rank(training: Training) -> list[ev.Event]:
    """A training that steps for a while; then one rank is stopped for long."""
    training.launch()
    for step in range(10):
        training.beats(step, "n1", "n2")
        training.sign()
        training.poll()
    events = []
    for _ in range(20):
        training.beats(9, "n1")
        training.beats(9, "n2", proc="T")
        training.sign()
        events += training.poll()
    return events


SEEN = {
    "type": "recovery",
    "launch": 0,
    "incident": "l1",
    "what": "seen",
    "words": "no step for 9.0 s",
    "cause": "hang",
}


def test_a_silence_is_left_to_a_launcher_that_lives(training: Training) -> None:
    training.launch()
    training.journal({**SEEN, "nodes": ["n2"]})
    assert "Stalled" not in kinds(quiet_rank(training))
    training.beats(10, "n1", "n2")
    training.sign()
    assert "StallEnded" not in kinds(training.poll()), "nobody was told of the silence"


def test_a_silence_that_a_living_launcher_does_not_take_up_is_told(training: Training) -> None:
    events = quiet_rank(training)
    assert "Stalled" not in kinds(events[:-8])
    for _ in range(10):
        training.beats(9, "n1")
        training.beats(9, "n2", proc="T")
        training.sign()
        events += training.poll()
    assert kinds(events).count("Stalled") == 1


def test_a_silence_of_all_agents_is_told_as_such_while_the_launcher_lives(training: Training) -> None:
    training.launch()
    for step in range(10):
        training.beats(step, "n1", "n2")
        training.sign()
        training.poll()
    events = []
    for _ in range(60):
        training.sign()
        events += training.poll()
    (quiet,) = [e for e in events if isinstance(e, ev.Stalled)]
    assert quiet.stall.unseen and quiet.stall.overdue == ("n1", "n2")


def test_the_launchers_own_host_is_asked_when_it_falls_silent(training: Training) -> None:
    training.launch()
    training.state = State(job=Job(id=7, nodes=("n1", "n2"), batch_host="n1"), request=Request(num_nodes=2))
    exits = training.attempt().exits(0)
    exits.mkdir(parents=True)
    for rank, node in ((0, "n1"), (1, "n2")):
        record = {
            "schema": 1,
            "rank": rank,
            "node": node,
            "pid": 9,
            "code": 1,
            "signal": None,
            "wall": 50.0,
            "steps": 5,
        }
        (exits / f"rank-{rank}.json").write_text(json.dumps(record))
    (outcome,) = [e for _ in range(8) for e in training.poll() if isinstance(e, ev.OutcomeSeen)]
    assert outcome.missing == ("n1",)


def test_ranks_that_the_launcher_ended_itself_are_not_to_blame(training: Training) -> None:
    training.launch()
    training.journal({**SEEN, "nodes": ["n2"]})
    exits = training.attempt().exits(0)
    exits.mkdir(parents=True)
    record = {"schema": 1, "rank": 0, "node": "n1", "pid": 9, "code": None, "signal": 15, "wall": 50.0, "steps": 5}
    (exits / "rank-0.json").write_text(json.dumps(record))
    (outcome,) = [e for _ in range(8) for e in training.poll() if isinstance(e, ev.OutcomeSeen)]
    assert (outcome.cause, outcome.suspects, outcome.exits, outcome.missing) == ("hang", ("n2",), (), ("n2",))


def test_a_silence_is_told_once_its_launcher_is_silent_too(training: Training) -> None:
    training.launch()
    training.journal({**SEEN, "nodes": ["n2"]})
    quiet_rank(training)
    events = []
    for _ in range(12):
        training.beats(9, "n1")
        training.beats(9, "n2", proc="T")
        events += training.poll()
    (quiet,) = [e for e in events if isinstance(e, ev.Stalled)]
    assert (quiet.stall.culprits, quiet.stall.nodes) == ((1,), ("n2",))


def test_bad_ends_are_left_to_a_launcher_that_lives(training: Training) -> None:
    training.launch()
    exits = training.attempt().exits(0)
    exits.mkdir(parents=True)
    record = {"schema": 1, "rank": 1, "node": "n2", "pid": 9, "code": 1, "signal": None, "wall": 50.0, "steps": 5}
    (exits / "rank-1.json").write_text(json.dumps(record))
    events = []
    for _ in range(12):
        training.sign()
        events += training.poll()
    assert "OutcomeSeen" not in kinds(events)
    assert "OutcomeSeen" in kinds([e for _ in range(8) for e in training.poll()])


def test_steps_go_on_while_the_table_of_a_dead_agent_is_late(training: Training) -> None:
    training.launch()
    events = []
    for step in range(90):
        training.beats(step, "n1", *(("n2",) if step < 10 else ()))
        training.sign()
        events += training.poll()
    told = [e.step for e in events if isinstance(e, ev.StepSeen)]
    assert told[-1] > 50 and "Stalled" not in kinds(events)
    assert set(training.follower.tables) == {"n1"}, "metrics show what is known"


def test_a_run_directory_that_falls_silent_as_a_whole_is_no_hang(training: Training) -> None:
    """Neither launcher nor agents are heard: the file system shows nothing new, or all of them are dead."""
    training.launch()
    for step in range(10):
        training.beats(step, "n1", "n2")
        training.sign()
        training.poll()
    events = [event for _ in range(60) for event in training.poll()]
    (quiet,) = [e for e in events if isinstance(e, ev.Stalled)]
    assert quiet.stall.unseen


RUNNING = replace(STATE, job=replace(STATE.job, state="RUNNING"))


def polls(training: Training, seconds: float, each: float = 1.0) -> list[ev.Event]:
    return [e for _ in range(int(seconds / each)) for e in training.poll(each)]


def test_launcher_that_never_signs_fails_the_attempt_after_the_time_for_the_first_step(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.follower = Follower(training.run, training.run.checkpoints, LIMITS, launcher_within=300.0)
    assert polls(training, 600) == [], "a pending job has no launcher"
    training.state = replace(RUNNING, job=replace(RUNNING.job, batch_host="n1"))
    assert polls(training, 290) == []
    (lost,) = polls(training, 100)
    assert isinstance(lost, ev.OutcomeSeen) and lost.missing == ("n1",), "its node may be dead"
    assert (lost.attempt, lost.status) == ("7.0", "failed")
    assert lost.why == "the launcher gave no sign of life within 300 s after the job started"


def test_users_script_without_launcher_is_left_alone(training: Training) -> None:
    training.state = RUNNING
    assert polls(training, 5000, each=2.0) == []


def test_launcher_that_hangs_before_its_first_launch_fails_the_attempt(training: Training) -> None:
    training.state = RUNNING
    training.journal({"type": "attempt", "nodes": ["n1", "n2"]})
    for _ in range(500):  # a long preflight
        training.sign()
        assert training.poll() == []
    assert polls(training, 120) == []
    (lost,) = polls(training, 10)
    assert isinstance(lost, ev.OutcomeSeen) and "has started no training step" in lost.why


def test_stall_of_the_operator_itself_does_not_count_as_silence_of_the_launcher(training: Training) -> None:
    training.state = RUNNING
    training.journal({"type": "attempt", "nodes": ["n1", "n2"]})
    training.sign()
    polls(training, 5)
    assert training.poll(3600.0) == []
    training.sign()
    assert polls(training, 100) == []


def test_between_two_job_steps_nobody_is_silent(training: Training) -> None:
    training.launch()
    for step in range(20):
        training.sign()
        training.beats(step, "n1", "n2")
        training.poll()
    training.journal({"type": "job_step", "wall": 9.0, "launch": 0, "job_step": "1", "status": "done"})
    told = [event for _ in range(200) for event in training.poll()]
    assert kinds(told) == ["StepSeen", "JobStepDone"], "neither ranks, nodes nor launcher are missed"
    folder = training.run.path / "second"
    (folder / "step-3").mkdir(parents=True)
    (folder / "step-3" / "manifest.json").write_text("{}")
    training.journal(
        {"type": "launch", "launch": 1, "nodes": ["n1", "n2"], "world_size": 2, "job_step": "2"}
        | {"checkpoints": str(folder)}
    )
    training.beats(0, "n1", "n2", launch=1)
    told = [event for _ in range(3) for event in training.poll()]
    assert {"LaunchSeen", "StepSeen", "CheckpointSeen"} == set(kinds(told))
    told = [event for _ in range(30) for event in training.poll()]
    assert "NodeSilent" in kinds(told) or "OutcomeSeen" in kinds(told), "from here on, silence counts again"


def test_report_that_the_loss_is_nan_is_an_event_and_other_reports_are_none(training: Training) -> None:
    report = {"type": "report", "launch": 0, "over": False, "what": "nan_loss", "step": 22, "words": "the loss is NaN"}
    slow, over = {**report, "what": "slow_node"}, {**report, "over": True}
    training.launch()
    training.journal({**report, "good": 15, "clue": {}}, slow, over, {**report, "what": "infinite_loss", "step": 30})
    told = [event for event in training.poll() if isinstance(event, ev.RecoverySeen)]
    assert [(e.what, e.incident, e.cause, e.step, e.good) for e in told] == [
        ("report", "", "nan_loss", 22, 15),
        ("report", "", "infinite_loss", 30, -1),
    ]
