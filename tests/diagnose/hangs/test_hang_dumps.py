"""Flight recorder dumps as they come: values alone are read, whatever else is in the file."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
from typing import Any

import hang_made
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.diagnose.hangs import dumps, flight_recorder
from transom_cli.diagnose.hangs.dumps import BadDump
from transom_cli.diagnose.hangs.flight_recorder import Count

ENTRY = hang_made.entry("0", 7, "all_reduce", state="scheduled", record=7)
PLAIN: dict[str, Any] = {"version": "2.10", "pg_config": {}, "entries": [ENTRY]}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 80), 1 << 80) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("false",)


@given(VALUES, st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_plain_values_come_as_they_were(value: object, protocol: int) -> None:
    values = PLAIN | {"more": value}
    assert dumps.load(pickle.dumps(values, protocol)) == values


def test_bytes_are_plain_values() -> None:
    """Protocol 2 has no opcode for them."""
    for protocol in range(3, pickle.HIGHEST_PROTOCOL + 1):
        for value in (b"", b"x" * 300):
            assert dumps.load(pickle.dumps(PLAIN | {"more": value}, protocol))["more"] == value


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", [Evil(), Evil, os.system, {1, 2}, bytearray(b"x"), 1j, slice(1)])
def test_nothing_but_plain_values_is_read(value: object, protocol: int) -> None:
    data = pickle.dumps(PLAIN | {"more": value}, protocol)
    with pytest.raises(BadDump, match="Cannot read the flight recorder dump"):
        dumps.load(data)


def test_an_opcode_is_refused_before_anything_is_carried_out() -> None:
    with pytest.raises(BadDump) as result:
        dumps.load(pickle.dumps(PLAIN | {"more": Evil()}, 2))
    assert result.value.why.startswith("the pickle opcode b'c' at byte")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02}.",  # neither version nor entries
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo of 16 GiB
        b"\x80\x04}\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",  # bytes that are not there
        b"\x80\x02" + b"(" * 1000 + b".",
        b"\x80\x02]" + b"]a" * 10 + b".",
        b"\x80\x02}(]]u.",  # a list as a key
        b"{" * 100_000,
        b'{"version": "2.10", "entries": ' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"version": 1, "entries": 3}',
        b"[1]",
        b"P\xb4\x00",
    ],
)
def test_file_that_is_not_a_dump_is_refused(data: bytes) -> None:
    with pytest.raises(BadDump):
        dumps.load(data)


def test_oversized_dump_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "LIMIT", 100)
    with pytest.raises(BadDump, match=r"Cannot read"):
        dumps.load(b"x" * 101)


def test_truncated_dump() -> None:
    data = pickle.dumps(PLAIN, 2)
    for end in range(len(data)):
        with pytest.raises(BadDump):
            dumps.load(data[:end])


@given(st.data())
def test_damage_never_does_more_than_be_refused(data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps(PLAIN, data.draw(st.integers(2, 5))))
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=4)):
        whole[at] = byte
    try:
        values = dumps.load(bytes(whole))
    except BadDump:
        return
    assert flight_recorder.read(0, values).rank == 0


def test_the_opcodes_let_through_are_those_of_values() -> None:
    """Of all opcodes that pickletools knows, none that calls, imports, builds or leaves the stack in doubt."""
    dangerous = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "PERSID",
                 "BINPERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "PUT", "GET", "POP", "DUP"}  # fmt: skip
    for opcode in pickletools.opcodes:
        if opcode.name in dangerous:
            with pytest.raises(BadDump, match="Cannot read"):
                dumps.check(b"\x80\x04" + opcode.code.encode("latin-1") + b"\x00" * 16 + b".")


def test_json_says_the_same_as_the_pickle() -> None:
    result = json.dumps(PLAIN | {"entries": [ENTRY | {"time_discovered_completed_ns": 0}]}).encode()
    one, other = (flight_recorder.read(3, dumps.load(data)) for data in (result, pickle.dumps(PLAIN, 2)))
    assert one == other
    assert dumps.is_dump(result) and dumps.is_dump(pickle.dumps(PLAIN, 2))
    assert not dumps.is_dump(b'{"state": "D"}') and not dumps.is_dump(b"pg_config")


# ---- one rank's dump ------------------------------------------------------------------------------------------------


def read(
    *entries: object, rank: int = 0, version: object = "2.10", **groups: tuple[int, ...]
) -> flight_recorder.Flight:
    config = {name: {"ranks": str(list(ranks))} for name, ranks in groups.items()}
    return flight_recorder.read(rank, {"version": version, "pg_config": config, "entries": list(entries)})


def test_how_far_a_rank_is() -> None:
    states = ["completed", "completed", "started", "scheduled"]
    made = [hang_made.entry("a", 5 + at, "all_reduce", state=s, record=at, timed=True) for at, s in enumerate(states)]
    (view,) = read(*made, a=(0, 1)).views
    assert view.count == Count(enqueued=8, completed=6, started=True, order=2)
    assert view.members == (0, 1) and view.closed and sorted(view.rounds) == [5, 6, 7, 8]
    assert view.rounds[7][0].place == "train (train.py:120)" and view.rounds[5][0].place == ""


def test_gloo_records_no_states() -> None:
    """There an entry is over when it is retired, and the groups' names are missing."""
    made = [hang_made.entry("0", n, "all_reduce", state="scheduled") | {"retired": n < 3} for n in (1, 2, 3)]
    made = [e | {"process_group": ("0", "default_pg")} for e in made]
    config = {"": {"name": "", "desc": "", "ranks": "[0, 1, 2]"}}
    (view,) = flight_recorder.read(1, {"version": "2.10", "pg_config": config, "entries": made}).views
    assert (view.count, view.members, view.closed) == (Count(3, 2), (0, 1, 2), False)


def test_sends_and_receives_that_are_open() -> None:
    made = [
        hang_made.entry("pp", 0, "send 1->2", state="scheduled", p2p=True),
        hang_made.entry("pp", 0, "recv 1<-0", state="completed", p2p=True),
        hang_made.entry("pp", 0, "recv 1<-0", state="started", p2p=True),
    ]
    (view,) = read(*made, rank=5, pp=(4, 5, 6)).views
    assert view.peers == (flight_recorder.Peer(True, 6), flight_recorder.Peer(False, 4)) and view.rounds == {}


@pytest.mark.parametrize("version", ["2.3", "3.0", "2", "x", None, "2.11", 7, "9" * 10_000 + ".1"])
def test_another_version_is_said(version: object) -> None:
    found = read(ENTRY, version=version)
    assert len(found.notes) == 1 and "version" in found.notes[0] and len(found.notes[0]) < 120
    assert found.views, "and read all the same"


@pytest.mark.parametrize("version", ["2.4", "2.5", "2.7", "2.9", "2.10"])
def test_known_versions(version: str) -> None:
    assert read(ENTRY, version=version).notes == ()


@given(st.dictionaries(st.sampled_from(list(ENTRY)), VALUES), st.none() | VALUES)
def test_any_values_have_an_answer(change: dict[str, Any], config: object) -> None:
    found = flight_recorder.read(0, {"version": "2.10", "entries": [ENTRY | change, 3], "pg_config": config})
    assert found.rank == 0 and all(note.isprintable() for note in found.notes)
    for view in found.views:
        assert view.name.isprintable() and all(str(op).isprintable() for ops in view.rounds.values() for op in ops)
