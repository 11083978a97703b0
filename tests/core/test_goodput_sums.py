"""Whatever the journals say, and in whatever order: each nanosecond counts once, and to a kind that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from core_alphabet import events as any_event
from goodput_world import Launched, accounted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transom_cli.core import events as ev
from transom_cli.core.goodput import NS, Kind, account, attempt_of, history
from transom_cli.core.goodput.model import Attempt, History, Launch, Observation, Sample, Sign
from transom_cli.core.goodput.partition import partition
from transom_cli.core.operator.state import State

QUICK = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])

times = st.integers(-10, 110)
maybe = st.none() | times
samples = st.lists(st.builds(Sample, times, st.integers(-1, 50), st.none() | st.integers(0, 40)), max_size=5)
signs = st.builds(Sign, times, st.sampled_from(("i1", "i2", "l1")), st.sampled_from(("", "gpu_hardware")))
launches = st.builds(Launch, st.integers(0, 3), times, samples.map(tuple), st.booleans())
attempts = st.builds(
    Attempt,
    st.sampled_from(("7.0", "7.1", "8.0")),
    maybe,
    maybe,
    st.lists(launches, max_size=3).map(tuple),
    st.lists(signs, max_size=3).map(tuple),
    maybe,
    st.sampled_from(("", "done", "failed", "left", "stopped")),
    step=st.integers(-1, 60),
    handoff=maybe,
    held=st.booleans(),
    launcher=st.booleans(),
)
observations = st.builds(
    Observation, times, st.sampled_from(list(Kind)), st.sampled_from(("", "7.0", "7.1", "8.0")), st.booleans()
)
histories = st.builds(
    History,
    st.just(0),
    st.integers(0, 100),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.lists(observations, max_size=6).map(tuple),
    st.lists(attempts, max_size=3).map(tuple),
    st.lists(st.tuples(st.sampled_from(("7.0", "7.1")), signs), max_size=3).map(tuple),
    maybe,
)


@QUICK
@given(histories)
def test_spans_follow_each_other_and_fill_the_run(result: History) -> None:
    spans, causes = partition(result)
    at = result.begin
    for span in spans:
        assert span.begin == at < span.end
        at = span.end
    assert at == max(result.until, result.begin)
    assert {span.cause for span in spans} - {""} <= {cause.key for cause in causes}
    found = account(result)
    assert found.whole.wall == result.until - result.begin
    lost = sum(sums.wall for _, sums in found.by_cause)
    assert lost == sum(one.sums.wall for one in found.by_category) <= found.whole.wall
    assert sum(one.causes for one in found.by_category) == len(found.by_cause)


wall = st.floats(0, 300) | st.sampled_from((float("nan"), -1.0, 1e300, "x", None))
records = st.fixed_dictionaries(
    {"type": st.sampled_from(("attempt", "launch", "recovery", "outcome", "requeued", "signal")), "wall": wall},
    optional={
        "launch": st.integers(-1, 3) | st.just("x"),
        "what": st.sampled_from(("seen", "checked", "diagnosed", 3)),
        "incident": st.sampled_from(("", "l1", "l2")),
        "status": st.sampled_from(("done", "failed", "left")),
        "how": st.sampled_from(("requeued", "held", "?")),
        "decided": st.just({"category": "x"}) | st.just(3),
    },
)
reached = st.fixed_dictionaries(
    {"wall": wall, "launch": st.integers(0, 2), "step": st.integers(-1, 90)},
    optional={"seconds": st.dictionaries(st.just("checkpoint"), st.floats() | st.just("x")) | st.just(3)},
)
stories = st.lists(st.tuples(st.floats(0, 20), any_event), max_size=40)


@QUICK
@given(stories, st.lists(records, max_size=12), st.lists(reached, max_size=8), st.booleans())
def test_any_events_beside_any_records(
    story: Sequence[tuple[float, ev.Event]],
    journal: list[dict[str, Any]],
    progress: list[dict[str, Any]],
    alive: bool,
) -> None:
    launcher, now, events = Launched("7.0", 1.0), 0.0, []
    launcher.journal += journal
    launcher.progress += progress
    for pause, event in story:
        now += pause
        events.append(replace(event, at=now))
    accounted(events, launcher, now=now + 5, alive=alive)  # holds the sums


@QUICK
@given(st.lists(st.tuples(st.floats(0.5, 50), st.integers(1, 40)), min_size=1, max_size=20), st.integers(0, 60))
def test_what_is_lost_is_done_again_and_no_step_is_productive_twice(
    stretches: list[tuple[float, int]], back: int
) -> None:
    """Steps of one length, faults in between: the productive time is that of the distinct steps, first ones apart."""
    launcher, now, best, distinct = Launched("7.0", 0.0), 1.0, 0, 0
    for number, (length, steps) in enumerate(stretches):
        launcher.launch(now)
        begin = max(0, best - back) if number else 0
        first = (now + length, begin + 1)
        last = (first[0] + steps, begin + 1 + steps)
        launcher.steps(first, last).fault(last[0] + 2, f"l{number + 1}")
        distinct += max(0, last[1] - max(best, first[1]))
        best, now = max(best, last[1]), last[0] + 5
    result = attempt_of("7.0", launcher.journal, launcher.progress, {})
    seen = [(ev.Started(0.0, 1), State())]
    whole = account(history(seen, [result], now, alive=True)).whole
    assert abs(whole.ns[Kind.PRODUCTIVE] - distinct * NS) <= 2 * len(stretches)  # ns, for the rounding of each crossing
    assert abs(whole.ns[Kind.DETECTION] - 2 * NS * len(stretches)) <= 2 * len(stretches)
