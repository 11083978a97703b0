"""A node's probe processes as the examiner has them: the head is told when one ends, in words that it understands."""

from __future__ import annotations

import queue
import sys
from pathlib import Path
from typing import Any

from transom_cli.health.probe.shapes import Answer, Gone, answer_from_json
from transom_cli.health.probing import Probes


def answers(python: list[str], devices: int = 0) -> list[tuple[int, Answer]]:
    """What is said of each process; they all end."""
    came: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    probes = Probes("n1", came.put)
    try:
        probes.start({"python": python, "devices": devices})
        messages = [came.get(timeout=30) for _ in range(max(1, devices))]
    finally:
        probes.end()
    return sorted((m["index"], answer_from_json(m["answer"])) for m in messages)


def script(path: Path, text: str) -> list[str]:
    path.write_text(text)
    return [sys.executable, str(path)]


def test_one_that_is_killed_is_told_at_once_with_the_signal(tmp_path: Path) -> None:
    killed = script(tmp_path / "a.py", "import os\nos.kill(os.getpid(), 9)\n")
    assert answers(killed) == [(0, Gone("the probe process ended with signal 9"))]


def test_the_last_line_of_one_that_fails_is_told(tmp_path: Path) -> None:
    failing = script(tmp_path / "a.py", "import sys\nsys.exit('no such device')\n")
    assert answers(failing) == [(0, Gone("the probe process ended with exit code 1. no such device"))]


def test_an_interpreter_that_is_not_there_is_told() -> None:
    assert answers(["/nowhere/python"]) == [(0, Gone("/nowhere/python cannot be started: No such file or directory"))]


def test_each_device_has_a_process_that_knows_how_many_there_are(tmp_path: Path) -> None:
    telling = script(tmp_path / "a.py", "import sys\nsys.exit(' '.join(sys.argv[3:]))\n")
    found = answers(telling, devices=2)
    for index, gone in found:
        assert isinstance(gone, Gone)
        assert gone.error.endswith(f"--node n1 --index {index} --device cuda:{index} --of 2")
