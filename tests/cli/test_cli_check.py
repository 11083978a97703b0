"""`transom check -w`: which nodes it takes."""

from __future__ import annotations

import pytest

from transom_cli.bootstrap import slurm
from transom_cli.cli import check
from transom_cli.errors import UsageError
from transom_cli.slurm.port import Node


def test_node_that_slurm_does_not_have_is_refused_with_those_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "partitions", lambda: {"main": ()})
    monkeypatch.setattr(slurm, "known_nodes", lambda _inside: tuple(Node(f"n{i}", "idle") for i in range(1, 5)))
    check._require_known(["n2", "n3"])
    with pytest.raises(UsageError) as refused:
        check._require_known(["n2", "n9"])
    assert (refused.value.what, refused.value.why) == ("There is no node `n9`", "the nodes are: n[1-4]")
    assert "--nodelist" in refused.value.hint


def test_without_an_answer_of_slurm_any_host_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "partitions", dict)
    check._require_known(["n9"])
