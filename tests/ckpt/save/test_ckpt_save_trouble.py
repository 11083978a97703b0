"""After a save in which one rank failed, the next save succeeds on all ranks, and restores as it was saved."""

from __future__ import annotations

import json
from pathlib import Path

from ckpt_two import two_ranks


def test_a_save_in_which_one_rank_fails_does_not_hold_up_the_next(tmp_path: Path) -> None:
    answers = two_ranks("ckpt_trouble_worker.py", str(tmp_path))
    for out, _ in answers:
        found = json.loads(out.splitlines()[-1])
        assert found["first"] == ""
        assert all("as if there were no more memory" in why for why in found["errors"].values()), found["errors"]
        assert not any(found["after"].values()), found["after"]
        assert not any(found[key] for key in found if key.endswith("without a fault"))
        assert found["restored"] and found["same"]
    assert "; proven: " in answers[0][1]
