"""Each target's own thread: tries again, keeps to its pace, tells nothing twice, loses nothing, waits for nobody."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from notify_made import ABOUT, news, until

from transom_cli.notify.delivery import DELIVERED, DROPPED, GIVEN_UP, MAX_AGE, MOST, DeliveryLog, DeliveryWorker
from transom_cli.notify.messages import WEBHOOK, DeliveryError, Message, Target

TARGET = Target("ops", WEBHOOK)


class Outside:
    """What a target hears; `trouble` is raised first, one after the other."""

    def __init__(self, *trouble: Exception) -> None:
        self.trouble = list(trouble)
        self.heard: list[Message] = []
        self.tries = 0
        self.open = threading.Event()
        self.open.set()

    def __call__(self, found: Message, end: threading.Event) -> None:
        self.tries += 1
        self.open.wait()
        if self.trouble:
            raise self.trouble.pop(0)
        self.heard.append(found)

    @property
    def keys(self) -> list[str]:
        return [key for found in self.heard for key in found.keys]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "found"


def courier(
    folder: Path,
    outside: Outside,
    *,
    epoch: int = 1,
    per_hour: int = 20,
    target: Target = TARGET,
    clock: Callable[[], float] = time.time,
    wait: Callable[[int, float], float] = lambda _failures, _asked: 0.0,
) -> DeliveryWorker:
    return DeliveryWorker(target, ABOUT, outside, DeliveryLog(folder, epoch), per_hour, clock, wait)


def finish(one: DeliveryWorker) -> None:
    one.close(over=True)
    one.wait(20)


def test_what_fails_is_tried_again_until_it_is_reported_once(folder: Path) -> None:
    requested: list[tuple[int, float]] = []
    outside = Outside(DeliveryError("a"), DeliveryError("b", after=7.0), DeliveryError("c"))
    one = courier(folder, outside, wait=lambda n, after: requested.append((n, after)) or 0.0)  # type: ignore[func-returns-value]
    one.submit(news("i1/incident"))
    until(lambda: outside.heard)
    one.submit(news("i1/recovered", "recovered"))
    finish(one)
    assert outside.keys == ["i1/incident", "i1/recovered"] and outside.tries == 5
    assert requested == [(1, 0.0), (2, 7.0), (3, 0.0)]


def test_what_will_never_do_is_given_up_and_the_next_is_reported(folder: Path) -> None:
    outside = Outside(DeliveryError("404", again=False))
    one = courier(folder, outside)
    one.submit(news("a"))
    until(lambda: outside.tries == 1)
    one.submit(news("b"))
    finish(one)
    assert outside.keys == ["b"]
    assert DeliveryLog(folder, 2).counts() == {("ops", GIVEN_UP): 1, ("ops", DELIVERED): 1}


@pytest.mark.long
def test_at_the_end_of_a_run_nobody_waits_for_a_long_pause(folder: Path) -> None:
    outside = Outside(DeliveryError("down"))
    one = courier(folder, outside, wait=lambda *_: 3600.0)
    one.submit(news("over", "done"))
    until(lambda: outside.tries == 1)
    finish(one)
    assert outside.keys == ["over"]


def test_an_error_that_nobody_thought_of_costs_one_message(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    outside = Outside(ZeroDivisionError("SECRET"))
    one = courier(folder, outside)
    one.submit(news("a"))
    until(lambda: outside.tries == 1)
    one.submit(news("b"))
    finish(one)
    assert outside.keys == ["b"] and "cannot notify ops of a" in caplog.text


def test_nothing_is_reported_twice_also_by_the_next_operator(folder: Path) -> None:
    for epoch in (1, 2, 3):
        outside = Outside()
        one = courier(folder, outside, epoch=epoch)
        for _ in range(3):
            one.submit(news("a"))
            one.submit(news(f"only {epoch}"))
        finish(one)
        assert outside.keys == (["a"] if epoch == 1 else []) + [f"only {epoch}"]
    assert sorted(p.name for p in folder.iterdir()) == ["1.jsonl", "2.jsonl", "3.jsonl"]


def test_what_one_operator_could_not_tell_the_next_one_does(folder: Path) -> None:
    outside = Outside(*[DeliveryError("down")] * 1000)
    one = courier(folder, outside, wait=lambda *_: 0.01)
    one.submit(news("a"))
    until(lambda: outside.tries > 2)
    one.close(over=False)
    one.wait(20)
    assert not folder.exists()
    second = Outside()
    again = courier(folder, second, epoch=2)
    again.submit(news("a"))
    finish(again)
    assert second.keys == ["a"]


def test_a_torn_or_foreign_record_is_passed_over(folder: Path) -> None:
    folder.mkdir()
    found = json.dumps({"at": 1.0, "target": "ops", "how": "delivered", "keys": ["a"]})
    (folder / "1.jsonl").write_text(
        f'{found}\n[1]\n{{"target": 5}}\n{{"target": "ops", "keys": "a", "at": 1}}\n{found[:20]}'
    )
    ledger = DeliveryLog(folder, 2)
    assert ledger.known("ops", "a") and ledger.counts() == {("ops", DELIVERED): 1} and ledger.sent("ops") == (1.0,)


def test_what_a_target_did_not_ask_for_and_what_is_old_is_passed_over(folder: Path) -> None:
    outside, now = Outside(), time.time()
    one = courier(folder, outside, target=Target("ops", WEBHOOK, events=("incident", "failed")))
    one.submit(news("r", "recovered"))
    one.submit(news("old", at=now - MAX_AGE - 1))
    one.submit(news("new", at=now))
    one.submit(news("end", "failed", at=now - MAX_AGE - 1))
    finish(one)
    assert outside.keys == ["new", "end"]


def test_beyond_its_share_of_an_hour_news_wait_and_become_one(folder: Path) -> None:
    outside, now = Outside(), [1e9]
    one = courier(folder, outside, per_hour=2, clock=lambda: now[0])
    for key in ("a", "b"):
        one.submit(news(key, at=now[0]))
        until(lambda key=key: key in outside.keys)  # type: ignore[misc]
    for key in ("c", "d", "e"):
        one.submit(news(key, at=now[0]))
    time.sleep(0.2)
    assert outside.keys == ["a", "b"]
    now[0] += 3601
    one.submit(news("f", at=now[0]))
    finish(one)
    assert [found.keys for found in outside.heard] == [("a",), ("b",), ("c", "d", "e", "f")]
    assert "(and 3 more)" in outside.heard[-1].subject


def test_the_share_of_an_hour_holds_over_a_restart_of_the_operator(folder: Path) -> None:
    outside, clock = Outside(), lambda: 1e9
    first = courier(folder, outside, per_hour=1, clock=clock)
    first.submit(news("a", at=1e9))
    finish(first)
    second = courier(folder, outside, epoch=2, per_hour=1, clock=clock)
    second.submit(news("b", at=1e9))
    time.sleep(0.2)
    assert outside.keys == ["a"]
    second.submit(news("over", "done", at=1e9))
    finish(second)
    assert outside.heard[-1].keys == ("b", "over"), "the end is reported at once, with what waited"


def test_while_a_target_hangs_news_cost_no_time_and_a_bounded_room(folder: Path) -> None:
    outside = Outside()
    outside.open.clear()
    one = courier(folder, outside)
    for i in range(10 * MOST):
        one.submit(news(f"k{i}"))
    assert not outside.heard, "none of them waited for the first"
    assert len(one._waiting) == MOST
    outside.open.set()
    finish(one)
    assert outside.keys[0] == "k0" and outside.keys[-1] == f"k{10 * MOST - 1}"
    counts = DeliveryLog(folder, 2).counts()
    assert counts["ops", DROPPED] == 9 * MOST - 1 and counts["ops", DELIVERED] == len(outside.heard)


def test_a_disk_that_is_full_stops_no_message(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.write_text("no folder")
    outside = Outside()
    one = courier(folder, outside)
    one.submit(news("a"))
    finish(one)
    assert outside.keys == ["a"] and "cannot record sent notifications" in caplog.text


def test_the_loop_waits_for_no_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger's fsync hangs, as on a file server that is gone; `tell` comes back all the same."""
    hangs, outside = threading.Event(), Outside()
    monkeypatch.setattr("transom_cli.notify.delivery.os.fsync", lambda _: hangs.wait(60))
    one = courier(folder, outside)
    one.submit(news("a"))
    until(lambda: outside.heard)
    for i in range(100):
        one.submit(news(f"b{i}"))
    assert not hangs.is_set() and one._log.known("ops", "a")
    hangs.set()
    finish(one)


def test_the_thread_begins_with_the_first_news(folder: Path) -> None:
    one = courier(folder, Outside())
    assert f"notify-{TARGET.name}" not in {thread.name for thread in threading.enumerate()}
    finish(one)
