"""How a node is, where several things speak of it; and what a torn or foreign file of a node is worth."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from view_made import JOB, NOW, Made, names

from transom_cli.core import events as ev
from transom_cli.core.events import NodeFault
from transom_cli.core.incident import Incident, NodeProbes
from transom_cli.core.operator.actions import Probe
from transom_cli.core.operator.state import Exclusion, Idle, Isolation, Job, State
from transom_cli.heartbeat.table import NodeTable, RankBeat
from transom_cli.view.model import NodeView
from transom_cli.view.node_state import Found, NodeSight, NodeViews
from transom_cli.view.node_table import map_rows, node_table
from transom_cli.view.read_nodes import NodeReader
from transom_cli.view.text import plain

SURE = Found("host:ecc", "fail", "14 uncorrected ECC errors", 0)
MAYBE = Found("log:gpu_hardware", "suspect", "Xid 79", 0)


def _table(
    node: str, *, proc: str = "R", launch: int = 0, closed: bool = False, step: int = 9, count: int = 9
) -> NodeTable:
    ranks = (
        RankBeat(0, launch, step, count, 1.0, None, "step", 1, "R"),
        RankBeat(1, launch, step + 1, count, 2.0, None, "step", 2, proc),
    )
    return NodeTable(node, "7.0", 5, ranks, closed)


def _n2(state: State, sight: NodeSight, slow: dict[str, str] | None = None) -> NodeView:
    sights = {"n1": NodeSight(_table("n1")), "n2": sight}
    return next(one for one in NodeViews().of(state, sights, slow or {}, 10.0) if one.node == "n2")


def test_the_stronger_word_counts() -> None:
    """Each thing that is said of a node is taken away in turn, and the next one is its state."""
    incident = Incident(
        "i1", 7, 0, 1.0, 9, suspect_nodes=("n2",), faults=(NodeFault("n2", "ecc", "FAIL", "14 errors"),)
    )
    everything = State(
        incident=incident,
        pending=(Probe("i1/probe/n2/2", "n2", 7),),
        job=Job(nodes=("n1", "n2"), id=7),
        isolation=Isolation(exclusions=(Exclusion("n2", 1.0, None, "drained", "i1", "node_lost"),)),
    )
    lost = NodeSight(_table("n2", proc="X"), behind=48.0, found=(MAYBE,))
    here = NodeSight(_table("n2", proc="X"), found=(MAYBE, SURE))
    slow = {"n2": "waits least"}
    isolated = everything
    probing = replace(everything, isolation=Isolation())
    silent = replace(probing, pending=())
    calm = State(job=Job(nodes=("n1", "n2"), id=7))
    faulty = replace(calm, idle=Idle(faults=incident.faults))
    told = [
        _n2(isolated, lost, slow),
        _n2(probing, lost, slow),
        _n2(silent, lost, slow),
        _n2(silent, here, slow),
        _n2(faulty, here, slow),
        _n2(calm, here, slow),
        _n2(calm, NodeSight(_table("n2"), found=(MAYBE, SURE)), slow),
        _n2(calm, NodeSight(_table("n2")), slow),
        _n2(calm, NodeSight(_table("n2"))),
        _n2(calm, NodeSight()),
    ]
    assert [(one.state, one.note) for one in told] == [
        ("isolated", "drained: node_lost"),
        ("probing", "probe 2 of the node"),
        ("silent", "no heartbeat for 48 s"),
        ("silent", "its ranks make no progress"),
        ("suspect", "ecc: 14 errors"),
        ("suspect", "rank 1 is gone"),
        ("suspect", "14 uncorrected ECC errors"),
        ("slow", "waits least"),
        ("ok", ""),
        ("waiting", "its agent has not reported yet"),
    ]


def test_ranks_that_fell_with_another_node_make_no_suspect() -> None:
    blamed = Incident("i1", 7, 0, 1.0, 9, suspect_nodes=("n1",))
    fell = NodeSight(_table("n2", proc="X"))
    job = Job(nodes=("n1", "n2"), id=7)
    assert _n2(State(incident=blamed, job=job), fell).state == "waiting"
    assert _n2(State(job=job), fell).state == "suspect", "nothing speaks of another node"


def test_node_whose_ranks_fell_with_another_one_reads_as_waiting(tmp_path: Path) -> None:
    view = Made(tmp_path).began().beats().view()
    fell = replace(view.node_views[0], state="waiting", note="its ranks have ended, for the fault of another node")
    shown = plain(map_rows(replace(view, node_views=(fell, *view.node_views[1:])), 120)[0])
    assert shown.endswith("(- waiting)"), "it trained before, so there was a sign of it"


def test_numbers_are_of_the_slowest_rank_that_beats() -> None:
    one = _n2(State(job=Job(nodes=("n1", "n2"))), NodeSight(_table("n2", proc="Z"), behind=3.0))
    assert (one.step, one.beat_age, one.ranks, one.alive, one.phase) == (9, 5.0, 2, 1, "step")
    quiet = _n2(State(job=Job(nodes=("n1", "n2"))), NodeSight(_table("n2", step=-1, count=0)))
    assert (quiet.step, quiet.beat_age, quiet.ranks) == (-1, None, 2)


def test_an_agent_that_said_goodbye_is_not_silent() -> None:
    assert _n2(State(job=Job(nodes=("n1", "n2"))), NodeSight(_table("n2", closed=True), behind=99.0)).state == "ok"


def test_a_checks_last_word_counts_and_logs_of_this_launch() -> None:
    state = State(job=Job(nodes=("n1", "n2")))
    over = Found("host:ecc", "pass", "well again", 0)
    assert _n2(state, NodeSight(_table("n2"), found=(SURE, over))).state == "ok"
    assert _n2(state, NodeSight(_table("n2"), found=(MAYBE,))).state == "suspect"
    sights = {"n2": NodeSight(_table("n2", launch=1), found=(MAYBE,))}
    state = State(job=Job(nodes=("n2",)))
    assert NodeViews().of(state, sights, {}, 10.0)[0].state == "ok", "a log line of the launch before"


def test_roles() -> None:
    state = State(job=Job(nodes=("n1", "n2", "n3")), idle=Idle(nodes=("n1", "n3"), probes=(NodeProbes("n3"),)))
    views = NodeViews().of(state, {"n2": NodeSight(_table("n2"))}, {}, 10.0)
    assert [(one.node, one.role) for one in views] == [("n2", "ranks"), ("n3", "out"), ("n1", "spare")]
    assert NodeViews().of(state, {}, {}, 10.0) == ()


@pytest.mark.parametrize("data", [b"", b"TBT2nonsense", b"\0" * 200])
def test_a_table_that_is_none_is_passed(data: bytes, tmp_path: Path) -> None:
    made = Made(tmp_path).beats()
    attempt = made.run.attempt(JOB, 0)
    (attempt.nodes / "gpu001.beats").write_bytes(data)
    (attempt.nodes / ".gpu002.beats.tmp").write_bytes(data)
    os.utime(attempt.nodes / "gpu002.beats", (NOW - 100, NOW - 100))
    sights, newest = NodeReader().read(attempt)
    assert set(sights) == {"gpu000", "gpu002", "gpu003"} and newest == pytest.approx(NOW - 0.6)
    assert sights["gpu002"].behind == pytest.approx(99.4)


def test_findings_are_read_from_their_end_and_torn_lines_passed(tmp_path: Path) -> None:
    made = Made(tmp_path).beats()
    for i in range(900):
        made.found("gpu001", f"host:x{i}", "monitor", "x" * 100)
    made.found("gpu001", "host:ecc", "fail", "bad").found("gpu002", "host:clock", "monitor", "no NTP")
    with made.run.attempt(JOB, 0).findings("gpu001").open("a") as file:
        file.write('{"kind": "host:z", "verdict": "fail", "wor')
    sights, _ = NodeReader().read(made.run.attempt(JOB, 0))
    assert sights["gpu001"].found[-1] == Found("host:ecc", "fail", "bad", 0)
    assert len(sights["gpu001"].found) < 901 and sights["gpu002"].found == ()


def test_an_attempt_that_has_no_folder_has_no_nodes(tmp_path: Path) -> None:
    assert NodeReader().read(Made(tmp_path).run.attempt(JOB, 3)) == ({}, None)


def test_the_table_counts_what_it_does_not_list(tmp_path: Path) -> None:
    made = Made(tmp_path, nodes=6).began().beats(only=names(4), dead={"gpu001": "Z"})
    view = made.view()
    last = plain(node_table(view, everything=False)[-1])
    assert last == "3 nodes ok, 2 nodes waiting, not listed (--all lists them)"
    assert len(node_table(view, everything=True)) == 1 + 6
    assert node_table(Made(tmp_path / "x").began().beats().view(), everything=False) == []


def test_of_a_run_that_is_over_the_tables_tell_the_last_step_and_no_node(tmp_path: Path) -> None:
    made = Made(tmp_path).began().stepped(60).beats(120000).seen((5.0, ev.JobSeen(0, JOB, 0, "COMPLETED", exit_code=0)))
    view = made.operator(None).view()
    assert (view.phase, view.step, view.nodes_at, view.node_views) == ("done", 120000, None, ())


def test_node_that_the_run_gave_up_is_not_silent() -> None:
    out = State(job=Job(nodes=("n1", "n2")), idle=Idle(nodes=("n2",), probes=(NodeProbes("n2"),)))
    gone = NodeSight(_table("n2"), behind=68.0)
    assert (_n2(out, gone).role, _n2(out, gone).state, _n2(out, gone).note) == ("out", "waiting", "")
    assert _n2(replace(out, idle=Idle()), gone).state == "silent"
