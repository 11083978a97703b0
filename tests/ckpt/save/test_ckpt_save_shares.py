"""Replicas are copied and written once, divided among ranks, also while the state changes shape."""

from __future__ import annotations

import json
from pathlib import Path

from ckpt_two import two_ranks

SHARED = 16 << 20  # bytes of `held` in the worker


def test_two_ranks_write_half_each_and_changes_are_divided_again(tmp_path: Path) -> None:
    found = [json.loads(out.splitlines()[-1]) for out, _ in two_ranks("ckpt_shares_worker.py", str(tmp_path))]
    for of_rank in found:
        taken, sizes, errors = of_rank["taken"], of_rank["sizes"], of_rank["errors"]
        assert all(abs(size - SHARED / 2) < SHARED / 8 for size in taken[:4]), "a half each, from the first save on"
        assert all(abs(sizes[f"step-{step}"] - SHARED / 2) < SHARED / 8 for step in (1, 2, 3, 4))
        assert not any(errors[:8]), "also the one for which rank 1 has no memory: it is written to disk"
        (torn,) = (error for error in errors[8:] if error)
        assert torn == "ValueError: more2 is in no rank's snapshot: the ranks' states differ in shape"
        assert not errors[9] and not errors[11], "the next save is of everything again"
        assert of_rank["restored"] == 12
        assert of_rank["same"] == [True, True, True]
    without_memory = found[0]["sizes"]["step-7"] + found[1]["sizes"]["step-7"]
    assert without_memory < 1.1 * (found[0]["sizes"]["step-8"] + found[1]["sizes"]["step-8"])
    both = [found[0]["sizes"][step] + found[1]["sizes"][step] for step in ("step-5", "step-6")]
    assert max(both) - min(both) < 1 << 16, "what is new is in both snapshots once, and never twice in the files"
