"""How many messages an hour: counted by the test itself, over random arrivals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from notify_made import news

from transom_cli.notify.delivery import CAP, HOUR, due, pause
from transom_cli.notify.events import Notification

arrivals = st.lists(st.tuples(st.sampled_from((0.0, 0.0, 1.0, 60.0, 900.0, 4000.0)), st.integers(0, 9)), max_size=60)


@given(arrivals, st.integers(1, 5))
def test_no_hour_has_more_than_its_share_and_nothing_is_lost(story: list[tuple[float, int]], per_hour: int) -> None:
    now, waiting, sent, found = 0.0, (), (), []  # type: ignore[var-annotated]
    came: list[Notification] = []
    for wait, how_many in [*story, (2 * HOUR, 0)]:
        until = now + wait
        while True:
            count, later = due(waiting, sent, now, per_hour)
            if count:
                found += waiting[:count]
                waiting, sent = waiting[count:], (*sent, now)
            elif now + later > until:
                break
            else:
                now += max(later, 1e-6)
        now = until
        new = tuple(news(f"k{len(came) + i}", at=now) for i in range(how_many))
        came += new
        waiting += new
    assert found == came
    for at in sent:
        assert sum(at - HOUR < other <= at for other in sent) <= per_hour


def test_a_few_are_reported_apart_and_more_as_one() -> None:
    few = tuple(news(f"k{i}") for i in range(3))
    assert due(few, (), 0.0, 20) == (1, 0.0)
    assert due((*few, news("k3")), (), 0.0, 20) == (4, 0.0)
    assert due(few, (), 0.0, 2) == (3, 0.0), "or the last of them would wait an hour"
    assert due((), (), 0.0, 20)[0] == 0


def test_what_ends_a_run_is_reported_at_once_with_all_that_waits() -> None:
    sent, waiting = (100.0, 200.0), (news("a"), news("b"))
    assert due(waiting, sent, 300.0, 2) == (0, 100.0 + HOUR - 300.0)
    assert due((*waiting, news("over", "failed")), sent, 300.0, 2) == (3, 0.0)


def test_messages_from_the_future_do_not_count() -> None:
    """A clock that was set back must not silence a target."""
    assert due((news("a"),), (9e9,) * 50, 300.0, 2) == (1, 0.0)


@given(st.integers(1, 10_000), st.floats(0, 1e9))
def test_the_pause_grows_and_has_an_end(failures: int, requested: float) -> None:
    assert 1.0 <= pause(failures, requested) <= 2 * CAP
    assert pause(failures) <= pause(failures + 1) <= CAP
    assert pause(failures, requested) >= min(requested, 2 * CAP)
