"""The launcher's core, whatever it hears: nothing starts beside what may still live, and every budget ends."""

from __future__ import annotations

from dataclasses import replace

from core_ladder import NODES, SPARE, exits, fresh
from core_policy import report_rules
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.core import launcher as sh
from transom_cli.core.events import Stall
from transom_cli.core.launcher import Memory, Rung, decide
from transom_cli.core.policy import Rule

launches, steps = st.integers(0, 4), st.integers(-1, 30)
some_exits = st.lists(st.sampled_from([None, 0, 1, 2, 15, 93, -9, -15]), min_size=3, max_size=3).map(
    lambda c: exits(*c)
)
some_nodes = st.lists(st.sampled_from((*NODES, SPARE, "n9")), max_size=2).map(tuple)
at = st.just(0.0)
reported = st.one_of(
    st.builds(
        sh.Reported, at, launches, st.just("slow_node:n2"), st.just("slow_node"), st.just("slow"), steps, some_nodes,
        over=st.booleans(),
    ),
    st.builds(
        sh.Reported, at, launches, st.just("nan_loss"), st.just("nan_loss"), st.just("no number"), steps, st.just(()),
        before=steps, back_to=steps, over=st.booleans(),
    ),
)  # fmt: skip
stories = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.1, 2.0, 150.0]),
        st.one_of(
            st.builds(sh.Tick, at),
            st.builds(sh.Begun, at, steps, memory=st.booleans()),
            st.builds(sh.Exits, at, launches, some_exits, st.booleans(), st.sampled_from([None, 0, 1])),
            st.builds(
                sh.Stalled,
                at,
                launches,
                st.builds(Stall, steps, st.just(9.0), st.just(8.0), st.just((1,)), some_nodes),
            ),
            st.builds(sh.Stepped, at, launches, steps),
            st.builds(sh.Durable, at, steps),
            st.builds(
                sh.Ended,
                at,
                launches,
                some_exits,
                some_nodes,
                st.sampled_from([(), (("n1", "process 5"),)]),
            ),
            st.builds(sh.Read, at, launches, st.sampled_from(["user", "peer", "unknown"]), st.sampled_from(["", "x"])),
            st.builds(sh.Told, at, st.just("TERM")),
            st.builds(sh.Appeared, at, launches),
            st.builds(sh.NotStarted, at, launches, st.just("no space")),
            st.builds(sh.Overtime, at),
            st.builds(sh.Spare, at, st.sampled_from([SPARE, "n2"]), st.booleans()),
            st.builds(sh.Warned, at),
            reported,
            st.builds(sh.Silent, at, st.sampled_from([SPARE, "n2"]), st.sampled_from([1.0, 20.0, 50.0])),
            st.builds(sh.Draining, at, some_nodes, st.just("fan")),
            st.builds(sh.Flushing, at, launches, steps, st.just(""), st.booleans()),
            st.builds(sh.Kept, at, launches, steps, st.sampled_from(["", "step 9 was made durable from memory"])),
        ),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2), st.booleans(), st.one_of(st.just(()), report_rules), stories)
def test_promises(relaunches: int, spare: bool, rules: tuple[Rule, ...], story: list[tuple[float, sh.Heard]]) -> None:
    allocated = (*NODES, SPARE) if spare else NODES
    state, now = fresh(allocated, relaunches=relaunches), 0.0
    state = replace(state, policy=replace(state.policy, rules=rules))
    by_reports = sum(rule.budget or 0 for rule in rules) * 2  # each rule's budget, for either thing that is reported
    clean: set[int] = set()  # launches of which nothing is left, by their agents' word
    asked: set[int] = set()
    started: list[int] = []
    in_vain, best, swaps = 0, -1, 0
    abandoned: set[str] = set()
    left, keeping = False, None
    for pause, heard in story:
        now += pause
        heard = replace(heard, at=now)
        before = state
        state, orders = decide(state, heard)
        assert not (left and (orders or state != before)), "nothing follows the outcome"
        counts = before.rung is Rung.ENDING and isinstance(heard, sh.Ended) and heard.launch == before.launch
        if counts:
            clean.add(heard.launch)
            abandoned = {*heard.unheard, *(node for node, _ in heard.survivors)}
        for order in orders:
            if isinstance(order, sh.Start):
                assert order.launch == len(started) and len(set(order.nodes)) == 3
                assert list(order.nodes) == [n for n in allocated if n in order.nodes], "in Slurm's order"
                assert not set(order.nodes) & set(state.given_up)
                assert not before.told or not started
                if started:
                    assert order.launch - 1 in clean, "beside what may still live"
                    assert not abandoned & set(order.nodes), "where something may still live"
                    swaps += order.nodes != before.nodes
                    reached = state.durable if state.durable >= 0 else state.max_step
                    in_vain, best = (1, reached) if reached > best else (in_vain + 1, best)
                    assert in_vain <= 4 * relaunches * (1 + swaps) + swaps + by_reports, (
                        "each of the causes has its budget"
                    )
                    assert swaps <= len(allocated) - 3
                else:
                    best = state.progress
                started.append(order.launch)
            if isinstance(order, sh.Keep):
                assert keeping is None, "once"
                keeping = now
            if isinstance(order, sh.End):
                assert order.launch == state.launch and order.launch not in asked
                asked.add(order.launch)
            if isinstance(order, sh.Leave):
                left = True
                told = order.outcome
                assert set(told.missing) | set(told.suspects) | set(told.blamed) <= set(allocated)
                assert order.again in ("", "requeue", "hold", "uncancelled")
                at_once = told.status == "done" or state.saved or isinstance(heard, sh.Overtime)
                assert at_once or before.memory is Memory.NONE or keeping is not None
                assert order.again not in ("requeue", "hold") or told.status in ("failed", "left")
                assert order.again != "uncancelled" or state.told or isinstance(heard, sh.Overtime)
                assert (told.status == "done") == (order.exit_code == 0)
                if told.status == "done":
                    assert len(state.exits) == 3 or state.srun == 0
                    assert not any(x.bad for x in state.exits)
