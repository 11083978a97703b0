"""A node worker's probe processes: it reports when one ends, and why."""

from __future__ import annotations

import queue
import sys
from pathlib import Path
from typing import Any

from transom_cli.health.node_worker import ProbeProcesses
from transom_cli.health.probe.messages import Answer, Gone, answer_from_json


def answers(python: list[str], devices: int = 0) -> list[tuple[int, Answer]]:
    """What is said of each process; they all end."""
    came: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    probes = ProbeProcesses("n1", came.put)
    try:
        probes.start({"python": python, "devices": devices})
        messages = [came.get(timeout=30) for _ in range(max(1, devices))]
    finally:
        probes.kill()
    return sorted((m["index"], answer_from_json(m["answer"])) for m in messages)


def script(path: Path, text: str) -> list[str]:
    path.write_text(text)
    return [sys.executable, str(path)]


def test_killed_process_is_reported_with_its_signal(tmp_path: Path) -> None:
    killed = script(tmp_path / "a.py", "import os\nos.kill(os.getpid(), 9)\n")
    assert answers(killed) == [(0, Gone("the probe process was killed by signal 9"))]


def test_last_line_of_a_failing_process_is_reported(tmp_path: Path) -> None:
    failing = script(tmp_path / "a.py", "import sys\nsys.exit('no such device')\n")
    assert answers(failing) == [(0, Gone("the probe process ended with exit code 1. no such device"))]


def test_missing_interpreter_is_reported() -> None:
    assert answers(["/nowhere/python"]) == [(0, Gone("cannot start /nowhere/python: No such file or directory"))]


def test_each_device_gets_a_process_that_knows_their_number(tmp_path: Path) -> None:
    telling = script(tmp_path / "a.py", "import sys\nsys.exit(' '.join(sys.argv[3:]))\n")
    found = answers(telling, devices=2)
    for index, gone in found:
        assert isinstance(gone, Gone)
        assert gone.error.endswith(f"--node n1 --index {index} --device cuda:{index} --of 2")
