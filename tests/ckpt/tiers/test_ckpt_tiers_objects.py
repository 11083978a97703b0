"""Checkpoints in object storage: what counts as complete, what an interruption leaves, what is deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
from ckpt_made import bare_checkpoint, flip

from transom_cli.ckpt.publish import Keep
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.tiers import fetch, marks, upload
from transom_cli.ckpt.tiers.fetch import bounded, fetch_together, mirror_candidates
from transom_cli.ckpt.tiers.objects import Marker, ObjectStore, StorageError
from transom_cli.errors import UsageError


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}://{tmp_path}/remote"


class _Killed(BaseException):
    pass


def put(url: str, main: Path, step: int = 10) -> Marker:
    store = ObjectStore(url)
    store.claim(Path("/main"))
    return store.upload(main / f"step-{step}")


def stored(url: str) -> list[int]:
    return [one.step for one in mirror_candidates([url], Path("/main"), lambda *_: False, 0)[0]]


def main_of(tmp_path: Path, *steps: int) -> Path:
    for step in steps:
        bare_checkpoint(tmp_path / "main", step, data=b"weights %d" % step)
    return tmp_path / "main"


def test_uploaded_checkpoint_is_fetched_and_verified(url: str, tmp_path: Path):
    main = main_of(tmp_path, 10)
    marks.write_metrics(main / "step-10", {"loss": 0.5})
    marker = put(url, main)
    assert marker.metrics == {"loss": 0.5}
    (found,), unknown = mirror_candidates([url], Path("/main"), lambda *_: False, 0)
    again = tmp_path / "again"
    again.mkdir()
    assert not unknown
    assert fetch_together(found, again, "1.0", Ranks(), lambda _: None) == ""
    for name in (".metadata", "__0_0.distcp", "manifest.json", "metrics.json"):
        assert (again / "step-10" / name).read_bytes() == (main / "step-10" / name).read_bytes()


def test_interrupted_upload_is_never_chosen_and_continues(url: str, tmp_path: Path):
    main = main_of(tmp_path, 10)

    def killed(_: int) -> None:
        raise _Killed

    with pytest.raises(_Killed):
        ObjectStore(url).upload(main / "step-10", before_commit=lambda: killed(0))
    assert stored(url) == []
    sent: list[int] = []
    ObjectStore(url).claim(Path("/main"))
    ObjectStore(url).upload(main / "step-10", sent.append)
    assert sent == [], "the data was stored already"
    assert stored(url) == [10]


def test_half_a_file_is_sent_again(url: str, tmp_path: Path):
    main = main_of(tmp_path, 10)
    store = ObjectStore(url)
    marker = store.upload(main / "step-10")
    store._remove("step-10.json")
    store._write(f"{marker.folder}/__0_0.distcp", b"wei")
    sent: list[int] = []
    store.upload(main / "step-10", sent.append)
    assert sum(sent) == (main / "step-10" / "__0_0.distcp").stat().st_size


@pytest.mark.parametrize("broken", [b"", b'{"schema": 1, "step"', b'{"schema": 1, "step": 10, "seal": "0"}'])
def test_half_a_marker_counts_as_none(url: str, tmp_path: Path, broken: bytes):
    store = ObjectStore(url)
    store.upload(main_of(tmp_path, 10) / "step-10")
    store._write("step-10.json", broken)
    assert stored(url) == []


def test_deletion_begins_with_the_marker(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = ObjectStore(url)
    marker = store.upload(main_of(tmp_path, 10) / "step-10")
    removed: list[str] = []
    monkeypatch.setattr(store, "_remove", removed.append)
    store.remove(10)
    assert removed == ["step-10.json", marker.folder]


def test_data_without_a_marker_is_swept(url: str, tmp_path: Path):
    main = main_of(tmp_path, 10, 20)
    store = ObjectStore(url)
    kept, gone = store.upload(main / "step-20"), store.upload(main / "step-10")
    store._remove("step-10.json")
    assert store.sweep(spared=[gone.folder]) == []
    assert store.sweep() == [gone.folder]
    assert store._sizes(kept.folder) and not store._sizes(gone.folder)


def test_damaged_checkpoint_is_not_uploaded(url: str, tmp_path: Path):
    main = main_of(tmp_path, 10)
    flip(main / "step-10" / "__0_0.distcp", 5)
    with pytest.raises(StorageError, match=r"__0_0\.distcp is damaged"):
        ObjectStore(url).upload(main / "step-10")
    assert stored(url) == []


def test_damaged_copy_is_refused_by_name(url: str, tmp_path: Path):
    store = ObjectStore(url)
    marker = put(url, main_of(tmp_path, 10))
    name = f"{marker.folder}/__0_0.distcp"
    data = bytearray(store._read(name))
    data[3] ^= 1
    store._write(name, bytes(data))
    (found,), _ = mirror_candidates([url], Path("/main"), lambda *_: False, 0)
    again = tmp_path / "again"
    again.mkdir()
    assert "__0_0.distcp" in fetch_together(found, again, "1.0", Ranks(), lambda _: None)
    assert not list(again.iterdir())


def test_step_saved_again_replaces_its_copy(url: str, tmp_path: Path):
    store = ObjectStore(url)
    first = store.upload(main_of(tmp_path, 10) / "step-10")
    second = store.upload(bare_checkpoint(tmp_path / "other", 10, data=b"after a rollback"))
    assert store.marker(10) == second != first
    assert not store._sizes(first.folder)


def test_undone_checkpoint_is_deleted_and_not_listed(url: str, tmp_path: Path):
    main = main_of(tmp_path, 10, 20)
    for step in (10, 20):
        put(url, main, step)
    found, _ = mirror_candidates([url], Path("/main"), lambda step, attempt: step == 20 and attempt == "1.0", 0)
    assert [one.step for one in found] == [10] == ObjectStore(url).steps()


def test_place_of_another_training_is_refused(url: str, tmp_path: Path):
    ObjectStore(url).claim(tmp_path / "main")
    with pytest.raises(UsageError, match="is not for copies of"):
        ObjectStore(url).claim(tmp_path / "other")


def test_storage_that_cannot_be_read_is_reported(tmp_path: Path):
    (tmp_path / "file").write_text("no directory")
    found, unknown = mirror_candidates([f"file://{tmp_path}/file/x"], tmp_path, lambda *_: False, 0)
    assert not found
    assert "are not known" in unknown[0]


def test_copies_are_kept_like_checkpoints(tmp_path: Path):
    url, main = f"file://{tmp_path}/remote", main_of(tmp_path, 1, 2, 3, 4, 5)
    for step, loss in ((1, 0.1), (2, 0.9), (3, 0.5), (4, 0.4), (5, 0.8)):
        marks.write_metrics(main / f"step-{step}", {"loss": loss})
        if step == 2:
            marks.keep(main / "step-2")
        upload.run(upload.Job(str(main), url, step, "1.0", None, Keep(1, None, 1)), lambda _: None)
    assert ObjectStore(url).steps() == [5, 2, 1]


def test_storage_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch):
    import threading

    never = threading.Event()
    with pytest.raises(StorageError, match=r"no byte in 0\.2 s"):
        bounded(never.wait, lambda: 0, 0.2)
    assert fetch.SILENCE > 1.0
