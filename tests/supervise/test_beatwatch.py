"""What the launcher sees of nodes that fall silent alone, or all together."""

from __future__ import annotations

from pathlib import Path

from transom_cli.beats.table import NodeTable, encode
from transom_cli.core.quiet import QuietLimits
from transom_cli.supervise.beatwatch import BeatWatch


class Nodes:
    def __init__(self, folder: Path) -> None:
        self.folder, self.seq = folder, 0
        self.watch = BeatWatch(folder, QuietLimits())

    def look(self, now: float, *alive: str) -> tuple[tuple[str, float], ...]:
        self.seq += 1
        for node in alive:
            (self.folder / f"{node}.beats").write_bytes(encode(NodeTable(node, "7.0", self.seq, ())))
        self.watch.look(now)
        return self.watch.alone(now)


def test_a_node_that_falls_silent_alone(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    assert nodes.look(0.0, "n1", "n2") == ()
    for now in range(1, 4):
        assert nodes.look(float(now), "n1") == (), "an agent may be late"
    assert nodes.look(4.0, "n1") == (("n2", 0.0),)
    assert nodes.look(9.0, "n1") == (("n2", 5.0),)
    assert nodes.look(10.0, "n1", "n2") == ()


def test_all_that_fall_silent_together_are_the_file_systems_trouble(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    nodes.look(0.0, "n1", "n2")
    assert nodes.look(60.0) == ()
    assert nodes.look(61.0, "n1") == (("n2", 0.0),), "the first that is heard again proves nothing against the others"
    assert nodes.look(61.5, "n1", "n2") == ()
