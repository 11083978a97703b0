"""The pure parts of bench/health_matrix.py: its table of faults, and how a row is judged."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import nvml_stub
from health_faults import _NEW_ON_ONE_GPU, _OF_ONE_GPU, FAULTS, codes, line_of
from health_matrix import chosen
from health_rows import NODES, PLACES, Fault, Row, action, as_json, counts, hangs, judged, neighbour, table

from transom_cli.errors import UsageError
from transom_cli.health.checks.fabric import EVENTS
from transom_cli.health.checks.host import EDAC_NEW
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu import xid
from transom_cli.health.registry import CHECKS, finding_names, limit_names

DISK = Fault("disk full", ("room",), Verdict.SUSPECT)
CLOCK = Fault("clock off", ("clock_offset",), Verdict.MONITOR)
LINK = Fault("link cut", ("link",), Verdict.MONITOR, pair=True)


def said(check: str, verdict: Verdict, *nodes: str) -> list[Finding]:
    """What the check says of these nodes; of the others, that they are well."""
    return [Finding(check, verdict if n in nodes else Verdict.PASS, n, "words", Remedy.AVOID) for n in NODES]


def test_there_are_faults_enough_and_each_is_tried_at_three_places() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names)) >= 25
    assert list(PLACES.values()) == [NODES[0], NODES[2], NODES[-1]]


def test_every_fault_does_something() -> None:
    did = ("gpus", "log", "files", "shell", "env", "clock", "site", "net", "do", "never")
    assert [f.name for f in FAULTS if not any(getattr(f, what) for what in did)] == []
    assert [f.name for f in FAULTS if bool(f.when) != bool(f.do)] == []


def test_every_expected_check_and_every_threshold_exists() -> None:
    events = {*EVENTS, EDAC_NEW}
    known = {name.rstrip(":") for name in finding_names()} | events
    assert {check for fault in FAULTS for check in fault.checks} - known == set()
    assert {name for fault in FAULTS for name, _ in fault.limits} <= set(limit_names())
    watched = [c for c in CHECKS if c.changes is not None]
    assert watched and {c for f in FAULTS if f.watch for c in f.checks} <= events | {
        n for c in watched for n in c.findings
    }


def test_every_fault_of_the_stub_has_a_row() -> None:
    assert set(nvml_stub.FAULTS) == set(_OF_ONE_GPU) | set(_NEW_ON_ONE_GPU)


def test_every_xid_of_the_catalogue_is_written_to_a_log() -> None:
    rows = [f for f in FAULTS if f.codes]
    written = [line for fault in rows for line in fault.log]
    assert len(written) == len(set(written)) == sum(f.codes for f in rows)
    seen = {(x.kind, str(x.code)) for line in written if (x := xid.parse_xid(line))}
    assert seen == {key for key in xid.catalogue().rules if key[0] == "xid" and key != ("xid", "154")}
    assert xid.parse_xid(line_of("sxid", "20034")) is not None
    assert "79" in codes(Verdict.FAIL)


@pytest.mark.parametrize("place", PLACES)
def test_found_and_named(place: str) -> None:
    row = judged(DISK, place, said("room:/scratch", Verdict.SUSPECT, PLACES[place]), 0.5)
    assert (row.found, row.named, row.action, row.node) == (True, True, "swapped, excluded", PLACES[place])


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.UNKNOWN, Verdict.MONITOR, Verdict.FAIL])
def test_another_verdict_than_expected_is_missed(verdict: Verdict) -> None:
    row = judged(DISK, "first", said("room:/scratch", verdict, "node1"), 0.5)
    assert (row.found, row.verdict) == (False, verdict.value)


def test_what_another_check_says_does_not_count_and_silence_is_missed() -> None:
    assert not judged(DISK, "first", said("mount:/scratch", Verdict.SUSPECT, "node1"), 0.5).found
    assert (judged(DISK, "first", [], 0.5).found, judged(DISK, "first", [], 0.5).verdict) == (False, "nothing")


def test_bad_verdict_on_a_healthy_node_counts_as_wrong() -> None:
    right = said("room:/scratch", Verdict.SUSPECT, "node1")
    row = judged(DISK, "first", [*right, *said("gpu_lost", Verdict.FAIL, "node4")], 0.5)
    assert (row.found, row.named) == (True, False) and row.others == ("node4: gpu_lost fail: words",)
    assert judged(DISK, "first", [*right, *said("room:/tmp", Verdict.MONITOR, "node4")], 0.5).named


def test_report_only_fault_must_not_name_a_healthy_node() -> None:
    assert judged(CLOCK, "last", said("clock_offset", Verdict.MONITOR, "node4"), 0.5).well
    both = judged(CLOCK, "last", said("clock_offset", Verdict.MONITOR, "node4", "node2"), 0.5)
    assert (both.found, both.named) == (True, False)


def test_report_only_fault_must_not_exclude_the_node() -> None:
    told = said("link", Verdict.MONITOR, "node3", "node2")
    row = judged(LINK, "middle", [*told, *said("link_node", Verdict.SUSPECT, "node2")], 0.5)
    assert (row.found, row.verdict, row.short) == (False, "suspect", "link_node")


def test_both_ends_of_a_link_are_reported() -> None:
    assert neighbour("node1") == "node4" and neighbour("node3") == "node2"
    assert judged(LINK, "middle", said("link", Verdict.MONITOR, "node3", "node2"), 0.5).well
    assert not judged(LINK, "middle", said("link", Verdict.MONITOR, "node3"), 0.5).found


def test_of_many_codes_each_must_be_said() -> None:
    two = Fault("2 Xids", ("gpu_xid",), Verdict.FAIL, codes=2)
    one = said("gpu_xid", Verdict.FAIL, "node1")
    assert not judged(two, "first", one, 0.5).found
    assert judged(two, "first", [*one, *one], 0.5).found
    assert not judged(two, "first", [*one, *said("gpu_xid", Verdict.SUSPECT, "node1")], 0.5).found


@pytest.mark.parametrize(
    ("verdict", "does", "beside_a_training"),
    [
        (Verdict.FAIL, "swapped, drained", "drained, launch ended at once"),
        (Verdict.SUSPECT, "swapped, excluded", "remembered"),
        (Verdict.MONITOR, "reported", "reported"),
        (Verdict.UNKNOWN, "reported", "reported"),
        (Verdict.PASS, "none", "none"),
    ],
)
def test_what_the_supervisor_does(verdict: Verdict, does: str, beside_a_training: str) -> None:
    findings = said("gpu_rows", verdict, "node3")
    assert action("node3", findings) == does
    assert action("node3", findings, watched=True) == beside_a_training


def test_two_bad_nodes_of_four_leave_too_few_for_three() -> None:
    assert action("node3", said("gpu_rows", Verdict.FAIL, "node3", "node4")) == "attempt left, drained"


def test_the_table_counts_what_was_missed_and_what_was_not_tried() -> None:
    rows = [
        Row("a", "first", "node1", True, True, "room:/x", "suspect", "swapped, excluded", 0.5, "full"),
        Row("a", "last", "node4", False, False, "room:/x", "pass", "none", 1.5, "fine", ("node2: load fail: busy",)),
        Row("b", "first", "node1", untried="no tc"),
    ]
    n = counts(rows)
    assert (n["found"], n["named"], n["missed"], n["innocent_named"], n["not_tried"]) == (1, 1, 1, 1, 1)
    lines = table(rows)
    assert lines[1].split() == ["a", "1/2", "1/2", "suspect/pass", "room", "swapped,", "excluded/none", "0.5", "1.5"]
    assert lines[2].endswith("not tried: no tc"), "never counted as found"
    assert "missed: a, last (node4): pass room:/x fine" in lines and "    node2: load fail: busy" in lines
    assert lines[-1].startswith("1 faults, 2 rows: 1 found, 1 with the right node named, 1 missed, 1 with an innocent")
    assert as_json(rows)[1]["others"] == ("node2: load fail: busy",)


def test_hung_check_is_reported_beside_healthy_ones() -> None:
    rows = [Row("nvml hangs", place, node, seconds=30.0) for place, node in PLACES.items()] + [Row("b", "first", "n")]
    assert hangs(rows, 0.5) == ["nvml hangs: median 30.0 s, 0.5 s where nothing hangs"]


def test_faults_are_chosen_by_how_their_names_begin() -> None:
    assert {f.name for f in chosen("disk, link cut")} == {
        "disk full", "disk without inodes", "disk nearly full", "link cut",
    }  # fmt: skip
    assert chosen("-") == () and chosen("") == FAULTS
    with pytest.raises(UsageError):
        chosen("disk,earthquake")
