"""`transom explain` and `transom goodput` as a person types them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli_support import transom

from transom_cli.layout import RunDir

RECORDED = Path(__file__).parents[1] / "view" / "recorded" / "node_killed"


@pytest.fixture
def died(run: RunDir) -> RunDir:
    shutil.copytree(RECORDED, run.path, dirs_exist_ok=True)
    return run


def test_one_word_is_a_run_an_incident_a_node_or_a_step(died: RunDir) -> None:
    root = ("--root", died.path.parent)
    whole = transom("explain", died.run_id, *root).stdout
    assert whole.startswith("i1  node2 lost  drained, back in 9.4 s\n")
    assert (
        transom("explain", "r", *root, "--no-color").stdout == whole and "evidence  127.0.0.1:31483: no slurmd" in whole
    )
    one = transom("explain", "i1", *root).stdout
    assert (
        one.startswith(whole.partition("\n\n")[0]) and "job requeued without node2" in one and "requeued" not in whole
    )
    for words in (("r", "--verbose"), (died.path, "-i", "i1")):
        assert transom("explain", *words, *root).stdout == one
    assert transom("explain", "node2", *root).stdout.startswith("node2  drained ")
    assert transom("explain", "r", "node2", *root).stdout.startswith("node2  drained ")
    assert transom("explain", "30", *root).stdout.startswith(f"step 30 of {died.run_id}\n")


@pytest.mark.parametrize(
    ("words", "code", "what", "why"),
    [
        (("r", "i9"), 2, "has no incident `i9`", "it has: i1"),
        (("r", "gpu7"), 2, "has nothing named `gpu7`", "its nodes: node1, node2, node3, node4"),
        (("r", "1,000"), 2, "has not reached step 1,000", "the newest step on record is 60"),
        (("elsewhere",), 10, "`elsewhere` is neither a run nor a node of the newest run", "its nodes: node1, node2"),
        (("elsewhere", "i1"), 10, "no run `elsewhere`", "the newest are"),
    ],
)
def test_what_there_is_not(died: RunDir, words: tuple[str, ...], code: int, what: str, why: str) -> None:
    done = transom("explain", *words, "--root", died.path.parent)
    assert done.returncode == code and what in done.stderr and why in done.stderr, done.stderr
    found = json.loads(transom("explain", *words, "--root", died.path.parent, "--json").stdout)
    assert found["exit_code"] == code and what in found["error"]["what"]


def test_documents(died: RunDir) -> None:
    found = json.loads(transom("explain", died.path, "--json").stdout)
    assert (found["schema"], found["phase"], [i["id"] for i in found["incidents"]]) == (2, "done", ["i1"])
    node = json.loads(transom("explain", died.path, "node2", "--json").stdout)
    assert (node["schema"], node["about"], node["incidents"]) == (2, "node2", ["i1"]) and node["facts"][0]["at"]
    spent = json.loads(transom("goodput", died.path, "--json").stdout)
    assert spent["schema"] == 1 and sum(spent["seconds"].values()) == pytest.approx(spent["wall_seconds"])
    assert transom("goodput", died.path).stdout.startswith(f"{died.run_id}  goodput 25.2%  of 26 s from submission")


def test_a_run_without_an_incident(run: RunDir) -> None:
    assert transom("explain", run.path).stdout == f"{run.run_id}: no incident so far\n"
    assert transom("goodput", run.path).returncode == 0
