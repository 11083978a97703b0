"""`transom ckpt plan`, and that its formula is what snapshots take."""

from __future__ import annotations

import json

import pytest
from ckpt_memory_job import Job
from typer.testing import CliRunner

from transom_cli.ckpt.snapshot.protection import memory_plan, parse
from transom_cli.cli.ckpt import ckpt_app
from transom_cli.errors import UsageError


@pytest.mark.parametrize(("protect", "nodes"), [("replica", 2), ("xor:2", 3), ("rs:2+2", 4), ("rs:4+2", 6)])
def test_parity_is_as_large_as_planned(protect: str, nodes: int) -> None:
    each = 12_800  # divisible into chunks of whole cache lines
    data = [bytes([n]) * each for n in range(nodes)]
    job = Job(protect, data)
    job.commit(5, data)
    job.protect(5)
    plan = memory_plan(nodes * each, nodes, 1, parse(protect), every_durable=True)
    assert {training.parity.size for training in job.trainings.values()} == {plan.parity}


@pytest.mark.parametrize(
    ("protect", "durable", "times"),
    [
        ("none", True, 3 * 33 / 32),
        ("replica", True, 2 * 33 / 32 + 1),
        ("replica", False, 2 * 33 / 32 + 2),
        ("xor:4", True, 2 * 33 / 32 + 1 / 4),
        ("rs:4+2", False, 2 * 33 / 32 + 2 * 2 / 4),
    ],
)
def test_memory_of_a_node_by_protection(protect: str, durable: bool, times: float) -> None:
    plan = memory_plan(60 << 30, 60 * 8, 8, parse(protect), every_durable=durable)
    assert plan.node_share == 1 << 30
    assert plan.total / plan.node_share == pytest.approx(times)


def test_too_few_nodes_for_the_code_hold_copies_and_one_node_holds_nothing() -> None:
    assert memory_plan(3 << 30, 24, 8, parse("rs:4+2"), every_durable=True).parity == 2 << 30
    assert memory_plan(1 << 30, 8, 8, parse("rs:4+2"), every_durable=True).parity == 0


def test_plan_is_shown_before_a_run() -> None:
    words = ["plan", "--params", "70e9", "--ranks", "512", "--protect", "xor:4"]
    result = CliRunner().invoke(ckpt_app, words)
    assert result.exit_code == 0
    rows = {line[:18].strip(): line[18:].split() for line in result.stdout.splitlines()}
    assert rows["state"][:2] == ["782.3", "GiB"]
    assert rows["share of a node"][:2] == ["12.2", "GiB"]
    assert rows["memory of a node"][:2] == ["28.3", "GiB"]
    document = json.loads(CliRunner().invoke(ckpt_app, [*words, "--json"]).stdout)
    assert document["total"] == document["buffers"] + document["parity"] and document["nodes"] == 64


@pytest.mark.parametrize(
    ("words", "why"), [(["--params", "0"], "`--params 0` is not a number"), (["--protect", "raid5"], "raid5")]
)
def test_bad_plans_are_refused(words: list[str], why: str) -> None:
    result = CliRunner().invoke(ckpt_app, ["plan", "--params", "1e9", "--ranks", "8", *words])
    assert isinstance(result.exception, UsageError) and why in str(result.exception)
