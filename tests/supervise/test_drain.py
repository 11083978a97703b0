"""Draining: a reason that names check, evidence and run, and never in the place of another's."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_fake import FakeSlurm

from transom_cli.sandbox.cluster import Sandbox
from transom_cli.slurm.cli import CliSlurm
from transom_cli.slurm.port import Node
from transom_cli.supervise.operator.drain import LENGTH, _in_turn, drain, is_ours, reason

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


def _printed(seconds_ago: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - seconds_ago))


def test_drains_of_all_users_count_towards_the_cap_of_the_cluster() -> None:
    slurm = FakeSlurm(admin=True)
    ages: list[list[float | None]] = []

    def capped(found: Sequence[float | None]) -> str:
        ages.append(list(found))
        return "too many" if len(found) > 1 else ""

    def nodes(names: Sequence[str] = ()) -> list[Node]:
        others = [
            Node("n1", "idle", drain=True, reason="transom: xid (of-ann)", reason_at=_printed(600)),
            Node("n3", "idle", drain=True, reason="fans, ticket 12", reason_at=_printed(5)),
            Node("n4", "idle", drain=False, reason="transom: lifted since (r9)", reason_at=_printed(5)),
        ]
        return [*others[:count], Node("n2", "idle")]

    slurm.nodes = nodes  # type: ignore[method-assign]
    count = 3
    assert drain(slurm, (), "n2", OURS, None, capped) == ("drained", "")
    assert len(ages[0]) == 1 and 595 < (ages[0][0] or 0) < 610
    assert drain(slurm, (), "n2", OURS, None, lambda found: "too many") == ("excluded", "too many")
    count = 0
    with _in_turn("n7"):  # another thread is about to drain it
        drain(slurm, (), "n2", OURS, None, capped)
    assert ages[-1] == [0.0]


def test_node_that_is_drained_already_costs_nothing_of_the_cap() -> None:
    slurm = FakeSlurm(admin=True)
    slurm.drain("n2", reason("ecc", "earlier"))
    assert drain(slurm, (), "n2", OURS, None, lambda found: "too many") == ("drained", "")


@pytest.mark.sandbox
def test_age_of_a_drain_is_read_from_a_real_slurm(healed_sandbox: Sandbox, slurm_env: dict[str, str]) -> None:
    ages: list[float | None] = []

    def capped(found: Sequence[float | None]) -> str:
        ages.extend(found)
        return "one is enough"

    healed_sandbox.slurm("scontrol", "update", "nodename=node1", "state=drain", f"reason={OURS}")
    healed_sandbox.slurm("scontrol", "update", "nodename=node3", "state=drain", "reason=fans")
    assert drain(CliSlurm(), (), "node2", OURS, None, capped) == ("excluded", "one is enough")
    assert len(ages) == 1 and ages[0] is not None and -2 < ages[0] < 30
    assert "drain" not in {row.name: row.state for row in healed_sandbox.nodes()}["node2"]
