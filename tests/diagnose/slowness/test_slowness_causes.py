"""From heat maps to who is slow, with what, and how it is said."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.diagnose.clue import Category, Slow
from transom_cli.diagnose.slowness import causes, heatmap
from transom_cli.diagnose.slowness.causes import Slowness
from transom_cli.diagnose.slowness.heatmap import HeatMap, Row, between, fold
from transom_cli.heartbeat.step_breakdown import RankSteps

USUAL = {"data": 0.02, "forward": 0.3, "backward": 0.5, "optimizer": 0.05}
Extra = dict[int, dict[str, float]]


def heat(extra: Extra, *, world: int = 8, per_node: int = 2, network: float = 0.1, waits: bool = True) -> HeatMap:
    """A synchronous step: everyone takes as long as the slowest, and waits for the rest of it."""
    own = [{p: s + extra.get(r, {}).get(p, 0.0) for p, s in USUAL.items()} for r in range(world)]
    for rank, spent in extra.items():
        own[rank] |= {p: s for p, s in spent.items() if p not in USUAL}
    step = max(sum(spent.values()) for spent in own) + network
    result = "wait" if waits else "backward"
    for spent in own:
        spent[result] = spent.get(result, 0.0) + step - sum(spent.values())
    rows = [Row(r, f"n{r // per_node}", step, spent) for r, spent in enumerate(own)]
    made = fold(100, 200, rows)
    assert made is not None
    return made


def everyone(phase: str, more: float, world: int = 8) -> Extra:
    return {r: {phase: more} for r in range(world)}


def who(found: Slowness) -> list[tuple[str, int | None]]:
    return [(c.node, c.rank) for c in found.clue.culprits]


BEFORE = heat({})


@pytest.mark.parametrize(
    ("now", "kind", "category", "ranks"),
    [
        (heat(everyone("data", 0.3)), Slow.STORAGE, Category.STORAGE_IO, ()),
        (heat(everyone("checkpoint", 0.3)), Slow.STORAGE, Category.STORAGE_IO, ()),
        (heat({5: {"data": 0.3}}), Slow.LOADER, Category.DATA_LOADER, (5,)),
        (heat({4: {"data": 0.3}, 5: {"data": 0.3}}), Slow.LOADER, Category.DATA_LOADER, (4, 5)),
        (heat({5: {"backward": 0.3}}), Slow.DEVICE, Category.GPU_HARDWARE, (5,)),
        (heat({4: {"forward": 0.3}, 5: {"forward": 0.25}}), Slow.NODE, Category.UNKNOWN, (4, 5)),
        (heat({4: {"forward": 0.3}}, per_node=1), Slow.NODE, Category.UNKNOWN, (4,)),
        (heat({}, network=0.4), Slow.LINK, Category.NETWORK_FABRIC, ()),
        (heat(everyone("forward", 0.3)), Slow.ALL, Category.UNKNOWN, ()),
    ],
    ids=["storage", "checkpoints", "loader", "loader of a node", "device", "node", "one rank a node", "link", "all"],
)
def test_what_has_grown(now: HeatMap, kind: Slow, category: Category, ranks: tuple[int, ...]) -> None:
    before = heat({}, per_node=1) if now.rows[1].node == "n1" else BEFORE
    found = causes.grown(before, now)
    assert (found.kind, found.clue.category, tuple(sorted(found.ranks))) == (kind, category, ranks)
    assert found.lost == pytest.approx(0.3, abs=0.01)
    assert all(
        node == f"n{rank // (8 // len({r.node for r in now.rows}))}" for node, rank in who(found) if rank is not None
    )
    assert any("%" in line for line in found.clue.evidence)


def test_who_waits_least_is_named_and_with_how_much() -> None:
    found = causes.grown(BEFORE, heat({5: {"backward": 0.3}}))
    assert found.clue.evidence[1] == "rank 5 on n2 spends 0.8 s per step in backward, usually 0.5 s"
    assert found.clue.evidence[2] == "rank 5 waits least for the others: 0.1 s per step, usually 0.4 s"
    assert found.clue.confidence == 0.9


def test_a_throttled_device_is_known_by_what_the_checks_say() -> None:
    found = causes.grown(BEFORE, heat({4: {"forward": 0.3}, 5: {"forward": 0.3}}))
    assert causes.heated(found, {"n3": "software thermal slowdown"}) is found
    hot = causes.heated(found, {"n2": "hardware thermal slowdown"})
    assert (hot.kind, hot.clue.category) == (Slow.DEVICE, Category.GPU_HARDWARE)
    assert hot.clue.evidence[-1] == "n2: hardware thermal slowdown"
    storage = causes.grown(BEFORE, heat({5: {"data": 0.3}}))
    assert causes.heated(storage, {"n2": "hardware thermal slowdown"}) is storage


def test_without_waits_nobody_is_blamed_for_waiting() -> None:
    """DDP waits in backward: there the victims have the longest one."""
    before = heat({}, waits=False)
    found = causes.grown(before, heat({5: {"forward": 0.3}}, waits=False))
    assert (found.kind, found.ranks) == (Slow.DEVICE, (5,))
    found = causes.grown(before, heat({5: {"backward": 0.3}}, waits=False))
    assert (found.kind, found.ranks) == (Slow.ALL, ()), "it cannot be reported, and is not"


def test_rank_that_always_differs_is_reported_with_reservation() -> None:
    found = causes.uneven(heat({5: {"forward": 0.3}}))
    assert found is not None
    assert (found.kind, found.ranks, found.clue.confidence) == (Slow.DEVICE, (5,), 0.5)
    assert "may be distributed unevenly" in found.clue.evidence[-1]
    assert causes.uneven(heat({5: {"forward": 0.05}})) is None, "less than a tenth of a step"
    assert causes.uneven(heat(everyone("data", 0.5))) is None
    assert causes.uneven(heat({})) is None


def test_one_of_two() -> None:
    two = heat({1: {"forward": 0.3}}, world=2, per_node=1)
    found = causes.uneven(two)
    assert found is not None and (found.kind, found.ranks) == (Slow.NODE, (1,))
    assert (1, "forward") in two.marks and (0, "forward") not in two.marks


@given(
    world=st.integers(2, 12), seed=st.randoms(use_true_random=False), share=st.floats(0.15, 3.0),
    phase=st.sampled_from(["data", "forward", "backward", "optimizer"]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_single_slow_rank_is_found(world: int, seed: object, share: float, phase: str) -> None:
    rank = seed.randrange(world)  # type: ignore[attr-defined]
    now = heat({rank: {phase: share}}, world=world)
    for found in (causes.grown(heat({}, world=world), now), causes.uneven(now)):
        assert found is not None and found.ranks == (rank,)
        assert found.phase == phase


def test_between_two_readings_of_an_account() -> None:
    before = RankSteps(0, 1, 10, 100.0, 5.0, {"data": 1.0})
    after = RankSteps(0, 1, 20, 105.0, 5.0, {"data": 2.0, "wait": 1.0})
    row = between("n1", before, after)
    assert row == Row(0, "n1", 0.5, {"data": 0.1, "wait": 0.1})
    for other in (
        RankSteps(0, 1, 10, 105.0, 5.0),  # no step
        RankSteps(0, 1, 20, 105.0, 6.0),  # another process
        RankSteps(0, 2, 20, 105.0, 5.0),  # another launch
    ):
        assert between("n1", before, other) is None


def test_the_map_as_text() -> None:
    assert heatmap.lines(heat({2: {"data": 0.2}}, world=3)) == [
        "steps 101 to 200, in ms per step",
        "rank   node  data  forward  backward  optimizer  wait  step",
        "0      n0    20.0      300       500       50.0   300  1170",
        "1      n0    20.0      300       500       50.0   300  1170",
        "2      n1     220▲     300       500       50.0   100▼ 1170",
        "usual        20.0      300       500       50.0   300  1170",
        "▲ stands out   ▼ waits least for the others",
    ]  # fmt: skip


def test_outliers_are_shown_among_many_ranks() -> None:
    now = heat({70: {"data": 0.2}}, world=100)
    text = heatmap.lines(now, 4)
    assert [line.split()[0] for line in text[2:6]] == ["0", "1", "2", "70"]
    assert "and 96 ranks more" in text
    result = heatmap.document(now, 4)
    assert result["ranks"] == 100 and isinstance(result["rows"], list)
    assert [row["stands_out"] for row in result["rows"]] == [[], [], [], ["data"]]


def test_names_of_phases_reach_no_terminal_as_they_are() -> None:
    row = Row(0, "n\x1b[2J", 1.0, {"my\x1b]0;phase": 0.5})
    made = fold(0, 1, [row])
    assert made is not None and "\x1b" not in "".join(heatmap.lines(made))
