"""What a launcher learns from the attempts before its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from transom_cli.core import events as ev
from transom_cli.core.codec import plain
from transom_cli.core.events import Decided, Taken
from transom_cli.core.operator.state import Exclusion, Isolation, Policy, State
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.supervise.journal import Journal, write_header
from transom_cli.supervise.launcher import history
from transom_cli.supervise.launcher.plan import LaunchOptions
from transom_cli.supervise.lease import Lease

EXPIRY = 3600.0


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path / "run")
    found.attempts.mkdir(parents=True)
    write_header(found.journal, Policy(), 3)
    return found


def ended(run: RunDir, job_id: int, restart: int, **told: object) -> AttemptDir:
    attempt = run.attempt(job_id, restart)
    attempt.path.mkdir()
    outcome = ev.OutcomeSeen(1.0, attempt.name, **{"status": "failed", "why": "x", **told})  # type: ignore[arg-type]
    attempt.outcome.write_text(json.dumps(plain(outcome)))
    return attempt


def now(run: RunDir, restart: int = 9) -> AttemptDir:
    attempt = run.attempt(7, restart)
    attempt.path.mkdir()
    attempt.launcher_journal.write_text("")
    return attempt


def begun(run: RunDir, attempt: AttemptDir):  # type: ignore[no-untyped-def]
    return history.begun(options(run), attempt)


def options(run: RunDir, job_step: str = "") -> LaunchOptions:
    return LaunchOptions(run, "srun", (), (), checkpoints=run.checkpoints, expiry=EXPIRY, job_step=job_step)


def test_the_first_attempt_knows_nothing(run: RunDir) -> None:
    found = begun(run, now(run, 0))
    assert (found.durable, found.stuck, found.isolated, found.insist, found.lacked) == (-1, 0, (), True, False)


def test_attempts_without_a_newer_checkpoint_are_counted_from_the_end(run: RunDir) -> None:
    for restart, durable in enumerate((10, 10, 30, 30, 20)):
        ended(run, 7, restart, durable=durable)
    assert begun(run, now(run)).stuck == 2
    ended(run, 7, 5, durable=31)
    assert begun(run, run.attempt(7, 9)).stuck == 0


def test_an_attempt_whose_host_died_counts_by_what_stands_after_it(run: RunDir) -> None:
    ended(run, 7, 0, durable=10)
    run.attempt(7, 1).path.mkdir()
    assert history.without_progress([history.read_outcome(a, 0.0) for a in history.earlier(run, now(run))], 10) == 1
    assert history.without_progress([history.read_outcome(a, 0.0) for a in history.earlier(run, now(run, 8))], 14) == 0


def test_what_the_policy_decided_before_is_remembered_with_its_age(run: RunDir) -> None:
    """Launchers' clocks have nothing to do with each other: the ages are by the file server's."""
    for restart, ago in ((0, 1000.0), (1, 100.0)):
        taken = Taken(-30.0, Decided("oom", "relaunch", "cuda_oom", "cuda_oom/1"), ("n1",))
        attempt = ended(run, 7, restart, taken=(taken,))
        os.utime(attempt.outcome, (1e9 - ago, 1e9 - ago))
    here = now(run)
    os.utime(here.launcher_journal, (1e9, 1e9))
    found = begun(run, here).taken
    assert [t.at for t in found] == [-1030.0, -130.0]
    assert {t.decided.rule for t in found} == {"oom"} and found[0].nodes == ("n1",)


def test_an_outcome_of_an_older_version_tells_of_no_decisions(run: RunDir) -> None:
    attempt = ended(run, 7, 0)
    told = json.loads(attempt.outcome.read_text())
    del told["taken"]
    attempt.outcome.write_text(json.dumps(told))
    assert begun(run, now(run)).taken == ()


def test_without_checkpoints_of_ours_attempts_count_by_their_steps(run: RunDir) -> None:
    for restart, (step, cause) in enumerate(((900, ""), (950, ""), (940, "time_limit"), (940, ""), (-1, "time_limit"))):
        ended(run, 7, restart, step=step, cause=cause)
    found = begun(run, now(run))
    assert (found.step, found.stuck) == (950, 2)


def test_attempts_are_ordered_by_number_and_later_ones_do_not_count(run: RunDir) -> None:
    ended(run, 7, 2, durable=5, blamed=("n2",))
    ended(run, 7, 10, durable=50, blamed=("n9",))
    (run.attempts / "lost+found").mkdir()
    assert [a.name for a in history.earlier(run, run.attempt(7, 9))] == ["7.2"]
    assert begun(run, now(run)).isolated == ("n2",)


def test_blame_expires(run: RunDir) -> None:
    old = ended(run, 7, 0, blamed=("n1",))
    ended(run, 7, 1, blamed=("n2",))
    attempt = now(run)
    then = attempt.launcher_journal.stat().st_mtime - EXPIRY - 1
    os.utime(old.outcome, (then, then))
    assert begun(run, attempt).isolated == ("n2",)
    assert begun(run, attempt).probation == ("n1",), "a spare before it carries a rank again"


def test_a_live_operator_knows_better_than_the_blame_of_launchers(run: RunDir) -> None:
    ended(run, 7, 0, blamed=("n2",), cause="isolated_nodes")
    lease = Lease.take(run)
    attempt = now(run)
    journal = Journal(run.journal, lease.epoch)
    found = begun(run, attempt)
    assert (found.isolated, found.insist, found.lacked) == ((), False, True)
    lease.give_up()
    assert begun(run, attempt).isolated == ("n2",) and begun(run, attempt).insist
    journal.close()


def test_a_lease_that_was_not_renewed_for_long_is_nobodys(run: RunDir) -> None:
    Lease.take(run)
    attempt = now(run)
    assert history.operator_lives(run, attempt)
    then = attempt.launcher_journal.stat().st_mtime - history.OPERATOR_GONE - 1
    os.utime(run.lease, (then, then))
    assert not history.operator_lives(run, attempt)


def test_what_the_operator_has_isolated_stays_isolated(run: RunDir) -> None:
    journal = Journal(run.journal, 1)
    story = (
        ev.Started(0.0, 1),
        ev.Submitted(0.0, "submit", 7),
        ev.JobSeen(1.0, 7, 0, "RUNNING", nodes=("n1", "n2"), batch_host="n1"),
        ev.NodeSilent(2.0, "7.0", "n2", 11.0),
        ev.Probed(3.0, "i1/probe/n2/1", "n2", "FAIL", "refused"),
        ev.Probed(4.0, "i1/probe/n2/2", "n2", "FAIL", "refused"),
        ev.Isolated(5.0, "i1/isolate/n2", "n2", "drained", ""),
    )
    for event in story:
        journal.append(event)
    journal.close()
    assert begun(run, now(run)).isolated == ("n2",)


def test_what_the_operator_has_isolated_for_a_while_only_is_so_for_that_while(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, gone = Exclusion("n2", 0.0, 5e12, "excluded", "", ""), Exclusion("n3", 0.0, 5.0, "excluded", "", "")
    told = SimpleNamespace(
        state=State(isolation=Isolation(exclusions=(kept, gone, Exclusion("n1", 0.0, None, "drained", "", ""))))
    )
    monkeypatch.setattr(history, "fold", lambda _: told)
    assert begun(run, now(run)).isolated == ("n1", "n2")


def test_attempts_that_count_steps_from_their_own_start_made_progress_unless_they_repeat_each_other(
    run: RunDir,
) -> None:
    for restart, step in enumerate((340, 180, 150)):
        ended(run, 7, restart, step=step, since_start=True)
    found = begun(run, now(run))
    assert (found.stuck, found.made) == (0, 150)
    for restart in (3, 4):
        ended(run, 7, restart, step=151, since_start=True)
    (run.attempt(7, 9).launcher_journal).unlink()
    run.attempt(7, 9).path.rmdir()
    assert begun(run, now(run)).stuck == 2


def test_progress_of_another_job_step_does_not_hide_a_crash_loop(run: RunDir) -> None:
    for restart in range(3):
        ended(run, 7, restart, step=40, job_step="train")
    here = now(run)
    assert history.begun(options(run, "train"), here).stuck == 2
    assert history.begun(options(run, "tokenize"), here).stuck == 0
    assert history.begun(options(run, "tokenize"), here).step == -1
