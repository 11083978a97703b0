"""The launcher's core: what the nodes hold in memory becomes durable before an attempt is given up."""

from __future__ import annotations

from core_ladder import NODES, exits, feed, fresh, outcome

from transom_cli.core import launcher as sh
from transom_cli.core.launcher import LadderState, Order

MADE = "step 9 was made durable from memory"


def training(**policy: float) -> LadderState:
    """Step 4 is durable, step 9 is done."""
    begun = sh.Begun(0.0, memory=True)
    return feed(fresh(**policy), begun, sh.Stepped(5.0, 0, 4), sh.Durable(6.0, 4), sh.Stepped(7.0, 0, 9))[0]


def died(state: LadderState, at: float = 9.0) -> tuple[LadderState, list[Order]]:
    """A rank; the rest is ended, the logs say nothing."""
    ends = (sh.Exits(at, 0, exits(None, -9, None)), sh.Tick(at + 2), sh.Ended(at + 3, 0))
    return feed(state, *ends, sh.Read(at + 4, 0, "unknown", ""))


def test_a_launch_that_is_started_again_finds_its_memory_and_nothing_is_written() -> None:
    _, orders = died(training())
    assert sh.Start(1, NODES) in orders and sh.Keep(0) not in orders


def test_an_attempt_that_is_handed_up_waits_for_what_is_in_memory() -> None:
    state, orders = died(training(relaunches=0))
    assert orders[-1] == sh.Keep(0) and not any(isinstance(o, sh.Leave) for o in orders)
    assert feed(state, sh.Tick(14.0), sh.Stepped(15.0, 0, 99), sh.Exits(15.0, 0, exits(0, 0, 0)))[1] == []
    _, orders = feed(state, sh.Kept(16.0, 0, 9, MADE))
    left = outcome(orders)
    assert orders[0] == sh.Tell("", "kept", MADE)
    assert (left.outcome.status, left.outcome.durable, left.again) == ("failed", 9, "requeue")
    assert left.outcome.why.endswith(f"; {MADE}")


def test_progress_that_only_memory_holds_counts_once_it_is_durable() -> None:
    def after(kept: int) -> str:
        begun = sh.Begun(0.0, durable=4, stuck=3, memory=True)
        state, _ = died(feed(fresh(relaunches=0), begun, sh.Stepped(5.0, 0, 9))[0])
        return outcome(feed(state, sh.Kept(16.0, 0, kept, "words"))[1]).again

    assert (after(9), after(4)) == ("requeue", "hold")


def test_where_nothing_is_in_memory_nothing_is_said() -> None:
    state, _ = died(training(relaunches=0))
    _, orders = feed(state, sh.Kept(13.2, 0, 4))
    assert len(orders) == 1 and outcome(orders).outcome.durable == 4
    assert "memory" not in outcome(orders).outcome.why


def test_it_is_not_waited_for_without_end() -> None:
    state, _ = died(training(relaunches=0))
    assert feed(state, sh.Tick(27.9))[1] == []
    left, orders = feed(state, sh.Tick(28.0))
    assert outcome(orders).outcome.why.endswith("did not become durable in time")
    assert feed(left, sh.Kept(29.0, 0, 9, MADE))[1] == [], "the outcome stands"


def test_told_to_end_with_ranks_that_hang_memory_is_written_in_time() -> None:
    state, orders = feed(training(), sh.Told(20.0, "SIGTERM"), sh.Flushing(20.5, 0, 30), sh.Tick(27.9))
    assert sh.Keep(0) not in orders
    state, orders = feed(state, sh.Tick(28.0), sh.Tick(29.0))
    assert orders == [sh.Keep(0)], "once"
    kept, _ = feed(state, sh.Kept(31.0, 0, 9, MADE))
    _, orders = feed(kept, sh.Tick(40.0), sh.Overtime(47.0))
    told = outcome(orders).outcome
    assert (told.status, told.durable) == ("stopped", 9) and told.why.endswith(f"the newest durable step is 9; {MADE}")
    _, orders = feed(state, sh.Overtime(47.0))
    told = outcome(orders).outcome
    assert told.durable == 4 and "held in memory did not become durable in time" in told.why


def test_told_to_end_with_ranks_that_save_memory_is_left_alone() -> None:
    state, _ = feed(training(), sh.Told(20.0, "SIGTERM"), sh.Flushing(20.5, 0, 12), sh.Durable(25.0, 12))
    _, orders = feed(state, sh.Tick(29.0), sh.Ended(30.0, 0))
    assert outcome(orders).outcome.why == "told to stop by SIGTERM; step 12 is durable"
    assert sh.Keep(0) not in orders


def test_told_to_end_while_memory_is_being_written_the_end_comes_in_time() -> None:
    state, _ = died(training(relaunches=0, keeping=100))
    _, orders = feed(state, sh.Told(14.0, "SIGTERM"), sh.Tick(30.0), sh.Overtime(41.0))
    told = outcome(orders).outcome
    assert told.status == "failed" and told.why.endswith("did not become durable in time")


def test_a_training_that_is_done_needs_no_memory() -> None:
    _, orders = feed(training(), sh.Exits(9.0, 0, exits(0, 0, 0)))
    assert outcome(orders).outcome.status == "done"
