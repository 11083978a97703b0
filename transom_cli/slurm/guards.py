"""Wrappers around any Slurm adapter: retries with back-off, a circuit breaker, and a check of the cluster's name.

The circuit breaker combines what all threads of a process request. An operator polls the job, probes nodes, drains and
sets comments; an overloaded controller must not get retries from each of them. After a call without an answer, one
trial call is allowed when the back-off ends. All other calls fail at once without contacting Slurm, until any call is
answered.

The cluster check exists because two controllers use the same job IDs. A login node may get another slurm.conf, a
cluster may be renamed, and a run may be attached from elsewhere. Nothing is requested until the controller has
confirmed its name.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from transom_cli.slurm.port import Slurm, SlurmUnknown

T = TypeVar("T")
TRIAL_WAIT = 1.0  # seconds until the next call may be made while a trial call is in flight
_NOT_CONTROLLER = ("history", "close")  # these call accounting or nothing, so they say nothing about slurmctld


def backoff(tries: int, *, first: float = 0.5, cap: float = 30.0) -> float:
    """Return the seconds to wait after `tries` (1, 2, ...) unanswered calls: 0.5, 1, 2, 4 ..., at most `cap`."""
    return min(cap, first * 2.0 ** min(tries - 1, 40))


def retry_unanswered(
    call: Callable[[], T],
    deadline: float,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
    *,
    first: float = 0.5,
    cap: float = 30.0,
) -> T:
    """Call `call`, and repeat it with back-off after each SlurmUnknown until `deadline` (seconds on `clock`).

    `call` runs at least once, even after the deadline. Never use this for `submit`: after a lost answer it would
    submit a second job.

    Raises:
        SlurmUnknown: the last one, at the deadline. Any other error is raised at once, since Slurm has answered.
    """
    tries = 0
    while True:
        try:
            return call()
        except SlurmUnknown:
            tries += 1
            delay = backoff(tries, first=first, cap=cap)
            if clock() + delay > deadline:
                raise
        sleep(delay)


class CircuitOpen(SlurmUnknown):
    """Slurm did not answer an earlier call, so this one was not sent. Retry after `seconds`."""

    def __init__(self, cause: SlurmUnknown, seconds: float) -> None:
        super().__init__(cause.what, cause.why, cause.hint)
        self.seconds = seconds


class CircuitBreaker:
    """Decides whether Slurm may be called now. Shared by all threads of a process; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.outages = 0  # unanswered calls so far
        self._failures = 0  # consecutive unanswered calls
        self._not_before = 0.0
        self._trial = False  # a trial call is in flight
        self._error: SlurmUnknown | None = None

    def enter(self) -> int:
        """Return a token for `failed`. Raises CircuitOpen while no call is allowed."""
        with self._lock:
            if self._error is None:
                return self._failures
            left = self._not_before - self._clock()
            if left > 0 or self._trial:
                raise CircuitOpen(self._error, left if left > 0 else TRIAL_WAIT)
            self._trial = True
            return self._failures

    def answered(self) -> None:
        with self._lock:
            self._failures, self._error, self._trial = 0, None, False

    def failed(self, token: int, error: SlurmUnknown) -> None:
        """Count an unanswered call. Calls that were in flight at the same time count once."""
        with self._lock:
            if token != self._failures:
                return
            self._failures += 1
            self.outages += 1
            self._error, self._trial = error, False
            self._not_before = self._clock() + backoff(self._failures)


def with_circuit_breaker(slurm: Slurm, breaker: CircuitBreaker) -> Slurm:
    """Return a client whose calls raise CircuitOpen, without contacting Slurm, while the breaker is open."""
    return cast(Slurm, _WithCircuitBreaker(slurm, breaker))


class _WithCircuitBreaker:
    def __init__(self, slurm: Slurm, breaker: CircuitBreaker) -> None:
        self._slurm, self._breaker = slurm, breaker

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._slurm, method)
        if method in _NOT_CONTROLLER:
            return call

        def guarded(*args: Any, **options: Any) -> Any:
            token = self._breaker.enter()
            try:
                answer = call(*args, **options)
            except SlurmUnknown as error:
                self._breaker.failed(token, error)
                raise
            except BaseException:
                self._breaker.answered()  # Slurm answered, or the fault is on our side
                raise
            self._breaker.answered()
            return answer

        return guarded


class WrongCluster(SlurmUnknown):
    """This host's Slurm is not the cluster that has the run's job."""

    kind = "wrong_cluster"


def require_name(expected: str, actual: str) -> None:
    """Raise WrongCluster unless the controller reports the cluster name of the run."""
    if actual != expected:
        raise WrongCluster(
            "This host's Slurm is not the cluster that has this run's job",
            f"the job was submitted to cluster `{expected}`, and this is `{actual or 'a cluster without a name'}`",
            f"attach on a host whose Slurm commands use `{expected}`: scontrol show config | grep ClusterName\n"
            "if that cluster was renamed: cancel the job with scancel and start a new run, which resumes from the "
            "checkpoints (docs/sites.md)",
        )


def pinned_to_cluster(slurm: Slurm, name: str, read_name: Callable[[], str]) -> Slurm:
    """Return a client whose calls raise WrongCluster unless `read_name()`, the controller's cluster name, is `name`.

    The name is read before the first call and after each unanswered call: another controller can only answer after
    the first one was unreachable.
    """
    return cast(Slurm, _PinnedToCluster(slurm, name, read_name))


class _PinnedToCluster:
    def __init__(self, slurm: Slurm, name: str, read_name: Callable[[], str]) -> None:
        self._slurm, self._name, self._read_name = slurm, name, read_name
        self._confirmed = False

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._slurm, method)

        def checked(*args: Any, **options: Any) -> Any:
            if not self._confirmed:
                require_name(self._name, self._read_name())
                self._confirmed = True
            try:
                return call(*args, **options)
            except SlurmUnknown:
                self._confirmed = False
                raise

        return checked
