"""The trainer's own line in a traceback."""

from __future__ import annotations

import gzip
from pathlib import Path

from transom_cli.diagnose.logs.frames import trainer_frame

LINES = [
    "Traceback (most recent call last):",
    '  File "/home/ann/train.py", line 8, in main',
    "    loader()",
    '  File "/venv/lib/python3.12/site-packages/torch/utils/data.py", line 700, in __next__',
    "    return data",
    '  File "/home/ann/clone/transom_cli/ckpt/checkpointer.py", line 210, in restore',
    "    found = self._restorer.restore(allow_lost)",
    "KeyError: 'lr'",
]


def test_frames_of_installed_packages_are_passed_over(tmp_path: Path) -> None:
    (log := tmp_path / "rank-0.log").write_text("\n".join(LINES))
    assert trainer_frame(log, 8) == "/home/ann/train.py:8"
    assert trainer_frame(log, 1) == "" and trainer_frame(tmp_path / "missing", 6) == ""


def test_lines_of_other_ranks_in_between_do_not_count(tmp_path: Path) -> None:
    mixed = [text for line in LINES for text in (f"3: {line}", '1:   File "/home/ann/other.py", line 1, in x')]
    (log := tmp_path / "job.log.gz").write_bytes(gzip.compress("\n".join(mixed).encode()))
    assert trainer_frame(log, 15) == "/home/ann/train.py:8"
