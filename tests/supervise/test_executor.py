"""The hands: what Slurm does not answer is tried again, what it refuses is told, and a fault of ours is told too."""

from __future__ import annotations

import json
import os
import queue
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_fake import FakeSlurm

from transom_cli.core import events as ev
from transom_cli.core.operator import actions as act
from transom_cli.health.finding import Finding, Verdict
from transom_cli.layout import RunDir
from transom_cli.slurm.port import JobState, SlurmDenied, SlurmRefused, SlurmUnknown, Submission
from transom_cli.supervise.operator import executor as hands_module
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.executor import Around, Executor, Orders
from transom_cli.supervise.operator.second_opinion import launcher_says

LOST = SlurmUnknown("Slurm did not answer", "Socket timed out on send/recv operation")


class Bench:
    def __init__(self, folder: Path, *, admin: bool = False, drain_command: tuple[str, ...] = ()) -> None:
        script = folder / "job.sbatch"
        script.write_text("#!/bin/sh\n")
        self.slurm = FakeSlurm(admin=admin)
        self.out: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
        orders = Orders(RunDir(folder), Submission(script, ("--nodes=2",)), drain_command)
        self.hands = Executor(orders, self.slurm, self.reach, Clock(), self.out)
        self.verdict = Verdict.PASS
        self.reached: list[tuple[str, int | None]] = []
        self.around: Around | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    def reach(self, node: str, address: str, port: int, job_id: int | None, around: Around) -> Finding:
        self.reached.append((node, job_id))
        self.around = around
        self.meanwhile()
        return Finding("reach", self.verdict, node, f"{address}:{port}")

    def do(self, action: act.Action) -> ev.Event:
        self.hands.do(action)
        return self.told()

    def told(self) -> ev.Event:
        """The next answer to an action; what sbatch answered on the way is for the journal (test_submission)."""
        while isinstance(event := self.out.get(timeout=30), ev.SubmissionAnswered):
            pass
        return event


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hands_module, "backoff", lambda tries: 0.0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.hands.stop()


def test_a_silent_slurm_is_asked_again(bench: Bench) -> None:
    bench.slurm.fail_next("jobs", LOST)
    lost = bench.do(act.Submit("submit"))
    assert isinstance(lost, ev.SlurmLost) and "Socket timed out" in lost.error
    told = bench.told()
    assert isinstance(told, ev.Submitted) and (told.key, told.job_id) == ("submit", 1)


def test_a_submission_whose_answer_was_lost_is_found_again(bench: Bench) -> None:
    bench.slurm.fail_next("submit", LOST, after=True)
    assert isinstance(bench.do(act.Submit("submit")), ev.SlurmLost)
    told = bench.told()
    assert isinstance(told, ev.Submitted) and told.job_id == 1
    assert len(bench.slurm.cluster.jobs) == 1


def test_the_job_is_released_once_it_is_known_to_be_the_only_one(bench: Bench) -> None:
    bench.do(act.Submit("submit"))
    job = bench.slurm.cluster.jobs[1]
    assert "--hold" in job.submission.options and not job.held


def test_a_submission_that_slurm_took_after_all_does_not_start_a_second_job(bench: Bench) -> None:
    """sbatch gave up, the look-up showed nothing, a second sbatch went through, and then the first one too."""
    orders = bench.hands._orders
    tagged = replace(orders.submission, options=(*orders.submission.options, f"--comment={orders.tag}", "--hold"))
    bench.slurm.submit(tagged)
    bench.slurm.submit(tagged)
    told = bench.do(act.Submit("submit"))
    assert isinstance(told, ev.Submitted) and told.job_id == 1
    first, second = bench.slurm.cluster.jobs[1], bench.slurm.cluster.jobs[2]
    assert (first.state, first.held, second.state) == (JobState.PENDING, False, JobState.CANCELLED)


@pytest.mark.parametrize("at", range(4))
def test_a_submission_cut_off_anywhere_leads_to_one_released_job(bench: Bench, at: int) -> None:
    """The calls are jobs, submit, jobs, release; each took effect, and its answer was lost."""
    bench.slurm.fail_call(at, LOST, after=True)
    assert isinstance(bench.do(act.Submit("submit")), ev.SlurmLost)
    told = bench.told()
    assert isinstance(told, ev.Submitted) and told.job_id == 1 and told.released
    assert [(j.job_id, j.held) for j in bench.slurm.cluster.jobs.values()] == [(1, False)]


@pytest.mark.parametrize("own_script_says_hold", [False, True])
def test_a_job_that_somebody_else_holds_is_not_released(bench: Bench, own_script_says_hold: bool) -> None:
    if own_script_says_hold:
        bench.hands._orders = replace(bench.hands._orders, stay_held=True)
    else:
        bench.slurm.fail_next("submit", LOST, after=True)
        bench.do(act.Submit("submit"))
        bench.hands._end.set()
        bench.hands._pool.shutdown(wait=True)
        bench.slurm.hold_behind(1, "JobHeldAdmin")
        while not bench.out.empty():  # the try that was cut off may have come through
            bench.out.get()
        bench.hands = Executor(bench.hands._orders, bench.slurm, bench.reach, Clock(), bench.out)
    told = bench.do(act.Submit("submit"))
    assert isinstance(told, ev.Submitted) and not told.released and bench.slurm.cluster.jobs[1].held


def test_a_refusal_is_told(bench: Bench) -> None:
    bench.slurm.fail_next("submit", SlurmRefused("Slurm refused `sbatch`", "invalid partition specified: gpu"))
    told = bench.do(act.Submit("submit"))
    assert isinstance(told, ev.ActionFailed)
    assert (told.key, told.kind) == ("submit", "slurm_refused")
    assert told.error == "Slurm refused `sbatch`: invalid partition specified: gpu"


def test_a_fault_of_ours_is_told(bench: Bench) -> None:
    bench.slurm.fail_next("jobs", ZeroDivisionError("ours"))
    told = bench.do(act.Submit("submit"))
    assert isinstance(told, ev.ActionFailed) and (told.kind, "ours" in told.error) == ("internal", True)


def test_an_action_that_no_hand_knows(bench: Bench) -> None:
    told = bench.do(act.Action("odd"))
    assert isinstance(told, ev.ActionFailed) and "no hand for Action" in told.error


@pytest.mark.parametrize("job_id", [7, 0])
def test_a_probe(bench: Bench, job_id: int) -> None:
    bench.verdict = Verdict.FAIL
    told = bench.do(act.Probe("i1/probe/n2/1", "n2", job_id))
    assert isinstance(told, ev.Probed) and (told.node, told.verdict) == ("n2", "FAIL")
    assert bench.reached == [("n2", job_id or None)], "a step is only tried in a job that runs"


def running_job(bench: Bench) -> int:
    job_id = bench.slurm.submit(bench.hands._orders.submission)
    bench.slurm.start_pending()
    assert bench.slurm.job(job_id).state is JobState.RUNNING
    return job_id


def test_a_node_of_a_suspended_job_is_not_probed(bench: Bench) -> None:
    job_id = running_job(bench)
    job = bench.slurm.cluster.jobs[job_id]
    job.state = JobState.SUSPENDED
    told = bench.do(act.Probe("i1/probe/n2/1", "n2", job_id))
    assert isinstance(told, ev.Probed) and told.verdict == "UNKNOWN" and "suspended" in told.evidence
    assert bench.reached == []


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.SUSPECT])
def test_a_probe_that_a_requeue_interrupts_is_no_failure(bench: Bench, verdict: Verdict) -> None:
    job_id = running_job(bench)
    bench.verdict, bench.meanwhile = verdict, lambda: bench.slurm.requeue_behind(job_id)
    told = bench.do(act.Probe("i1/probe/n2/2", "n2", job_id))
    assert isinstance(told, ev.Probed) and (told.verdict, "requeued" in told.evidence) == ("UNKNOWN", True)


def test_a_probe_is_held_against_slurms_word_and_good_nodes_of_the_job(bench: Bench) -> None:
    job_id = running_job(bench)
    first, second = bench.slurm.job(job_id).nodes
    bench.do(act.Probe(f"i1/probe/{first}/1", first, job_id))
    assert bench.around is not None and bench.around.slurm == ""
    assert [(p.node, p.in_job) for p in bench.around.peers()] == [(second, True)]
    bench.slurm.cluster.nodes[first].down = True
    bench.do(act.Probe(f"i1/probe/{first}/2", first, job_id))
    assert bench.around.slurm == "Slurm calls it down"


@pytest.mark.parametrize(("unreachable", "age", "says"), [(True, 5.0, True), (False, 5.0, False), (True, 600.0, False)])
def test_the_launchers_word_counts_for_a_while(tmp_path: Path, unreachable: bool, age: float, says: bool) -> None:
    attempt = RunDir(tmp_path).attempt(7, 0)
    attempt.path.mkdir(parents=True)
    record = {"type": "agent", "wall": 1000.0, "node": "n2", "what": "not started again", "unreachable": unreachable}
    attempt.launcher_journal.write_text(json.dumps(record) + "\n")
    assert bool(launcher_says(attempt, "n2", 1000.0 + age)) is says
    assert launcher_says(attempt, "n1", 1000.0 + age) == ""


def test_a_probe_of_a_node_that_slurm_does_not_know(bench: Bench) -> None:
    told = bench.do(act.Probe("i1/probe/n9/1", "n9", 7))
    assert isinstance(told, ev.ActionFailed) and told.kind == "slurm_refused"


def test_an_administrator_drains(tmp_path: Path) -> None:
    bench = Bench(tmp_path, admin=True)
    told = bench.do(act.Isolate("i1/isolate/n2", "n2", "node_lost: n2 lost", drain=True))
    assert isinstance(told, ev.Isolated) and (told.how, told.detail) == ("drained", "")
    node = bench.slurm.cluster.nodes["n2"]
    assert node.drain and node.reason.startswith("transom: node_lost: n2 lost (")


def test_another_owners_reason_stays(tmp_path: Path) -> None:
    bench = Bench(tmp_path, admin=True)
    bench.slurm.drain("n2", "maintenance")
    bench.do(act.Isolate("i1/isolate/n2", "n2", "node_lost", drain=True))
    assert bench.slurm.cluster.nodes["n2"].reason == "maintenance"


def site_command(folder: Path, code: int) -> tuple[str, ...]:
    path = folder / "site drain"
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{folder}/asked"\necho "no such policy" >&2\nexit {code}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return (str(path), "--now")


def test_the_sites_own_command_drains_where_slurm_denies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, drain_command=site_command(tmp_path, 0))
    monkeypatch.setattr("transom_cli.supervise.operator.drain._drained", lambda slurm, node: node == "n2")
    told = bench.do(act.Isolate("i1/isolate/n2", "n2", "node_lost: $(rm x); 'q'", drain=True))
    assert isinstance(told, ev.Isolated) and told.how == "drained" and "site drain" in told.detail
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[:2] == ["--now", "n2"] and "$(rm x); 'q'" in asked[2], "no shell between"


def test_denied_everywhere_it_is_excluded_with_the_reasons(tmp_path: Path) -> None:
    bench = Bench(tmp_path, drain_command=site_command(tmp_path, 3))
    told = bench.do(act.Isolate("i1/isolate/n2", "n2", "node_lost", drain=True))
    assert isinstance(told, ev.Isolated) and told.how == "excluded"
    assert "Invalid user id" in told.detail and "ended with 3: no such policy" in told.detail


def test_a_site_command_that_is_not_there(tmp_path: Path) -> None:
    bench = Bench(tmp_path, drain_command=(str(tmp_path / "none"),))
    told = bench.do(act.Isolate("i1/isolate/n2", "n2", "node_lost", drain=True))
    assert isinstance(told, ev.Isolated) and told.how == "excluded" and os.strerror(2) in told.detail


def test_a_mere_suspicion_asks_nobody(bench: Bench) -> None:
    told = bench.do(act.Isolate("i1/isolate/n2", "n2", "rank_killed", drain=False))
    assert isinstance(told, ev.Isolated) and told.how == "excluded"
    assert bench.slurm.calls == []


def test_a_patch_keeps_what_the_user_excluded(bench: Bench) -> None:
    options = ("--nodes=2", "--hold", "--exclude=n4,n3")
    job = bench.slurm.submit(Submission(bench.hands._orders.submission.script, options))
    told = bench.do(act.Patch("patch/1", job, ("n2",), drop=("n3",)))
    assert isinstance(told, ev.Acted)
    assert bench.slurm.cluster.jobs[job].excluded == ("n4", "n2")


@pytest.mark.parametrize("shown", [1, 2, 3])
def test_a_waiting_job_does_with_fewer_nodes_whatever_number_slurm_shows(bench: Bench, shown: int) -> None:
    """Of a pending job that was shrunk before its requeue, Slurm shows a guess."""
    job = bench.slurm.submit(Submission(bench.hands._orders.submission.script, ("--nodes=3", "--hold")))
    bench.slurm.cluster.jobs[job].num_nodes = shown
    asked: list[int | None] = []
    real = bench.slurm.update_pending
    bench.slurm.update_pending = lambda *a, **k: (asked.append(k["num_nodes"]), real(*a, **k))[1]  # type: ignore
    bench.do(act.Patch("patch/1", job, (), num_nodes=2))
    assert asked == [2]


def test_a_job_that_slurm_requeued_starts_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.do(act.Submit("submit"))
    bench.slurm.start_pending()
    bench.slurm.requeue_behind(1)
    monkeypatch.setattr(bench.hands, "_sleep", bench.slurm.sleep)
    bench.slurm.calls.clear()
    told = bench.do(act.Patch("patch/1", 1, ("n2",), start=True))
    assert isinstance(told, ev.Acted) and told.detail == "excluded: n2; started at once"
    bench.slurm.tick()
    job = bench.slurm.cluster.jobs[1]
    assert job.state is JobState.RUNNING and "n2" not in job.nodes


def test_a_job_that_was_requeued_and_held_is_patched_and_left_held(bench: Bench) -> None:
    bench.do(act.Submit("submit"))
    bench.slurm.hold_behind(1)
    told = bench.do(act.Patch("patch/1", 1, ("n2",), start=True))
    assert isinstance(told, ev.Acted) and told.detail == "excluded: n2"
    assert bench.slurm.cluster.jobs[1].held


@pytest.mark.parametrize("went_on", [False, True])
def test_a_job_that_a_person_cancelled_and_slurm_has_forgotten_is_not_followed(tmp_path: Path, went_on: bool) -> None:
    """Where the run has gone on since, it may be us who cancelled it."""
    bench = Bench(tmp_path)
    bench.slurm.accounting = True
    orders = replace(bench.hands._orders, since=0.0)
    bench.hands = Executor(orders, bench.slurm, bench.reach, Clock(), bench.out)
    bench.slurm.submit(orders.submission)
    bench.slurm.tick(5)
    bench.slurm.cancel(1)
    bench.slurm.tick(5)
    bench.slurm.forget(1)
    orders.run.attempt(2 if went_on else 1, 0).path.mkdir(parents=True)
    told = bench.do(act.Restart("i1/restart", 1, 0, num_nodes=2, exclude=(), dead=()))
    if went_on:
        assert isinstance(told, ev.Restarted) and told.how == "successor"
    else:
        assert isinstance(told, ev.ActionFailed) and told.kind == "job_cancelled"
    bench.hands.stop()


@pytest.mark.parametrize("gone", [False, True])
def test_a_patch_that_comes_too_late_harms_nothing(bench: Bench, gone: bool) -> None:
    bench.do(act.Submit("submit"))
    bench.slurm.start_pending()
    if gone:
        bench.slurm.forget(1)
    told = bench.do(act.Patch("patch/1", 1, ("n2",)))
    assert isinstance(told, ev.Acted) and told.detail.startswith("too late: ")


def test_cancel_and_release_twice(bench: Bench) -> None:
    bench.do(act.Submit("submit"))
    bench.slurm.hold_behind(1)
    for number in (1, 2):
        assert isinstance(bench.do(act.Release(f"release/{number}", 1)), ev.Acted)
    for number in (1, 2):
        assert isinstance(bench.do(act.Cancel(f"cancel/{number}", 1)), ev.Acted)
    assert bench.slurm.cluster.jobs[1].state is JobState.CANCELLED


def test_another_job_that_has_our_number_now_is_left_alone(bench: Bench) -> None:
    """A slurmctld that has lost its state gives the numbers again."""
    theirs = bench.slurm.submit(
        Submission(bench.hands._orders.submission.script, ("--comment=transom:another", "--hold"))
    )
    assert isinstance(bench.do(act.Cancel("cancel/1.0", theirs)), ev.Acted)
    assert isinstance(bench.do(act.Release("release/1.0", theirs)), ev.ActionFailed)
    told = bench.do(act.Patch("patch/1", theirs, ("n3",)))
    assert isinstance(told, ev.Acted) and "another job's" in told.detail
    job = bench.slurm.job(theirs)
    assert (job.state, job.held, job.excluded) == (JobState.PENDING, True, ())


def test_denied_cancel_is_told_with_its_kind(bench: Bench) -> None:
    bench.do(act.Submit("submit"))
    bench.slurm.fail_next("cancel", SlurmDenied("Slurm refused", "Access/permission denied"))
    told = bench.do(act.Cancel("cancel/1.0", 1))
    assert isinstance(told, ev.ActionFailed) and told.kind == "not_permitted"


def test_a_hand_that_is_told_to_stop_does_and_tells_nothing_more(bench: Bench) -> None:
    """In the pause before a second look; the next operator orders it again."""
    bench.hands.do(act.Probe("i1/probe/n2/2", "n2", 7, delay=3600.0))
    bench.hands.stop()
    bench.hands._pool.shutdown(wait=True)
    assert bench.out.empty() and bench.reached == []


def test_the_same_order_is_carried_out_once_at_a_time(bench: Bench) -> None:
    probe = act.Probe("i1/probe/n2/1", "n2", 7, delay=0.2)
    bench.hands.do(probe)
    bench.hands.do(probe)
    bench.told()
    bench.hands._pool.shutdown(wait=True)
    assert bench.out.empty()
