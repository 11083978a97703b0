"""The top-up job: brings nodes that a run lacks after it had to shrink.

Its script only waits: the launcher starts agents and ranks there, as steps of that job (`srun --jobid`), and calls the
agents over the same authenticated connections as all others. The script ends when the attempt has its outcome, or when
the launcher gives no sign of life any more, so a forgotten job releases its nodes by itself. The launcher submits,
follows and cancels jobs with this comment only.
"""

import os
import queue
import threading
import time
from pathlib import Path

from transom_cli.core.launcher import Event, QueueSeen, SubmitTopUp, TopUpEnded, TopUpStarted, TopUpSubmitted
from transom_cli.errors import TransomError
from transom_cli.files import publish_text
from transom_cli.layout import AttemptDir
from transom_cli.slurm.port import Connect, Job, JobState, NoSuchJob, Slurm, Submission
from transom_cli.submit.render import sh, top_up_comment
from transom_cli.supervise.launcher.agents import Agents
from transom_cli.supervise.launcher.allocation import queue_waits
from transom_cli.supervise.launcher.history import excluded_nodes
from transom_cli.supervise.launcher.journal import say
from transom_cli.supervise.launcher.plan import Allocation, LaunchOptions

SOON, EVERY = 2.0, 30.0  # seconds between two looks at the job, at first and later
FIRST = 30.0  # seconds of "at first"
QUEUE = 3600.0  # seconds between two looks at the queue of the partition
ANSWER = 5.0  # seconds for a new agent to answer
SHORTEST = 120.0  # seconds of time limit that a top-up job is worth

_SCRIPT = """\
#!/bin/bash
# Holds nodes for a transom run, whose launcher starts ranks here. It ends when the run's attempt does.
cd {attempt} || exit 1
last= same=0
while [ ! -e outcome.json ] && [ $same -lt 36 ]; do
    sign=$(cat launcher.alive 2>/dev/null)
    if [ "$sign" = "$last" ]; then same=$((same + 1)); else same=0; fi
    last=$sign
    sleep 5
done
"""


class TopUps:
    """Events go into `inbox`. Every method returns at once, except `stop`."""

    def __init__(
        self,
        allocation: Allocation,
        options: LaunchOptions,
        attempt: AttemptDir,
        agents: Agents,
        connect: Connect,
        inbox: queue.SimpleQueue[Event],
    ) -> None:
        self._allocation, self._options, self._attempt = allocation, options, attempt
        self._agents, self._connect, self._inbox = agents, connect, inbox
        self._comment = top_up_comment(options.run.run_id, attempt.name)
        self._lock = threading.Lock()  # one thread at a time submits or cancels
        self._over = threading.Event()
        self._job = 0  # that was submitted and not cancelled

    def submit(self, action: SubmitTopUp) -> None:
        threading.Thread(target=self._submit, args=(action,), name="top-up", daemon=True).start()

    def cancel(self, job_id: int) -> None:
        threading.Thread(target=self._cancel, args=(job_id,), name="top-up", daemon=True).start()

    def follow_queue(self) -> None:
        """Report now, and every hour, for how long jobs of this partition waited in the queue."""

        def follow() -> None:
            while True:
                if waits := queue_waits(self._allocation.job_id, os.environ.get("SLURM_JOB_PARTITION", "")):
                    self._inbox.put(QueueSeen(0.0, waits))
                if self._over.wait(QUEUE):
                    return

        threading.Thread(target=follow, name="queue-waits", daemon=True).start()

    def stop(self, seconds: float = 10.0) -> None:
        """Cancel what exists; a job that could not be cancelled ends by itself."""
        self._over.set()
        thread = threading.Thread(target=self._cancel, args=(0,), name="top-up", daemon=True)
        if self._options.policy.top_up:
            thread.start()
            thread.join(seconds)

    def _submit(self, action: SubmitTopUp) -> None:
        try:
            with self._lock:
                slurm = self._connect(30.0)
                self._job = found = self._known(slurm) or self._submitted(slurm, action)
                if self._over.is_set():
                    slurm.cancel(found)
                    return
        except (OSError, TransomError) as error:
            why = getattr(error, "why", "") or str(error)
            self._inbox.put(TopUpSubmitted(0.0, 0, f"no further nodes can be asked for: {why}"))
            return
        self._inbox.put(TopUpSubmitted(0.0, found))
        self._follow(found)

    def _known(self, slurm: Slurm) -> int:
        """An existing job, whose submission was not answered; 0: none. Cancels what an earlier attempt has left."""
        living = [job for job in slurm.jobs() if not job.state.ended and not job.completing]
        for job in living:
            if job.comment != self._comment and job.comment.startswith(top_up_comment(self._options.run.run_id)):
                slurm.cancel(job.job_id)
        return next((job.job_id for job in living if self._is_ours(job)), 0)

    def _submitted(self, slurm: Slurm, action: SubmitTopUp) -> int:
        script = self._attempt.path / "top-up.sh"
        publish_text(script, _SCRIPT.format(attempt=sh(str(self._attempt.path))), private=True)
        ours = slurm.job(self._allocation.job_id).nodes  # Slurm may give what they have left to a second job
        excluded = sorted({*ours, *self._options.exclude, *action.without, *excluded_nodes(self._options.run)[0]})
        options = [*self._options.top_up, f"--comment={self._comment}", f"--nodes={action.least}-{action.most}"]
        options += [f"--exclude={','.join(excluded)}"] if excluded else []
        if action.seconds is not None:
            options.append(f"--time={max(1, int(max(action.seconds, SHORTEST) // 60))}")
        return slurm.submit(Submission(script, tuple(options), chdir=Path("/")))

    def _cancel(self, job_id: int) -> None:
        with self._lock:
            job_id, self._job = job_id or self._job, 0
            self._forget(job_id)
            if not job_id:
                return
            try:
                if self._is_ours(job := self._connect(10.0).job(job_id)):
                    self._connect(10.0).cancel(job.job_id)
            except NoSuchJob:
                pass
            except TransomError as error:
                say(f"transom: top-up job {job_id} ends by itself: {error.why or error.what}")

    def _is_ours(self, job: Job) -> bool:
        """Whether the job is the one that was submitted: Slurm may reuse an ID."""
        return job.comment == self._comment

    def _follow(self, job_id: int) -> None:
        """Report the job's start, its agents, and its end."""
        began, joined = time.monotonic(), False
        while self._job == job_id and (job := self._ended(job_id)) is not True:
            if isinstance(job, Job) and job.state is JobState.RUNNING and job.nodes and not job.completing:
                joined = joined or self._join(job)
                if joined:
                    self._inbox.put(TopUpStarted(0.0, job_id, job.nodes))  # until the state machine can take it
            if self._over.wait(SOON if time.monotonic() - began < FIRST else EVERY):
                return

    def _ended(self, job_id: int) -> Job | bool:
        """Return the job; True if it is over, which was reported; False if Slurm does not answer."""
        words = ""
        try:
            job = self._connect(10.0).job(job_id)
            if not job.state.ended and not job.completing and self._is_ours(job):
                return job
            words = job.state.value
        except NoSuchJob:
            words = "Slurm does not know it any more"
        except TransomError:
            return False
        with self._lock:
            if self._job == job_id:
                self._job = 0
                self._forget(job_id)
                self._inbox.put(TopUpEnded(0.0, job_id, words))
        return True

    def _forget(self, job_id: int) -> None:
        for node in [n for n, job in self._allocation.borrowed.items() if job == job_id]:
            del self._allocation.borrowed[node]

    def _join(self, job: Job) -> bool:
        """Start the agents of a job that has started. False: they do not answer yet."""
        new = tuple(n for n in job.nodes if n not in self._allocation.borrowed)
        self._allocation.borrowed.update(dict.fromkeys(job.nodes, job.job_id))
        try:
            if new:
                self._agents.add(new, self._connect, self._over.is_set)
        except (OSError, TransomError) as error:
            say(f"transom: no agents in top-up job {job.job_id}: {error}")
            return False
        return all(self._agents.ask(node, "probe", ANSWER).get("ok") for node in job.nodes)

    def look(self, nodes: tuple[str, ...]) -> None:
        """Report a top-up job that is over before the nodes of a launch are judged. Asks Slurm only if it had some."""
        job_id = self._job
        if job_id and any(self._allocation.borrowed.get(node) == job_id for node in nodes):
            self._ended(job_id)
