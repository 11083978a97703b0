"""A circuit breaker around any adapter: all that one process asks of a Slurm that does not answer, taken together.

An operator has many hands, and each has reason to ask: its look at the job, probes, drains, a comment. A controller
that is overloaded must not get all of them, each with tries of its own. After an answer that did not come, one call is
let through when the back-off is over; the others are told so at once, and reach nobody. Any answer lets all through.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from transom_cli.slurm.port import Slurm, SlurmUnknown
from transom_cli.slurm.retry import backoff

ON_TRIAL = 1.0  # seconds to come again while another call is finding out
_ELSEWHERE = ("history", "close")  # these ask accounting, or nobody: they tell nothing of slurmctld


class NotAsked(SlurmUnknown):
    """Slurm has not answered another call, and is not asked before `seconds` are over. The words are that call's."""

    def __init__(self, of: SlurmUnknown, seconds: float) -> None:
        super().__init__(of.what, of.why, of.hint)
        self.seconds = seconds


class Breaker:
    """Whether Slurm may be asked now. Of all threads of a process; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tries = 0  # in a row that were not answered
        self._not_before = 0.0
        self._trial = False  # a call is finding out
        self._error: SlurmUnknown | None = None

    def enter(self) -> int:
        """A number for `failed`; NotAsked when it is too early."""
        with self._lock:
            if self._error is None:
                return self._tries
            left = self._not_before - self._clock()
            if left > 0 or self._trial:
                raise NotAsked(self._error, left if left > 0 else ON_TRIAL)
            self._trial = True
            return self._tries

    def answered(self) -> None:
        with self._lock:
            self._tries, self._error, self._trial = 0, None, False

    def failed(self, entered: int, error: SlurmUnknown) -> None:
        """Calls that were under way together count as one."""
        with self._lock:
            if entered != self._tries:
                return
            self._tries += 1
            self._error, self._trial = error, False
            self._not_before = self._clock() + backoff(self._tries)


def patient(slurm: Slurm, breaker: Breaker) -> Slurm:
    """`slurm`, whose calls raise NotAsked, and reach nobody, as long as the breaker is open."""
    return cast(Slurm, _Patient(slurm, breaker))


class _Patient:
    def __init__(self, slurm: Slurm, breaker: Breaker) -> None:
        self._slurm, self._breaker = slurm, breaker

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._slurm, method)
        if method in _ELSEWHERE:
            return call

        def guarded(*args: Any, **options: Any) -> Any:
            entered = self._breaker.enter()
            try:
                answer = call(*args, **options)
            except SlurmUnknown as error:
                self._breaker.failed(entered, error)
                raise
            except BaseException:
                self._breaker.answered()  # Slurm has spoken; or the fault is ours, and says nothing of it
                raise
            self._breaker.answered()
            return answer

        return guarded
