"""Real ranks that hang over gloo: torch's own flight recorder dumps, and faulthandler's stacks, are read and judged.

And torch's own analyser, given the same dumps, finds the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.diagnose.clue import Category
from transom_cli.diagnose.hangs import dumps as unpickle
from transom_cli.diagnose.hangs import flight_recorder
from transom_cli.diagnose.hangs.findings import What
from transom_cli.diagnose.hangs.matching import Matched, match, sign
from transom_cli.diagnose.hangs.reader import is_dump, read_hang

WORLD, ODD = 4, 2


def raw(folder: Path) -> dict[int, dict[str, Any]]:
    return {rank: unpickle.load((folder / f"rank-{rank}.flight/flight-0-{rank}").read_bytes()) for rank in range(WORLD)}


def matched(folder: Path) -> Matched:
    return match([flight_recorder.read(rank, values) for rank, values in raw(folder).items()])


@pytest.mark.long
def test_a_rank_that_never_comes_to_a_collective(real_hangs: Path) -> None:
    found, stacks = read_hang(real_hangs / "skips")
    assert [culprit.rank for culprit in found.culprits] == [ODD] and found.confidence > 0.85
    assert found.evidence[0].startswith(
        "non-communication hang: rank 2 has not called all_reduce(4), #22 of default_pg, where ranks 0, 1, 3 wait "
        "in skips (hang_ranks.py:"
    )
    assert found.evidence[1].startswith("rank 2 is in the training's own code: stuck_in_lock (hang_ranks.py:")
    assert (stacks.source, [culprit.rank for culprit in stacks.culprits]) == ("stacks", [ODD])


@pytest.mark.long
def test_waits_are_followed_over_groups(real_hangs: Path) -> None:
    """The partner of the stuck rank has not come to the collective of all either, and is not to blame."""
    found = matched(real_hangs / "subgroups")
    assert [(f.what, f.ranks, f.others) for f in found.findings] == [
        (What.MISSING, (ODD,), (0, 1)),
        (What.MISSING, (ODD,), (3,)),
    ]
    assert found.waits.edges[0] == {2, 3} and found.waits.edges[3] == {2}


@pytest.mark.long
def test_another_collective_under_the_same_number(real_hangs: Path) -> None:
    found = read_hang(real_hangs / "other_type")[0]
    assert (found.category, [c.rank for c in found.culprits]) == (Category.USER_CODE, [ODD])
    assert "rank 2 calls broadcast(4) of Float in other_type" in found.evidence[0]
    assert "where ranks 0, 1, 3 call all_reduce(4) of Float" in found.evidence[0]


@pytest.mark.long
def test_dump_files_are_recognised(real_hangs: Path, tmp_path: Path) -> None:
    files = (real_hangs / "skips").rglob("*")
    assert {path.name for path in files if is_dump(path)} == {
        *(f"flight-0-{rank}" for rank in range(WORLD)),
        *(f"rank-{rank}.stack.txt" for rank in range(WORLD)),
    }
    log = tmp_path / "rank-0.log"
    log.write_text("step 1 loss 2.0\nThread 0x00007f26 (most recent call first):\n")
    assert not is_dump(log) and not is_dump(tmp_path) and not is_dump(tmp_path / "none")


# ---- beside torch's own analyser ------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(("scenario", "missing"), [("skips", {ODD}), ("other_type", set())])
def test_torch_finds_the_same(real_hangs: Path, scenario: str, missing: set[int]) -> None:
    builder = pytest.importorskip("torch.distributed.flight_recorder.components.builder")
    dumps = raw(real_hangs / scenario)
    first = match([flight_recorder.read(rank, values) for rank, values in dumps.items()]).findings[0]
    # gloo leaves the group's name out, on which torch's analyser relies
    config = {rank: {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}} for rank in dumps}
    _, groups, _, members, names = builder.build_groups_memberships(config)
    entries = {rank: [e | {"frames": []} for e in values["entries"]] for rank, values in dumps.items()}
    last = max(e["collective_seq_id"] for e in entries[0])
    entries = {rank: [e for e in found if e["collective_seq_id"] > last - 8] for rank, found in entries.items()}
    _, collectives, _ = builder.build_collectives(entries, groups, members, names, "2.10")
    wrong = [c for c in collectives if c.missing_ranks or not c.pass_check]
    assert wrong[0].collective_seq_id == first.seq
    if missing:
        assert wrong[0].missing_ranks == missing == set(first.ranks)
    else:
        assert set(wrong[0].mismatch_collectives) == {ODD} == set(first.ranks)


SHAPES = st.sampled_from([[4], [8], [2, 2]])
NAMES = st.sampled_from(["all_reduce", "broadcast", "reduce", "gather", "scatter", "barrier", "all_reduce_barrier"])
CALLS = st.fixed_dictionaries(
    {"name": NAMES, "shape": SHAPES, "dtype": st.sampled_from(["Float", "Half"]), "out": st.none() | SHAPES}
)


@given(CALLS, CALLS)
def test_what_must_be_alike_is_what_torch_compares(one: dict[str, Any], other: dict[str, Any]) -> None:
    utils = pytest.importorskip("torch.distributed.flight_recorder.components.utils")
    types = pytest.importorskip("torch.distributed.flight_recorder.components.types")
    import hang_made

    def entry(call: dict[str, Any]) -> dict[str, object]:
        # shapes that differ within one call of these two are an error of the call alone, which sign() leaves to torch
        out = call["out"] if call["name"] in ("gather", "scatter") else None
        return hang_made.entry("0", 1, call["name"], call["shape"], "scheduled", out=out, dtype=call["dtype"])

    entries = [entry(one), entry(other)]
    verdict = utils.match_one_event(*entries, {"0": {0, 1}}, "0").state
    views = [flight_recorder.read(0, {"version": "2.10", "entries": [e]}).views[0] for e in entries]
    alike = sign(views[0].rounds[1]) == sign(views[1].rounds[1])
    assert alike == (verdict is types.MatchState.FULLY_MATCHED)
