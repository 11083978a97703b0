"""One Slurm client for all runs of a user on a host: they share its answers, its process and its circuit breaker."""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from transom_cli.core.operator.cadence import SHARED, new_enough
from transom_cli.slurm.guards import CircuitBreaker
from transom_cli.slurm.port import Job, JobState, Slurm, SlurmUnknown

T = TypeVar("T")
_CHANGES = ("requeue", "requeue_hold", "shrink", "update_pending", "keep_nodes", "release", "start_now", "cancel")
"""Calls that change the job that is their first argument. A list of jobs from before one shows a state that is over."""


class SharedSlurm:
    """Answers questions about single jobs from one list of all of the user's jobs.

    Args:
        slurm: the client.
        read_name: asks the controller for the name of its cluster.
        clock: returns seconds.
    """

    def __init__(self, slurm: Slurm, read_name: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        self.slurm, self.breaker = slurm, CircuitBreaker(clock)
        self._runs = 0  # how many ask now
        self._read_name, self._clock = read_name, clock
        self._lock = threading.Lock()  # one question at a time
        self._name: tuple[str, int] | None = None  # and how many outages there had been
        self._jobs: dict[int, Job] = {}
        self._suspended: dict[int, Job] = {}  # in full: a list does not say since when
        self._began, self._took = float("-inf"), 0.0  # of the last list
        self._changed: dict[int, float] = {}  # by job: when its run last changed it, after the last list
        self._failed: tuple[float, SlurmUnknown] | None = None  # when the last failed question began

    def count(self, runs: int) -> None:
        """Add to the number of runs that use this client, or subtract from it."""
        with self._lock:
            self._runs += runs

    def rest(self) -> float:
        """Return the seconds until the next list that is not urgent: until then, runs gather for it."""
        return max(0.0, self._began + SHARED - self._clock()) if self._runs > 1 else 0.0

    def ask(self, job_id: int, age: float) -> Job:
        """Return a job from an answer that is at most `age` seconds old (`new_enough`). Raises the port's errors."""
        if self._runs <= 1:
            return self.slurm.job(job_id)  # the smaller answer, and a complete one
        since = self._clock()
        with self._lock:
            if self._began < max(self._changed.get(job_id, 0.0), since - new_enough(age, self._took)):
                self._call(self._ask_all, since)
            job = self._jobs.get(job_id)
            if job is not None and job.state is not JobState.SUSPENDED:
                return job
            if job is None or job_id not in self._suspended:
                self._suspended[job_id] = self._call(lambda: self.slurm.job(job_id), since)
            return self._suspended[job_id]

    def changing(self, call: Callable[..., T]) -> Callable[..., T]:
        """Return a call after which older lists say nothing about its job."""

        def changed(job_id: int, *args: Any, **kwargs: Any) -> T:
            try:
                return call(job_id, *args, **kwargs)
            finally:
                self._changed[job_id] = self._clock()

        return changed

    def cluster_name(self) -> str:
        """Return the controller's name for its cluster, which is read again after an outage."""
        since = self._clock()
        with self._lock:
            if self._name is None or self._name[1] != self.breaker.outages:
                outages = self.breaker.outages
                self._name = self._call(self._read_name, since), outages
            return self._name[0]

    def _call(self, question: Callable[[], T], since: float) -> T:
        """Ask, unless a question failed while this run waited for its turn: then this one fails in the same way."""
        if self._failed is not None and self._failed[0] >= since:
            raise self._failed[1]
        began = self._clock()
        try:
            return question()
        except SlurmUnknown as error:
            self._failed = began, error
            raise

    def _ask_all(self) -> None:
        began = self._clock()
        jobs = self.slurm.jobs()
        self._began, self._took = began, self._clock() - began
        self._changed = {job_id: at for job_id, at in self._changed.items() if at > began}
        self._jobs = {job.job_id: job for job in jobs}
        stopped = {job.job_id for job in jobs if job.state is JobState.SUSPENDED}
        self._suspended = {key: job for key, job in self._suspended.items() if key in stopped}


class RunSlurm:
    """The client of one run: jobs are submitted with the run's own environment, all else is shared."""

    def __init__(self, shared: SharedSlurm, own: Slurm) -> None:
        self.submit = own.submit
        self.ask = shared.ask
        self._shared = shared

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._shared.slurm, method)
        return self._shared.changing(found) if method in _CHANGES else found
