"""The same scenario as each known release of Slurm prints it (samples/<release>, made by scripts/slurm_samples.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from transom_cli.sandbox.release.known import KNOWN_SLURM
from transom_cli.slurm import accounting, parse
from transom_cli.slurm.port import Job, JobState

SAMPLES = Path(__file__).parent / "samples"
RELEASES = sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())
in_each = pytest.mark.parametrize("release", RELEASES)


def text(release: str, name: str) -> str:
    return (SAMPLES / release / name).read_text()


def job(release: str, name: str) -> Job:
    return parse.parse_show_job(text(release, f"job_{name}.txt"))


def test_each_release_that_a_sandbox_runs_has_its_samples() -> None:
    without = {(25, 11)}  # known and in no Debian release as this is written
    assert {f"{major}.{minor:02}" for major, minor in set(KNOWN_SLURM) - without} < set(RELEASES)
    assert "22.05" in RELEASES


@in_each
def test_free_text_with_keys_in_it(release: str) -> None:
    """From 26.05 on the whole line of the submission stands there too, with the user's own text in it."""
    running = job(release, "running")
    assert (running.job_id, running.name) == (1, "na me=x Reason=foo")
    assert running.comment == "transom:r1:i1 a=b Reason=c" and running.reason == ""
    assert (running.state, running.nodes) == (JobState.RUNNING, ("node1", "node2", "node3"))
    assert (running.batch_host, running.excluded, running.num_nodes) == ("node1", ("node4",), 3)
    assert (running.restarts, running.requeue, running.cpus_per_task, running.user) == (0, True, 1, "trainer")
    two = job(release, "two_lines")
    assert (two.name, two.comment, two.exit_signal) == ("two\nlines", "pipe|x", 15)


@in_each
def test_held_after_a_requeue_and_released(release: str) -> None:
    held, waiting = job(release, "requeued_held"), job(release, "waiting")
    assert held.held and held.reason == "job_requeued_in_held_state" and held.nodes == () and held.start == ""
    assert held.state is waiting.state is JobState.PENDING and held.restarts == waiting.restarts == 1
    assert not waiting.held and waiting.start.startswith("2026-11-2") and waiting.num_nodes == 3


@in_each
@pytest.mark.parametrize(
    ("name", "state", "code", "signal"),
    [
        ("failed", JobState.FAILED, 7, 0),
        ("killed", JobState.FAILED, 0, 9),
        ("cancelled", JobState.CANCELLED, 0, 0),
        ("pending", JobState.PENDING, None, None),
    ],
)
def test_how_jobs_end(release: str, name: str, state: JobState, code: int | None, signal: int | None) -> None:
    ended = job(release, name)
    assert (ended.state, ended.exit_code, ended.exit_signal) == (state, code, signal)


@in_each
def test_squeue_and_scontrol_agree(release: str) -> None:
    """Exit codes among it, which 22.05 prints as a wait status and later ones as code:signal."""
    held, running = sorted(parse.parse_squeue(text(release, "squeue.txt")), key=lambda found: found.job_id)
    assert held.held and held.reason == "job_requeued_in_held_state" and held.restarts == 1
    assert running.name == "two\nlines" and running.comment == "pipe|x" and running.batch_host == "node1"
    ended = {found.job_id: found for found in parse.parse_squeue(text(release, "squeue_ended.txt"))}
    assert (ended[3].state, ended[3].exit_code, ended[3].exit_signal) == (JobState.FAILED, 7, 0)
    assert (ended[4].state, ended[4].exit_code, ended[4].exit_signal) == (JobState.FAILED, 0, 9)


@in_each
@pytest.mark.parametrize("name", ["failed", "killed"])
def test_a_failed_job_that_is_completing_shows_no_state_but_its_reason(release: str, name: str) -> None:
    printed = text(release, f"job_{name}.txt").replace("JobState=FAILED", "JobState=COMPLETING")
    found = parse.parse_show_job(printed.replace("RunTime=00:00:00", "RunTime=00:00:05"))
    assert found.completing and found.state is JobState.FAILED


@in_each
def test_nodes(release: str) -> None:
    idle, drained, mixed, down = parse.parse_show_nodes(text(release, "nodes.txt"))
    assert (idle.name, idle.address, idle.state, idle.usable) == ("node1", "127.0.0.1", "idle", True)
    assert drained.drain and (drained.reason, drained.reason_user) == ("transom: gpu lost (r1) = a", "root")
    assert mixed.state == "mixed" and mixed.usable and mixed.reason == ""
    assert down.state == "down" and down.reason == "it's gone" and not down.usable


@in_each
def test_accounting(release: str) -> None:
    """From 24.11 on a job that was cancelled in the queue has no start; before, its start is its end."""
    result = accounting.parse_sacct(text(release, "sacct.txt"), *range(1, 7))
    first, again = (start for start in result if start.job_id == 1)
    assert (first.state, first.nodes, first.exit_code) == (JobState.PENDING, ("node1", "node2", "node3"), None)
    assert first.began is not None and first.ended is not None and first.began <= first.ended
    assert (again.state, again.nodes, again.began, again.by) == (JobState.CANCELLED, (), None, 0)
    ends = {start.job_id: start for start in result if start.state.ended}
    assert [ends[job].state.value for job in (2, 3, 4, 5)] == ["CANCELLED", "FAILED", "FAILED", "CANCELLED"]
    assert [(ends[job].exit_code, ends[job].exit_signal) for job in (3, 4)] == [(7, 0), (0, 9)]
    assert (ends[2].by, ends[3].by, ends[5].began, ends[5].nodes) == (0, None, None, ())
    assert (ends[6].state, ends[6].nodes) == (JobState.NODE_FAIL, ("node3",))
    assert [ends[job].comment for job in (1, 2, 3)] == ["transom:r1:i1", "pipe|x", ""], "job 2 has a line of two lines"
