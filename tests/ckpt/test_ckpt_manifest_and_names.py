"""The manifest, names and retention: all that needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ckpt_made import bare_checkpoint, flip, names_in
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.ckpt.failures import BadManifest, one_line
from transom_cli.ckpt.inventory import candidates, verify
from transom_cli.ckpt.manifest import FileEntry, Manifest, decode, encode
from transom_cli.ckpt.names import Here, abandoned, local_attempt, parse_step, tmp_name, trash_name
from transom_cli.ckpt.publish import Keep, Retention

_names = st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=20)
_entries = st.builds(
    FileEntry,
    _names.filter(lambda name: name not in (".", "..", "manifest.json", ".metadata")),
    st.integers(0, 2**60),
    st.text("0123456789abcdef", min_size=32, max_size=32),
)


@st.composite
def _manifests(draw):
    entries = draw(st.lists(_entries, max_size=4, unique_by=lambda entry: entry.name))
    entries.append(FileEntry(".metadata", 5, "0" * 32))
    texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)
    files = tuple(sorted(entries, key=lambda entry: entry.name))
    step, world = draw(st.integers(0, 2**40)), draw(st.integers(1, 2**20))
    return Manifest(step, world, draw(texts), draw(texts), draw(texts), files)


@given(_manifests())
def test_manifest_round_trip(manifest):
    assert decode(encode(manifest)) == manifest


@given(_manifests(), st.data())
def test_any_changed_byte_of_a_manifest_shows(manifest, data):
    raw = bytearray(encode(manifest))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadManifest):
        decode(bytes(raw))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
_keys = ("attempt", "created", "files", "schema", "seal", "step", "torch", "world_size")


@given(st.binary(max_size=200) | _json.map(lambda v: json.dumps(v).encode()))
def test_other_bytes_raise_the_domain_error(raw):
    with pytest.raises(BadManifest):
        decode(raw)


@given(st.fixed_dictionaries(dict.fromkeys(_keys, _json)), st.booleans())
def test_right_keys_with_wrong_values_raise_the_domain_error(body, schema):
    with pytest.raises(BadManifest):
        decode(json.dumps({**body, "schema": 1} if schema else body).encode())


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "..", "", "manifest.json"])
def test_a_manifest_names_no_file_outside_its_directory(name):
    entries = (FileEntry(".metadata", 1, "0" * 32), FileEntry(name, 1, "0" * 32))
    with pytest.raises(BadManifest):
        decode(encode(Manifest(1, 1, "1.0", "2", "now", entries)))


def test_newer_schema_is_named_in_the_error():
    with pytest.raises(BadManifest, match="schema 3"):
        decode(b'{"schema": 3, "anything": "else"}')


def test_step_names():
    assert [parse_step(name) for name in ("step-0", "step-120", "step-01", "step-3.bad-1", ".tmp-step-3-1.0-x")] == [
        0, 120, None, None, None,
    ]  # fmt: skip


def test_only_leftovers_of_dead_writers_are_abandoned():
    here = Here("12.3", "n1", alive=lambda pid: pid == 7)
    assert abandoned(tmp_name(5, "12.2", "0" * 8), here)
    assert abandoned(trash_name(5, "11.9", "0" * 8), here)
    assert abandoned(tmp_name(5, local_attempt("n1", 8), "0" * 8), here)
    assert not abandoned(tmp_name(5, "12.3", "0" * 8), here)  # our own attempt
    assert not abandoned(tmp_name(5, "12.10", "0" * 8), here)  # a newer one
    assert not abandoned(tmp_name(5, local_attempt("n1", 7), "0" * 8), here)  # still runs
    assert not abandoned(tmp_name(5, local_attempt("n2", 8), "0" * 8), here)  # cannot be known from here
    assert not abandoned("step-5", here)
    assert not abandoned(".tmp-something-else", here)


def test_leftovers_of_an_earlier_launch_are_abandoned():
    here = Here("12.3.1", "n1", alive=lambda pid: True)
    for owner, dead in (("12.3.0", True), ("12.3", True), ("12.2.9", True), ("12.3.1", False), ("12.3.2", False)):
        assert abandoned(tmp_name(5, owner, "0" * 8), here) is dead, owner


def test_retention_keeps_the_newest_good_and_never_touches_a_bad_one(tmp_path: Path):
    for step in (1, 2, 3, 4, 5):
        bare_checkpoint(tmp_path, step)
    flip(tmp_path / "step-4" / "__0_0.distcp", 10)
    flip(tmp_path / "step-1" / ".metadata", 0)
    deleted = Retention(tmp_path, Keep(2), "1.0").apply(5, "0" * 8)
    assert deleted == [2]
    assert names_in(tmp_path) == ["step-1", "step-3", "step-4", "step-5"]


def test_retention_never_deletes_the_last_good_one(tmp_path: Path):
    for step in (1, 2, 3):
        bare_checkpoint(tmp_path, step)
    for step in (2, 3):
        (tmp_path / f"step-{step}" / "manifest.json").unlink()
    assert Retention(tmp_path, Keep(1), "1.0").apply(3, "0" * 8) == []
    assert verify(candidates(tmp_path)[-1]).good


def test_retention_sees_that_a_checkpoint_it_knew_is_gone_bad(tmp_path: Path):
    retention = Retention(tmp_path, Keep(1), "1.0")
    bare_checkpoint(tmp_path, 1)
    retention.apply(1, "0" * 8)
    newer = bare_checkpoint(tmp_path, 2)
    retention.trust(verify(candidates(tmp_path)[0]).manifest)
    (newer / "__0_0.distcp").write_bytes(b"cut")
    assert retention.apply(2, "0" * 8) == []


def test_the_step_just_published_survives_newer_ones(tmp_path: Path):
    for step in (1, 8, 9):
        bare_checkpoint(tmp_path, step)
    assert Retention(tmp_path, Keep(1), "1.0").apply(1, "0" * 8) == [8]


def test_listing_needs_no_torch():
    code = "import transom_cli.cli.ckpt, transom_cli.ckpt.inventory, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("names", [(".metadata",), (".metadata", "__0_0.distcp", '"files": []', "ä\\")])
def test_manifest_is_written_as_json_writes_it(names: tuple[str, ...]):
    files = tuple(FileEntry(name, 7, "0" * 32) for name in sorted(names))
    data = encode(Manifest(1, 1, '"files": []', "2.6", "now", files))
    assert (json.dumps(json.loads(data), indent=1, sort_keys=True) + "\n").encode() == data
    assert decode(data).files == files


def test_a_broken_gloo_connection_is_described_without_its_source_file_and_advice() -> None:
    text = (
        "[/build/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:10417: Connection reset "
        "by peer. This is typically caused by a remote worker hanging or bugs in the application."
    )
    broke = "the connection to another rank broke: Read error [127.0.0.1]:10417: Connection reset by peer"
    assert one_line(RuntimeError(text)) == broke
    assert one_line(RuntimeError("another error")) == "RuntimeError: another error"
