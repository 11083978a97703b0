from __future__ import annotations

import pytest

from transom_cli.slurm.guards import backoff, retry_unanswered
from transom_cli.slurm.port import NoSuchJob, SlurmUnknown


class Ticker:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now


def test_the_schedule_doubles_up_to_its_cap() -> None:
    assert [backoff(n) for n in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff(10_000) == 30


def test_unknown_result_is_retried_until_known() -> None:
    time = Ticker()
    answers = iter([SlurmUnknown("no answer"), SlurmUnknown("no answer"), 7])

    def call() -> int:
        answer = next(answers)
        if isinstance(answer, SlurmUnknown):
            raise answer
        return answer

    assert retry_unanswered(call, 60, time.sleep, time.clock) == 7
    assert time.slept == [0.5, 1]


def test_the_deadline_ends_it_with_the_last_error() -> None:
    time = Ticker()
    tries = []

    def call() -> None:
        tries.append(time.now)
        raise SlurmUnknown(f"no answer at {time.now}")

    with pytest.raises(SlurmUnknown, match=r"no answer at 3.5"):
        retry_unanswered(call, 5, time.sleep, time.clock)
    assert tries == [0, 0.5, 1.5, 3.5]


def test_refusal_is_not_retried() -> None:
    time = Ticker()

    def call() -> None:
        raise NoSuchJob("forgotten")

    with pytest.raises(NoSuchJob):
        retry_unanswered(call, 60, time.sleep, time.clock)
    assert time.slept == []
