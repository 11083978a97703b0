"""Who computes wrong, from guards' reports: transient, permanent and data-dependent faults, and software."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import pytest

from transom_cli.core.codec import build, plain
from transom_cli.core.silent import PATIENCE, PRODUCT, REPLICA, VALUE, Found, Guarded, SilentState, watch
from transom_cli.diagnose.clue import Silent

NODES = ("n1", "n2", "n3", "n4")


def event(kind: str, ranks: Iterable[int], step: int = 50, **more: Any) -> dict[str, Any]:
    base = {"kind": kind, "item": "w", "words": "w differs", "step": step, "ranks": tuple(ranks), "clean": 40}
    return {**base, "majority": True, "digests": (), "repeat": 0, "equal": (), **more}


def guards(
    nodes: tuple[str, ...], events: dict[int, dict[str, Any]], repeated: dict[str, Any] | None = None
) -> list[Guarded]:
    """Events by rank."""
    return [
        Guarded(r, n, {"step": 60, "events": [events[r]] if r in events else [], "repeated": repeated})
        for r, n in enumerate(nodes)
    ]


def judge(state: SilentState, launch: int, seen: list[Guarded]) -> tuple[SilentState, list[Found]]:
    found: list[Found] = []
    for _ in range(PATIENCE + 2):
        state, some = watch(state, launch, seen)
        found += some
    return state, found


def turned(nodes: tuple[str, ...]) -> tuple[str, ...]:
    return (*nodes[1:], nodes[0])


def differ(odd: tuple[int, ...], digests: tuple[str, ...], **more: Any) -> dict[int, dict[str, Any]]:
    """Every rank reports a difference of replicas."""
    return {r: event(REPLICA, odd, digests=digests, **more) for r in range(len(digests))}


def test_a_doubt_goes_back_to_the_last_clean_step_and_isolates_nobody() -> None:
    state, (found,) = judge(SilentState(), 0, guards(NODES, differ((1,), ("a", "b", "a", "a"))))
    assert (found.what, found.nodes, found.before) == (Silent.CORRUPTION, ("n2",), 40)
    assert "doubtful from step 41 on" in found.words and state.open is not None


@pytest.mark.parametrize(("digest", "what"), [("a", Silent.NODE), ("c", Silent.OPEN)])
def test_the_repetition_tells_who_was_wrong_once_if_it_is_deterministic(digest: str, what: Silent) -> None:
    state, _ = judge(SilentState(), 0, guards(NODES, differ((1,), ("a", "b", "a", "a"))))
    again = guards(turned(NODES), {}, {"step": 50, "digest": digest})
    state, (found,) = judge(state, 1, again)
    assert (found.what, found.nodes) == (what, ("n2",) if what is Silent.NODE else ())
    assert found.before == -1, "the present state is clean"


@pytest.mark.parametrize(("same", "what"), [([2, 5], Silent.NODE), ([0, 5], Silent.OPEN), ([0, 0], Silent.OPEN)])
def test_a_fault_some_steps_before_its_finding_is_named_if_the_steps_before_repeat(
    same: list[int], what: Silent
) -> None:
    """All replicas have averaged wrong gradients since, so the repetition has other bits than all of them."""
    state, _ = judge(SilentState(), 0, guards(NODES, differ((1,), ("a", "b", "a", "a"))))
    again = guards(turned(NODES), {}, {"step": 50, "digest": "c", "same": same})
    assert [f.what for f in judge(state, 1, again)[1]] == [what]


def test_two_replicas_are_told_apart_by_the_repetition() -> None:
    state, (doubt,) = judge(SilentState(), 0, guards(NODES[:2], differ((0, 1), ("a", "b"), majority=False)))
    assert (doubt.what, doubt.nodes) == (Silent.CORRUPTION, ())
    again = guards(turned(NODES[:2]), {}, {"step": 50, "digest": "b"})
    assert [(f.what, f.nodes) for f in judge(state, 1, again)[1]] == [(Silent.NODE, ("n1",))]


def test_two_replicas_of_which_one_never_repeats_itself() -> None:
    state, _ = judge(SilentState(), 0, guards(NODES[:2], differ((0, 1), ("a", "b"), majority=False)))
    other = guards(turned(NODES[:2]), differ((0, 1), ("c", "a"), majority=False))  # rank 0 is now on n2
    assert [(f.what, f.nodes) for f in judge(state, 1, other)[1]] == [(Silent.NODE, ("n2",))]


def test_two_replicas_that_both_repeat_themselves_accuse_nobody() -> None:
    state, _ = judge(SilentState(), 0, guards(NODES[:2], differ((0, 1), ("a", "b"), majority=False)))
    other = guards(turned(NODES[:2]), differ((0, 1), ("b", "a"), majority=False))
    assert [f.nodes for f in judge(state, 1, other)[1]] == [()]


@pytest.mark.parametrize("kind", [REPLICA, PRODUCT])
def test_a_node_that_is_wrong_again_with_another_rank_is_named(kind: str) -> None:
    one = differ((1,), ("a", "b", "a", "a")) if kind == REPLICA else {1: event(PRODUCT, (1,))}
    state, _ = judge(SilentState(), 0, guards(NODES, one))
    two = differ((0,), ("b", "a", "a", "a")) if kind == REPLICA else {0: event(PRODUCT, (0,))}
    state, (found,) = judge(state, 1, guards(turned(NODES), two))
    assert (found.what, found.nodes, found.before) == (Silent.NODE, ("n2",), 40)


def test_what_follows_the_rank_is_software() -> None:
    state, _ = judge(SilentState(), 0, guards(NODES, differ((1,), ("a", "b", "a", "a"))))
    state, (found,) = judge(state, 1, guards(turned(NODES), differ((1,), ("a", "b", "a", "a"))))
    assert (found.what, found.nodes) == (Silent.SOFTWARE, ())


@pytest.mark.parametrize(
    "events",
    [
        {r: event(PRODUCT, (r,)) for r in range(4)},
        {r: event(PRODUCT, (r,)) for r in range(2)},
        differ((0, 1, 2, 3), ("a", "b", "c", "d"), majority=False),
    ],
)
def test_what_differs_everywhere_is_software(events: dict[int, dict[str, Any]]) -> None:
    _, (found,) = judge(SilentState(), 0, guards(NODES, events))
    assert (found.what, found.nodes) == (Silent.SOFTWARE, ())


def test_other_ranks_may_report_the_same_wrong_product_a_little_later() -> None:
    state, found = watch(SilentState(), 0, guards(NODES, {1: event(PRODUCT, (1,))}))
    assert found == ()
    _, (later,) = judge(state, 0, guards(NODES, {r: event(PRODUCT, (r,)) for r in range(4)}))
    assert later.what is Silent.SOFTWARE


def test_a_value_that_is_not_finite_is_reported_once_and_accuses_nobody() -> None:
    seen = guards(NODES, {r: event(VALUE, (r,)) for r in range(4)})
    assert [(f.what, f.nodes) for f in judge(SilentState(), 0, seen)[1]] == [(Silent.VALUE, ())]


def test_a_product_that_is_right_on_the_same_node_again_stays_open() -> None:
    state, _ = judge(SilentState(), 0, guards(("n1",), {0: event(PRODUCT, (0,))}))
    # one node: nothing to compare with
    _, found = judge(state, 1, guards(("n1",), {}, {"step": 50, "digest": ""}))
    assert [f.what for f in found] == [Silent.OPEN]


def test_a_difference_at_a_save_that_no_rank_can_repeat_accuses_nobody() -> None:
    """Ranks hold different shards, so their checksums cannot be compared."""
    state, (doubt,) = judge(SilentState(), 0, guards(NODES, differ((1,), ()) | {0: event(REPLICA, (1,), repeat=-1)}))
    assert (doubt.what, doubt.nodes) == (Silent.CORRUPTION, ("n2",))
    again = guards(turned(NODES), {}, {"step": 50, "digest": "a", "same": [0, 0]})
    assert [(f.what, f.nodes) for f in judge(state, 1, again)[1]] == [(Silent.OPEN, ())]


def test_a_doubt_survives_a_restart_of_the_launcher_and_a_new_attempt() -> None:
    state, _ = judge(SilentState(), 3, guards(NODES, differ((1,), ("a", "b", "a", "a"), equal=((44, 2, 7),), repeat=5)))
    state = build(SilentState, json.loads(json.dumps(plain(state)))).inherited()
    assert state.open is not None and (state.open.equal, state.open.repeat) == (((44, 2, 7),), 5)
    again = guards(turned(NODES), {}, {"step": 50, "digest": "a"})
    assert [(f.what, f.nodes) for f in judge(state, 0, again)[1]] == [(Silent.NODE, ("n2",))]


@pytest.mark.parametrize(("ranks", "what"), [((1,), Silent.CORRUPTION), ((0, 1), Silent.SOFTWARE)])
def test_a_wrong_product_on_one_of_two_nodes_is_repeated(ranks: tuple[int, ...], what: Silent) -> None:
    seen = guards(NODES[:2], {r: event(PRODUCT, (r,)) for r in ranks})
    assert [f.what for f in judge(SilentState(), 0, seen)[1]] == [what]


def test_damaged_reports_are_ignored() -> None:
    seen = [Guarded(0, "n1", {"events": [{"kind": REPLICA}, 7, None]}), Guarded(1, "n2", {})]
    assert judge(SilentState(), 0, seen)[1] == []


@pytest.mark.parametrize("seed", range(20))
def test_software_on_random_ranks_isolates_nobody_and_a_faulty_node_is_the_only_one_named(seed: int) -> None:
    chance = random.Random(seed)
    nodes = tuple(f"n{i}" for i in range(chance.choice((3, 4, 8, 16))))
    bad = chance.choice(nodes)
    rank = chance.randrange(len(nodes))
    for software in (False, True):
        state, placed, named = SilentState(), nodes, set()
        for launch in range(4):
            odd = rank if software else placed.index(bad)
            digests = tuple(f"x{launch}" if r == odd else "a" for r in range(len(nodes)))
            state, found = judge(state, launch, guards(placed, differ((odd,), digests)))
            named |= {n for f in found if f.what is Silent.NODE for n in f.nodes}
            placed = turned(placed)
        assert named == (set() if software else {bad})
