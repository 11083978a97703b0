"""Flight recorders of all ranks beside each other. The dumps are composed; real ones are in test_hang_real.py."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import hang_made
import pytest

from transom_cli.diagnose.hangs import dumps, flight_recorder
from transom_cli.diagnose.hangs.findings import What
from transom_cli.diagnose.hangs.flight_recorder import Flight
from transom_cli.diagnose.hangs.matching import Matched, match

Entry = dict[str, object]
WORLD = (0, 1, 2, 3)


def call(
    seq: int, op: str = "all_reduce", shape: tuple[int, ...] = (4,), state: str = "completed", **more: object
) -> Entry:
    """One of the group "w"; by default it is over."""
    return hang_made.entry("w", seq, op, shape, state, **({"record": seq} | more))  # type: ignore[arg-type]


def rank_of(number: int, entries: list[Entry], groups: dict[str, tuple[int, ...]] | None = None) -> Flight:
    made = hang_made.dump(entries, {"w": WORLD} if groups is None else groups)
    return flight_recorder.read(number, dumps.load(made))


def job(odd: list[Entry], usual: list[Entry], ranks: tuple[int, ...] = WORLD) -> Matched:
    """Rank 2 has made other calls than the others."""
    return match([rank_of(number, odd if number == 2 else usual) for number in ranks])


def first(found: Matched) -> tuple[What, tuple[int, ...], int]:
    return found.findings[0].what, found.findings[0].ranks, found.findings[0].seq


OPEN = "scheduled"


def test_a_missing_participant() -> None:
    found = job([call(1)], [call(1), call(2, state=OPEN)])
    assert first(found) == (What.MISSING, (2,), 2)
    assert found.findings[0].words == (
        "rank 2 has not called all_reduce(4), #2 of w (w_desc), where ranks 0, 1, 3 wait in train (train.py:120)"
    )


@pytest.mark.parametrize(
    ("what", "odd", "usual"),
    [
        (What.TYPE, [call(2, "broadcast", state=OPEN)], [call(2, state=OPEN)]),
        (What.SIZE, [call(2, shape=(8,), state=OPEN)], [call(2, state=OPEN)]),
        (What.DTYPE, [call(2, state=OPEN, dtype="Half")], [call(2, state=OPEN)]),
        # two calls the other way round
        (What.ORDER, [call(2, shape=(8,), state=OPEN), call(3, shape=(16,), state=OPEN)],
         [call(2, shape=(16,), state=OPEN), call(3, shape=(8,), state=OPEN)]),
        # one call too few: the next ones come too early
        (What.ORDER, [call(2, shape=(8,), state=OPEN), call(3, shape=(9,), state=OPEN)],
         [call(2, shape=(7,), state=OPEN), call(3, shape=(8,), state=OPEN), call(4, shape=(9,), state=OPEN)]),
        # another size once, and all continues as with the others: no other order
        (What.SIZE, [call(2, shape=(8,), state=OPEN), call(3, state=OPEN)],
         [call(2, state=OPEN), call(3, state=OPEN)]),
    ],
)  # fmt: skip
def test_what_does_not_match(what: What, odd: list[Entry], usual: list[Entry]) -> None:
    assert first(job([call(1), *odd], [call(1), *usual])) == (what, (2,), 2)


@pytest.mark.parametrize(
    ("op", "mine", "theirs"),
    [
        ("all_to_all", {"shape": (6,), "out": (3,)}, {"shape": (2,), "out": (3,)}),  # 12 elements sent, 12 received
        ("scatter", {"shape": (16,), "out": (4,)}, {"shape": (0,), "out": (4,)}),
        ("gather", {"shape": (4,), "out": (16,)}, {"shape": (4,), "out": (0,)}),
    ],
)
def test_what_may_differ(op: str, mine: dict[str, object], theirs: dict[str, object]) -> None:
    found = job([call(2, op, state=OPEN, **mine)], [call(2, op, state=OPEN, **theirs)])  # type: ignore[arg-type]
    assert [f.what for f in found.findings] == [What.STUCK]


def test_all_to_all_must_add_up() -> None:
    found = job([call(2, "all_to_all", (6,), OPEN, out=(3,))], [call(2, "all_to_all", (3,), OPEN, out=(3,))])
    assert first(found) == (What.SIZE, (), 2) and "15 elements sent and 12 received" in found.findings[0].words


def test_in_a_pair_other_groups_decide_who_is_wrong() -> None:
    def pair(number: int, group: str, op: str, members: tuple[int, ...]) -> Flight:
        entries = [hang_made.entry(group, n, "all_reduce", record=n) for n in (1, 2)]
        entries.append(hang_made.entry(group, 3, op, state=OPEN, record=3))
        return rank_of(number, entries, {group: members})

    alone = [pair(0, "a", "all_reduce", (0, 1)), pair(1, "a", "broadcast", (0, 1))]
    assert first(match(alone)) == (What.TYPE, (), 3)
    assert match(alone).findings[0].words.endswith("these dumps do not show which one is right")
    sisters = [pair(n, "b", "all_reduce", (2, 3)) for n in (2, 3)] + [
        pair(n, "c", "all_reduce", (4, 5)) for n in (4, 5)
    ]
    assert first(match([*alone, *sisters])) == (What.TYPE, (1,), 3)


def test_mismatch_with_a_culprit_comes_first() -> None:
    """A pair in which neither is known to be wrong may be a consequence."""

    def made(number: int) -> Flight:
        odd = number == 2
        entries = [call(1), call(2, shape=(8,) if odd else (4,), state=OPEN)]
        if number in (0, 2):
            entries.append(hang_made.entry("pair", 1, "broadcast" if odd else "reduce", state=OPEN, record=3))
        return rank_of(number, entries, {"w": WORLD, "pair": (0, 2)} if number in (0, 2) else {"w": WORLD})

    found = match([made(number) for number in WORLD])
    assert [(f.what, f.ranks) for f in found.findings] == [(What.SIZE, (2,)), (What.TYPE, ())]


def test_what_differed_and_ended_all_the_same_is_no_cause() -> None:
    """Uneven shapes that the library put up with; the hang is elsewhere."""
    found = job([call(1, shape=(8,)), call(2)], [call(1), call(2), call(3, state=OPEN)])
    assert first(found) == (What.MISSING, (2,), 3)


def test_all_have_called_it() -> None:
    found = job([call(1, state=OPEN)], [call(1, state=OPEN)])
    assert first(found) == (What.STUCK, (), 1) and found.findings[0].others == WORLD


def test_a_gpu_that_has_not_come_to_it() -> None:
    found = job([call(1, timed=True), call(2, state=OPEN)], [call(1, timed=True), call(2, state="started", timed=True)])
    assert first(found) == (What.LATE_START, (2,), 2)


def test_a_rank_without_a_dump() -> None:
    calls = [call(1), call(2, state=OPEN)]
    found = job(calls, calls, ranks=(0, 1, 3))
    assert first(found) == (What.NO_DUMP, (2,), 2)
    assert found.missing == (2,) and found.notes == ("no dump of rank 2",)


def test_missing_dumps_blame_no_rank() -> None:
    groups = {"a": (0, 1, 2, 3), "b": (4, 5, 6, 7)}
    a = [rank_of(n, [hang_made.entry("a", 1, "all_reduce", state=OPEN)], groups) for n in (0, 1, 2)]
    b = [rank_of(n, [hang_made.entry("b", 1, "all_reduce")], groups) for n in (4, 5, 6)]
    assert first(match([*a, *b])) == (What.NO_DUMP, (), 1)


def test_a_send_that_nobody_receives() -> None:
    def p2p(op: str) -> Entry:
        return hang_made.entry("w", 0, op, state=OPEN, p2p=True)

    pipeline = [
        rank_of(0, [p2p("send 0->1"), p2p("recv 0<-1")]),
        rank_of(1, [p2p("recv 1<-0"), p2p("send 1->2")]),
        rank_of(2, []),
        rank_of(3, [p2p("recv 3<-2")]),
    ]
    found = match(pipeline)
    assert found.waits.roots == (2,) and first(found)[:2] == (What.PEER, (2,))


def test_a_call_left_out_is_seen_by_the_number_of_calls_before() -> None:
    """2 has left out its group's call and waits in the world's; 3 waits for it in theirs. A ring: counts tell who."""
    groups = {"w": WORLD, "p": (2, 3)}
    before = [call(n, record=10 * (n - 1)) for n in (1, 2)]

    def pair(state: str) -> Entry:
        return hang_made.entry("p", 1, "all_reduce", state=state, record=12)

    ranks = [rank_of(n, [*before, call(3, state=OPEN, record=14)], {"w": WORLD}) for n in (0, 1)]
    ranks.append(rank_of(2, [*before, call(3, state=OPEN, record=13)], groups))
    ranks.append(rank_of(3, [*before, pair(OPEN), call(3, state=OPEN, record=14)], groups))
    found = match(ranks)
    assert found.waits.ring == (2, 3) and first(found)[:2] == (What.RING, (2,))
    assert "rank 2 has made more or fewer calls before it" in found.findings[0].words


def test_who_came_late() -> None:
    second = 1_000_000_000

    def at(*late: float) -> list[Entry]:
        return [call(n, created=(1000 + 10 * n) * second + int(d * second)) for n, d in enumerate(late, 1)]

    found = job(at(0.0, 0.1, 2.5), at(0.0, 0.0, 0.0))
    assert (
        first(found) == (What.LATE, (2,), 3) and "rank 2 was 2.5 s late to all_reduce(4), #3" in found.findings[0].words
    )
    assert job(at(2.5, 2.4, 2.5), at(0.0, 0.0, 0.0)).findings[0].ranks == (), "or its clock is ahead"
    assert job(at(0.0, 0.0, 0.5), at(0.0, 0.0, 0.0)).findings == ()


def test_one_name_may_denote_several_groups() -> None:
    """split_group names all of one split alike."""
    done, waits = hang_made.entry("tp", 1, "all_reduce"), hang_made.entry("tp", 2, "all_reduce", state=OPEN)
    made = [
        rank_of(n, [done] if n == 3 else [done, waits] if n == 2 else [done], {"tp": (0, 1) if n < 2 else (2, 3)})
        for n in WORLD
    ]
    assert first(match(made)) == (What.MISSING, (3,), 2)


def test_a_rank_that_never_used_the_group() -> None:
    """It is known to belong, and its recorder has lost nothing: it has called nothing there."""
    made = [rank_of(n, [call(1, state=OPEN)]) for n in (0, 1, 3)] + [rank_of(2, [])]
    assert first(match(made)) == (What.MISSING, (2,), 1)
    lost = hang_made.entry("x", 900, "all_reduce", record=900)
    unknown = [*made[:3], rank_of(2, [lost], {"w": WORLD, "x": (2,)})]
    assert first(match(unknown))[:2] == (What.STUCK, ()), "its calls there may have been overwritten"


@pytest.mark.parametrize("change", [lambda d: d | {"pg_config": {}}, lambda d: d | {"version": "2.4"}])
def test_dumps_of_another_make_beside_the_others(change: Callable[[dict[str, object]], dict[str, object]]) -> None:
    made = [rank_of(n, [call(1), call(2, state=OPEN)]) for n in (0, 1)]
    other = pickle.loads(hang_made.dump([call(1)], {"w": WORLD}))
    assert first(match([*made, flight_recorder.read(2, change(other))])) == (What.MISSING, (2,), 2)


def test_no_dumps_give_no_finding() -> None:
    assert match([]).findings == () and match([rank_of(0, [])]).findings == ()
