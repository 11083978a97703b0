"""examples/gpt/train.py with what the hang detection of NVIDIA's ft_launcher needs: one heartbeat per step.

It takes the flags of train.py. Each call of transom's `beat` sends a heartbeat to ft_launcher's rank monitor instead.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import transom_cli

GPT = Path(__file__).resolve().parents[1] / "examples" / "gpt"


class Heartbeat:
    """Joins the rank monitor at the first step: its import is heavy, and would hide the trainer's own."""

    def __init__(self) -> None:
        self._client: Any = None

    def __call__(self, step: int, loss: float | None = None) -> None:
        if self._client is None:
            from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

            self._client = RankMonitorClient()
            self._client.init_workload_monitoring()
        self._client.send_heartbeat()


def main() -> None:
    transom_cli.beat = Heartbeat()  # type: ignore[assignment]
    sys.path.insert(0, str(GPT))
    runpy.run_path(str(GPT / "train.py"), run_name="__main__")


if __name__ == "__main__":
    main()
