"""Copies over two nodes: each writes its part, and a restore finds both."""

from __future__ import annotations

from pathlib import Path

import pytest
from ckpt_memory_nodes import Nodes

from transom_cli.ckpt.inventory import candidates, verify


def good(directory: Path) -> list[int]:
    return [found.step for found in candidates(directory) if verify(found).good]


@pytest.mark.long
def test_both_nodes_write_into_a_directory_that_they_share(tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    with Nodes(tmp_path / "c", "none", ["n0", "n1"], also=str(copies)) as nodes:
        nodes.start(steps=2, launch=0)
        nodes.until("settled")
        nodes.finish()
        assert (good(tmp_path / "c"), good(copies)) == ([2], [2])
        assert (copies / "step-2" / "__1_0.distcp").stat().st_size > 0
        nodes.kill_holder("n0")
        nodes.kill_holder("n1")
        (tmp_path / "c" / "step-2" / "__1_0.distcp").unlink()
        nodes.start(steps=1, launch=1)
        assert nodes.until("restored") == [["restored 2"]] * 2
        nodes.until("settled")
        nodes.finish()
        assert f"restored step-2 in {copies}" in nodes.said()
