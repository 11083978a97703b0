"""How the stories of a chaos run ended, from what its launchers said."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from chaos_stories import Ending, endings, table


def made(at: float, story: str) -> dict[str, Any]:
    return {"at": at, "story": story}


def said(at: float, what: str, words: str = "") -> dict[str, Any]:
    return {"at": at, "what": what, "words": words}


ROW = {
    "seen": {
        "made": [made(10, "death"), made(50, "two deaths"), made(52, "two deaths"), made(90, "survivor is stuck"),
                 made(140, "hang in a C call"), made(200, "hang")],
        "said": [
            said(10.5, "seen"), said(11, "reentry", "2 ranks to enter the training again"),
            said(12, "recovered", "recovered in 1.5 s: a standby took rank 1"),
            said(50.5, "seen"), said(53, "reentry", "all ranks are ended: no rank has stepped in launch 2"),
            said(65, "recovered", "step 12 done in launch 3"),
            said(90.4, "seen"), said(106, "reentry", "rank 0 to replace in launch 4"),
            said(110, "recovered", "recovered in 19.6 s: new processes took ranks 0, 1"),
            said(205, "seen"),
        ],
    }
}  # fmt: skip


def test_each_story_ends_with_what_was_said_before_the_next_one() -> None:
    assert list(endings(ROW)) == [
        Ending("death", "re-entered", 2),
        Ending("two deaths", "all ranks relaunched", 15, "no rank has stepped in launch 2"),
        Ending("survivor is stuck", "stuck one replaced alone", 20),
        Ending("hang in a C call", "no trouble seen"),
        Ending("hang", "not recovered"),
    ]


def test_table_counts_the_stories_of_all_runs() -> None:
    lines = table([ROW, ROW, {"error": "no sandbox"}]).splitlines()
    assert lines[2] == "| death | 2 | 2 | 0 | 0 | 0 | 0 | 2.0 (2.0 to 2.0) |"
    assert lines[-1] == "relaunched 2 times: no rank has stepped in launch 2"
