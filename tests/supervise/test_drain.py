"""Draining: a reason that names check, evidence and run, and never in the place of another's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.slurm.fake import FakeSlurm
from transom_cli.slurm.port import Node
from transom_cli.supervise.operator.drain import LENGTH, drain, is_ours, reason

RUN = "llm-20260101-120000-ab12"
OURS = reason("xid: Xid 79: GPU has fallen off the bus", RUN)


def test_a_reason_names_check_evidence_and_run() -> None:
    assert f"transom: xid: Xid 79: GPU has fallen off the bus ({RUN})" == OURS


@given(st.text(max_size=400), st.integers(1, 121))
def test_a_reason_is_one_printable_line_of_bounded_length_that_ends_with_the_run(why: str, length: int) -> None:
    run = "r" * length
    told = reason(why, run)
    assert len(told) <= LENGTH and told.isprintable()
    assert is_ours(Node("n1", "idle", drain=True, reason=told), run)


def test_a_long_reason_loses_the_end_of_its_evidence() -> None:
    told = reason("xid: " + "x" * 300, RUN)
    assert len(told) == LENGTH and told.startswith("transom: xid: xxx") and told.endswith(f"... ({RUN})")


def test_whose_reason_it_is() -> None:
    node = Node("n1", "idle", drain=True, reason=OURS)
    assert is_ours(node) and is_ours(node, RUN)
    assert not is_ours(node, "another-20260101-120000-ab12")
    assert not is_ours(Node("n1", "idle", drain=True, reason=f"see transom: ({RUN})"), RUN)


@pytest.mark.parametrize("down", [False, True])
def test_a_node_that_somebody_keeps_away_is_left_to_them(down: bool) -> None:
    slurm = FakeSlurm(admin=True)
    node = slurm.cluster.nodes["n2"]
    node.down, node.drain, node.reason, node.reason_user = down, not down, "fans, ticket 12", "ann"
    assert drain(slurm, ("/bin/false",), "n2", OURS) == ("drained", "by ann: fans, ticket 12")
    assert (node.drain, node.reason) == (not down, "fans, ticket 12")
    assert [call[0] for call in slurm.calls] == ["nodes"], "and nobody is asked to"


def test_one_who_may_not_drain_learns_that_somebody_has() -> None:
    slurm = FakeSlurm()
    node = slurm.cluster.nodes["n2"]
    node.drain, node.reason = True, "fans"
    assert drain(slurm, (), "n2", OURS) == ("drained", "by somebody: fans")


def test_ours_is_ours_also_of_an_earlier_run() -> None:
    slurm = FakeSlurm(admin=True)
    slurm.drain("n2", reason("ecc: 3 uncorrected", "earlier"))
    assert drain(slurm, (), "n2", OURS) == ("drained", "")
    assert slurm.cluster.nodes["n2"].reason == "transom: ecc: 3 uncorrected (earlier)"


def test_a_node_that_slurm_itself_took_down_is_drained() -> None:
    """Or it would be back among the living as soon as it answers."""
    slurm = FakeSlurm(admin=True)
    slurm.kill_node("n2")
    slurm.tick(400.0)
    assert slurm.cluster.nodes["n2"].down
    assert drain(slurm, (), "n2", OURS) == ("drained", "")
    assert slurm.cluster.nodes["n2"].drain and slurm.cluster.nodes["n2"].reason == OURS
