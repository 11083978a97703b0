"""Slurm's topology, as `scontrol show topology` prints it."""

from __future__ import annotations

from transom_cli.slurm.parse import switches_of


def test_slurms_topology_is_read_as_a_tree_and_as_blocks() -> None:
    names = {"n[0-1]": ("n0", "n1"), "n[2-3]": ("n2", "n3"), "n[0-3]": ("n0", "n1", "n2", "n3")}
    text = "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-1] \nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[2-3]\n"
    text += "SwitchName=top Level=1 LinkSpeed=1 Nodes=n[0-3] Switches=s[0-1]\n"
    assert switches_of(text, names.__getitem__)["n2"] == ("top", "s1")
    blocks = "BlockName=b1 BlockIndex=0 Nodes=n[0-1] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n[2-3] BlockSize=2\n"
    assert switches_of(blocks, names.__getitem__) == {"n0": ("b1",), "n1": ("b1",), "n2": ("b2",), "n3": ("b2",)}
