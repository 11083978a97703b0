"""C4's four classes, and what of processes, collectives and stacks counts first."""

from __future__ import annotations

import hang_made
import pytest

from transom_cli.diagnose.clue import Category
from transom_cli.diagnose.hangs import dumps as unpickle
from transom_cli.diagnose.hangs import flight_recorder
from transom_cli.diagnose.hangs.matching import Matched, match
from transom_cli.diagnose.hangs.stacks import NOWHERE, Kind, Place, Stand
from transom_cli.diagnose.hangs.syndromes import Rank, Syndrome, Verdict, as_clue, classify

WORLD = (0, 1, 2, 3)


def ranks(odd: Kind, others: Kind = Kind.COLLECTIVE, state: str = "S", died: str = "") -> list[Rank]:
    """Four, of which rank 2 stands elsewhere."""
    made = []
    for number in WORLD:
        kind = odd if number == 2 else others
        place = NOWHERE if kind is Kind.UNKNOWN else Place(kind, (kind.name,), "f (x.py:1)", native=True)
        mine = number == 2
        made.append(Rank(Stand(number, f"n{number // 2}", place, died if mine else ""), state if mine else "S"))
    return made


def flights(odd: int, others: int, over: int, kept: tuple[int, ...] = WORLD, op: str = "all_reduce") -> Matched:
    """How many collectives rank 2, and the others, have called; and how many have ended."""
    found = []
    for number in kept:
        calls = odd if number == 2 else others
        entries = [
            hang_made.entry(
                "w", n, op if number == 2 else "all_reduce", state="completed" if n <= over else "scheduled"
            )
            for n in range(1, calls + 1)
        ]
        found.append(flight_recorder.read(number, unpickle.load(hang_made.dump(entries, {"w": WORLD}))))
    return match(found)


def verdict(found: Verdict | None) -> tuple[Syndrome, Category, tuple[int, ...]]:
    assert found is not None and found.reasons and 0 < found.sure <= 0.95
    return found.syndrome, found.category, found.ranks


COMM, OWN = Syndrome.COMMUNICATION_HANG, Syndrome.NON_COMMUNICATION_HANG
SAME = Kind.COLLECTIVE


@pytest.mark.parametrize(
    ("made", "matched", "expected"),
    [
        (ranks(Kind.LOADER), flights(3, 4, 3), (OWN, Category.DATA_LOADER, (2,))),
        (ranks(Kind.CHECKPOINT), flights(3, 4, 3), (OWN, Category.STORAGE_IO, (2,))),
        (ranks(Kind.LOCK), flights(3, 4, 3), (OWN, Category.NCCL_HANG, (2,))),
        (ranks(Kind.UNKNOWN, Kind.UNKNOWN), flights(3, 4, 3), (OWN, Category.NCCL_HANG, (2,))),
        ((), flights(3, 4, 3), (OWN, Category.NCCL_HANG, (2,))),
        (ranks(Kind.LOADER), None, (OWN, Category.DATA_LOADER, (2,))),
        (ranks(SAME), flights(4, 4, 3), (COMM, Category.NCCL_HANG, ())),
        (ranks(SAME), None, (COMM, Category.NCCL_HANG, ())),
        ((), flights(4, 4, 3), (COMM, Category.NCCL_HANG, ())),
        # all have called it: who stands elsewhere by then is not waited for
        (ranks(Kind.LOADER), flights(4, 4, 3), (COMM, Category.NCCL_HANG, ())),
        (ranks(Kind.LOADER, Kind.LOADER), None, (OWN, Category.DATA_LOADER, ())),
        (ranks(SAME), flights(4, 4, 3, op="broadcast"), (OWN, Category.USER_CODE, (2,))),
        # a lost dump: who waits like the others, by its stack, is not to blame for it
        (ranks(Kind.LOADER), flights(4, 4, 3, kept=(0, 1, 3)), (OWN, Category.DATA_LOADER, (2,))),
        (ranks(SAME), flights(4, 4, 3, kept=(0, 1, 3)), (OWN, Category.NCCL_HANG, ())),
        ((), flights(4, 4, 3, kept=(0, 1, 3)), (OWN, Category.NCCL_HANG, (2,))),
        # processes come first
        (ranks(SAME, state="T"), flights(3, 4, 3), (OWN, Category.NCCL_HANG, (2,))),
        (ranks(SAME, state="Z"), None, (OWN, Category.PROCESS_CRASH, (2,))),
        (ranks(Kind.LOADER, died="Fatal Python error: Bus error"), None, (OWN, Category.PROCESS_CRASH, (2,))),
        (ranks(SAME, died="Fatal Python error: Aborted"), None, (COMM, Category.NCCL_HANG, ())),  # by the watchdog
        (ranks(SAME, state="D"), None, (OWN, Category.STORAGE_IO, (2,))),
        # most have not come to it: that is no fault of one of them
        (ranks(SAME, Kind.LOADER), flights(4, 3, 3), (OWN, Category.DATA_LOADER, ())),
    ],
)
def test_classes(
    made: list[Rank], matched: Matched | None, expected: tuple[Syndrome, Category, tuple[int, ...]]
) -> None:
    assert verdict(classify(made, matched)) == expected


def test_who_waits_by_its_stack_is_a_victim_of_who_does_not() -> None:
    """gloo records no receives: 2 and 3 have not come to the barrier, and 3 only waits for 2."""
    made = ranks(Kind.LOADER)
    made[3] = Rank(Stand(3, "n1", Place(Kind.PEER, ("PEER",), "recv (x.py:1)", native=True)), "S")
    behind = [hang_made.entry("w", 1, "all_reduce")]
    waits = [*behind, hang_made.entry("w", 2, "barrier", state="scheduled")]
    dumps = [hang_made.dump(waits if number < 2 else behind, {"w": WORLD}) for number in WORLD]
    matched = match([flight_recorder.read(number, unpickle.load(dump)) for number, dump in enumerate(dumps)])
    assert matched.waits.roots == (2, 3)
    assert verdict(classify(made, matched)) == (OWN, Category.DATA_LOADER, (2,))
    assert verdict(classify((), matched))[2] == (2, 3)


def test_agreement_makes_sure() -> None:
    both, calls = classify(ranks(Kind.LOADER), flights(3, 4, 3)), classify((), flights(3, 4, 3))
    assert both is not None and calls is not None and both.sure > calls.sure


def test_no_data_names_no_rank() -> None:
    assert classify(()) is None and classify(ranks(Kind.UNKNOWN, Kind.UNKNOWN)) is None
    gone = [Rank(Stand(number, "", NOWHERE), "X") for number in WORLD]
    assert classify(gone) is None, "a job that is gone does not hang"
    assert classify((), flights(3, 3, 3)) is None, "nothing waits"


def test_the_clue_names_nodes() -> None:
    nodes = {number: f"n{number // 2}" for number in WORLD}
    found = as_clue(classify(ranks(Kind.LOADER), flights(3, 4, 3)), nodes, "collectives")  # type: ignore[arg-type]
    assert [str(c) for c in found.culprits] == ["rank 2 on n1"]
    assert found.evidence[0].startswith("non-communication hang: rank 2 has not called all_reduce(4), #4 of w (w_desc)")
    assert found.evidence[0].endswith(" (on n1)") and found.evidence[1] == "rank 2 is in the data loader: f (x.py:1)"


def test_a_group_of_one_node_that_the_communication_holds() -> None:
    """Its link or switch: the node, and no rank of it."""
    held = Verdict(COMM, Category.NCCL_HANG, 0.6, (), ("it does not end",), held=(2, 3))
    assert [str(c) for c in as_clue(held, {0: "n0", 1: "n0", 2: "n1", 3: "n1"}, "x").culprits] == ["on n1"]
    assert as_clue(held, {2: "n1", 3: "n1"}, "x").culprits == (), "the only node there is"
    assert as_clue(held, {0: "n0", 2: "n1", 3: "n2"}, "x").culprits == ()
    assert as_clue(held, {0: "n0", 1: "n0"}, "x").culprits == ()
