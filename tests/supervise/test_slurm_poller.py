"""The operator's eyes on Slurm: whatever Slurm answers, they stay open."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pytest
from slurm_fake import FakeSlurm

from transom_cli.core import events as ev
from transom_cli.core.operator.cadence import Pause
from transom_cli.slurm.port import Job, JobState, NoSuchJob, SlurmDenied, SlurmRefused, SlurmUnknown
from transom_cli.supervise.operator import slurm_poller as slurmwatch
from transom_cli.supervise.operator.clock import Clock
from transom_cli.supervise.operator.slurm_poller import SlurmPoller, job_seen

RUNNING = Job(7, JobState.RUNNING, nodes=("n1", "n2"), batch_host="n1")
GONE = NoSuchJob("Slurm does not know this job (any more)", "Invalid job id specified")
LOST = SlurmUnknown("Slurm did not answer", "Socket timed out")


class Scripted(FakeSlurm):
    """Answers as told, one after the other; after the last one it says that it is done."""

    def __init__(self, *answers: Job | Exception) -> None:
        super().__init__()
        self.answers = list(answers)
        self.done = threading.Event()
        self.node_error: Exception | None = None

    def job(self, job_id: int) -> Job:
        if not self.answers:
            self.done.set()
            return RUNNING
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def nodes(self, names: object = ()) -> list[object]:  # type: ignore[override]
        if self.node_error is not None:
            raise self.node_error
        return super().nodes(names)  # type: ignore[arg-type, return-value]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurmwatch, "backoff", lambda tries: 0.0)


def watch(slurm: Scripted, prepare: Callable[[SlurmPoller], None] = lambda w: None) -> list[ev.Event]:
    out: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
    eyes = SlurmPoller(slurm, Clock(), out, lambda _took: Pause(0.0, 0.0))
    eyes.follow(7, 0, ("n1", "n2"))
    prepare(eyes)
    eyes.start()
    assert slurm.done.wait(30)
    eyes.stop()
    eyes._thread.join(30)
    told = []
    while not out.empty():
        told.append(out.get())
    return told


def kinds(events: list[ev.Event]) -> list[str]:
    return [type(e).__name__ for e in events]


@pytest.mark.parametrize(
    "error",
    [
        LOST,
        SlurmRefused("Slurm refused `scontrol`", "odd"),
        SlurmDenied("Slurm refused", "Access denied"),
        ValueError("nonsense in a column"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_any_error_is_a_slurm_that_is_lost_and_comes_back(error: Exception) -> None:
    told = watch(Scripted(RUNNING, error, error, RUNNING))
    assert kinds(told)[:5] == ["JobSeen", "SlurmLost", "SlurmLost", "JobSeen", "SlurmBack"]


def test_a_job_is_forgotten_after_three_answers_in_a_row() -> None:
    told = kinds(watch(Scripted(GONE, GONE, RUNNING, GONE, GONE, GONE)))
    assert told[:2] == ["JobSeen", "JobGone"]


def test_no_such_job_is_an_answer_too() -> None:
    assert kinds(watch(Scripted(LOST, GONE)))[:2] == ["SlurmLost", "SlurmBack"]


def test_a_timeout_between_breaks_no_row_and_proves_nothing() -> None:
    """Two times unknown job and a Slurm that is away are not a forgotten job."""
    assert "JobGone" not in kinds(watch(Scripted(GONE, GONE, LOST, LOST, RUNNING)))


def test_the_count_is_of_one_job() -> None:
    """A successor is not forgotten because its predecessor was nearly."""

    class Switching(Scripted):
        def job(self, job_id: int) -> Job:
            if len(self.answers) == 3:  # the second look
                eyes[0].follow(8, 0, ())
            return super().job(job_id)

    eyes: list[SlurmPoller] = []
    told = watch(Switching(GONE, GONE, GONE, GONE), eyes.append)
    assert "JobGone" not in kinds(told)


def test_a_requeued_jobs_dead_nodes_are_told() -> None:
    waiting = Job(7, JobState.PENDING, restarts=1)
    slurm = Scripted(waiting)
    slurm.kill_node("n2")
    slurm.tick(301)
    first = watch(slurm)[0]
    assert isinstance(first, ev.JobSeen) and first.lost_nodes == ("n2",)


@pytest.mark.parametrize("error", [LOST, SlurmRefused("no", "Node n9 not found")], ids=["lost", "refused"])
def test_when_the_nodes_cannot_be_asked_the_job_is_still_seen(error: Exception) -> None:
    slurm = Scripted(Job(7, JobState.PENDING, restarts=1))
    slurm.node_error = error
    first = watch(slurm)[0]
    assert isinstance(first, ev.JobSeen) and (first.restarts, first.lost_nodes) == (1, ())


def test_codes_and_holds_only_where_they_mean_something() -> None:
    running = job_seen(1.0, Job(7, JobState.RUNNING, held=True, exit_code=0, exit_signal=0))
    assert (running.held, running.exit_code, running.exit_signal) == (False, None, None)
    ended = job_seen(1.0, Job(7, JobState.FAILED, exit_code=93, exit_signal=0))
    assert (ended.exit_code, ended.ended) == (93, True)
    assert job_seen(1.0, Job(7, JobState.PENDING, held=True)).held


def test_another_job_with_our_number_is_no_news_of_ours() -> None:
    """A slurmctld that has lost its state gives the numbers again."""
    theirs = Job(7, JobState.RUNNING, comment="transom:another", nodes=("n3",))
    slurm = Scripted(theirs, theirs, theirs)
    out: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()
    eyes = SlurmPoller(slurm, Clock(), out, lambda _took: Pause(0.0, 0.0), "transom:ours")
    eyes.follow(7, 0, ("n1", "n2"))
    eyes.start()
    assert isinstance(out.get(timeout=30), ev.JobGone)
    eyes.stop()
    eyes._thread.join(30)


def test_a_drained_node_that_somebody_returned_may_be_used_again() -> None:
    now, out = [0.0], queue.SimpleQueue[ev.Event]()
    slurm = Scripted(*[Job(7, JobState.PENDING)] * 9)
    for name in ("n1", "n2", "n3"):
        slurm.cluster.nodes[name].drain = True
    eyes = SlurmPoller(slurm, Clock(), out, lambda _took: Pause(0.0, 0.0), now=lambda: now[0])

    def look() -> list[ev.LiftRequested]:
        eyes.follow(7, 1, (), ("n1", "n2", "n3"))
        eyes.poll(0.0)
        return [e for e in (out.get() for _ in range(out.qsize())) if isinstance(e, ev.LiftRequested)]

    assert not look()
    slurm.cluster.nodes["n2"].drain = slurm.cluster.nodes["n3"].drain = False
    slurm.cluster.nodes["n3"].down = True
    now[0] = 59.0
    assert not look(), "Slurm is asked once a minute"
    now[0] = 61.0
    (lift,) = look()
    assert lift.nodes == ("n2",), "n3 is down"
