"""What concerns a node, and what happened around a step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from transom_cli.core.operator.state import Phase
from transom_cli.layout import RunDir
from transom_cli.supervise.record_reader import read_findings, read_run_record
from transom_cli.supervise.run_record import RunRecord
from transom_cli.view.explain import (
    about_node,
    about_step,
    newest_step,
    run_nodes,
    topic_document,
    topic_lines,
)

RECORDED = Path(__file__).parent / "recorded"
NAMES = sorted(path.name for path in RECORDED.iterdir())


def book(name: str) -> RunRecord:
    return read_run_record(RunDir(RECORDED / name), now=2e9)


def test_a_node_that_was_drained() -> None:
    topic = about_node(book("node_killed"), "node2", [(1795340600.0, "11.0", "fail, host:room: full")])
    assert topic.title.startswith("node2  drained ") and "until the end of the run" in topic.title
    going = book("node_killed")
    going = replace(going, state=replace(going.state, phase=Phase.TRAINING))
    assert "until `transom nodes --lift node2`: node2 lost: " in about_node(going, "node2").title
    said = [(fact.where, fact.message) for fact in topic.facts]
    assert said[0] == ("11.0", "runs ranks, as one of 3 nodes (launch 0)")
    assert said[1] == ("11.0", "fail, host:room: full")
    assert said[-2:] == [("i1", "node2 drained"), ("i1", "job requeued without node2")]
    assert sum("no slurmd listens on it" in words and "(2 times)" in words for _, words in said) == 1
    assert [story.id for story in topic.incidents] == ["i1"]
    assert topic_lines(topic)[-1] == "details: `transom explain node_killed i1`"


def test_a_node_is_not_taken_for_one_whose_name_begins_alike() -> None:
    marks = [fact.message for fact in about_node(book("node_killed"), "node1").facts if fact.where == "i1"]
    assert marks and not any("node2" in words for words in marks)
    assert not about_node(book("node_killed"), "node").facts


def test_a_spare_that_took_a_place() -> None:
    said = [fact.message for fact in about_node(book("bad_gpu"), "node3").facts]
    assert said[0] == "runs no rank (launch 0)" and "spare: ready" in said
    assert said[-2:] == ["runs ranks, as one of 2 nodes (launch 1)", "spare node3 for node2"]


def test_nodes_in_the_order_in_which_they_came() -> None:
    assert run_nodes(book("node_killed")) == ("node1", "node2", "node3", "node4")


def test_around_a_step() -> None:
    topic = about_step(book("node_killed"), 30)
    assert [(f.where, f.message) for f in topic.facts] == [
        ("disk", "checkpoint 25 is on disk, the last before this step"),
        ("11.1", "done in launch 0, estimated: step 35 was done 0.5 s later"),
        ("disk", "checkpoint 35 is on disk, the first with this step"),
    ]
    assert [story.id for story in topic.incidents] == ["i1"]


def test_a_step_that_was_lost_and_done_again() -> None:
    topic = about_step(book("time_limit"), 39)
    assert topic.title == "step 39 of time_limit, done 2 times"
    assert ("i1", "lost, and repeated later") in [(f.where, f.message) for f in topic.facts]


def test_the_newest_step() -> None:
    assert newest_step(book("node_killed")) == 60 and newest_step(book("user_error")) == -1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_slurm_source(name: str, width: int) -> None:
    found = book(name)
    topics = [about_node(found, node) for node in run_nodes(found)] + [about_step(found, step) for step in (0, 5, 39)]
    for topic in topics:
        assert all(len(line) <= width and line.isprintable() for line in topic_lines(topic, width))
        assert json.loads(json.dumps(topic_document(topic)))["incidents"] == [s.id for s in topic.incidents]


def test_findings_of_an_agent_in_the_order_of_time_and_only_what_speaks_against_the_node(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for restart, wall in ((0, 5.0), (1, 9.0)):
        attempt = run.attempt(7, restart)
        attempt.nodes.mkdir(parents=True)
        lines = [{"wall": wall, "kind": "host:ecc", "verdict": v, "words": "1 error"} for v in ("fail", "pass")]
        attempt.findings("n1").write_text("\n".join(map(json.dumps, [*lines, {"wall": "x"}])) + '\n{"torn')
    assert read_findings(run, "n1") == (
        (5.0, "7.0", "fail, host:ecc: 1 error"),
        (9.0, "7.1", "fail, host:ecc: 1 error"),
    )
    assert read_findings(run, "n2") == ()


def test_what_was_reported_of_a_node_and_around_a_step_without_an_incident() -> None:
    found = book("rank_killed")
    wall = found.history.begin / 1e9 + 4
    slow = {
        "type": "recovery",
        "wall": wall,
        "incident": "",
        "what": "reported",
        "words": "a node is slow",
        "nodes": ["node2"],
    }
    loss = {"type": "report", "wall": wall, "step": 14, "over": False, "words": "a spike"}
    launchers = tuple(replace(one, records=(*one.records, slow, loss)) for one in found.launchers)
    found = replace(found, launchers=launchers)
    assert "a node is slow" in [fact.message for fact in about_node(found, "node2").facts]
    assert "a node is slow" not in [fact.message for fact in about_node(found, "node1").facts]
    assert "step 14: a spike" in [fact.message for fact in about_step(found, 10).facts]
