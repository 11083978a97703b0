"""The snapshot daemon gives way to the training."""

from __future__ import annotations

import os
from pathlib import Path

from transom_cli.ckpt.snapshot.client import reach, start
from transom_cli.ckpt.snapshot.daemon import NICE


def test_a_holder_is_nicer_than_who_started_it(tmp_path: Path) -> None:
    path = str(tmp_path / "memory")
    running = start(path, "--linger", "60")
    try:
        line = reach(path, 60.0)
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, running.pid) == min(19, own + NICE)
        line.call("end")
        line.close()
        running.wait(60.0)
    finally:
        running.kill()
        running.wait()
