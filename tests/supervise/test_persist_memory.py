"""Which node is asked to make a step durable that is held in memory, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from transom_cli.supervise.launcher.final_checkpoint import persist_memory

NODES = ("n1", "n2", "n3")


class Nodes:
    """What each node holds, as (step, durable), and what it says when it is to make a step durable."""

    def __init__(self, directory: Path, held: Mapping[str, tuple[int, bool]], **says: dict[str, object]) -> None:
        self.directory, self.held, self.says = str(directory), held, says
        self.asked: list[tuple[str, object]] = []

    def ask(self, nodes: tuple[str, ...], _: float, about: dict[str, object]) -> dict[str, dict[str, object]]:
        if about:
            (node,) = nodes
            assert about["directory"] == self.directory and about["launch"] == 3
            self.asked.append((node, about["step"]))
            return {node: {"ok": True, **self.says.get(node, {"state": "done", "trouble": ""})}}
        return {node: self._tell(node) for node in nodes}

    def _tell(self, node: str) -> dict[str, object]:
        if node not in self.held:
            return {"error": "it cannot be reached"}
        step, durable = self.held[node]
        return {"ok": True, "newest": [{"directory": self.directory, "step": step, "durable": durable}]}


def test_a_node_that_has_the_newest_step_is_asked(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, {"n1": (8, False), "n2": (9, False), "n3": (9, False)})
    assert persist_memory(nodes.ask, NODES, tmp_path, 3, 14.0) == "step 9 was made durable from memory"
    assert nodes.asked == [("n2", 9)]


def test_the_next_one_is_asked_where_one_cannot(tmp_path: Path) -> None:
    held = {"n1": (9, False), "n3": (9, False)}
    nodes = Nodes(tmp_path, held, n1={"state": "failed", "trouble": "No space left on device"})
    assert persist_memory(nodes.ask, NODES, tmp_path, 3, 14.0) == "step 9 was made durable from memory"
    assert nodes.asked == [("n1", 9), ("n3", 9)]
    nodes = Nodes(tmp_path, {"n1": (9, False)}, n1={"state": "failed", "trouble": "No space left on device"})
    words = "step 9, which was held in memory, could not be made durable: No space left on device"
    assert persist_memory(nodes.ask, NODES, tmp_path, 3, 14.0) == words


def test_what_is_durable_or_not_there_is_left_alone(tmp_path: Path) -> None:
    for held in ({"n1": (9, True), "n2": (9, False)}, {}):
        nodes = Nodes(tmp_path, held)
        assert persist_memory(nodes.ask, NODES, tmp_path, 3, 14.0) == "" and nodes.asked == []


def test_a_folder_that_is_not_the_runs_own_is_named(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "else", {"n1": (9, False)})
    words = f"step 9 was made durable from memory in {tmp_path / 'else'}"
    assert persist_memory(nodes.ask, NODES, tmp_path, 3, 14.0) == words


def test_when_the_time_is_up_nobody_is_asked(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, {"n1": (9, False)})
    assert "there is no time for it" in persist_memory(nodes.ask, NODES, tmp_path, 3, 0.0)
    assert nodes.asked == []
