"""Checkpoints in an S3-compatible storage: a trainer's uploads, failures, a lost directory, a kill during an upload."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ckpt_made import bare_checkpoint
from s3_server import S3, serving

from transom_cli.ckpt import save
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.failures import NoCheckpointRestores
from transom_cli.ckpt.publish import Keep
from transom_cli.ckpt.tiers import mirror, record, upload
from transom_cli.ckpt.tiers.objects import ObjectStore

torch = pytest.importorskip("torch")
pytest.importorskip("s3fs")
URL = "s3://bucket/run"
pytestmark = pytest.mark.usefixtures("holder_within")  # a daemon of its own has a low priority


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    with serving() as server:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        yield server


def trainer(directory: Path, **more: object) -> tuple[Checkpointer, torch.Tensor]:
    weights = torch.zeros(5000)
    return Checkpointer({"weights": weights, "n": 0}, directory, every=1, keep=2, also={URL: 1}, **more), weights


def train(ck: Checkpointer, weights: torch.Tensor, steps: range) -> None:
    for step in steps:
        weights.fill_(step)
        assert ck.save(step, metrics={"loss": 1 / step})
        ck.wait(strict=True)
        uploaded(ck)


def uploaded(ck: Checkpointer) -> None:
    assert ck._snapshots.copied(60.0)


@pytest.mark.long
def test_lost_directory_is_restored_from_object_storage(s3: S3, directory: Path, capsys: pytest.CaptureFixture[str]):
    ck, weights = trainer(directory)
    train(ck, weights, range(1, 4))
    ck.close(strict=True)
    assert sorted(name for name in s3.objects if name.endswith(".json") and "/data/" not in name) == [
        "bucket/run/step-2.json",
        "bucket/run/step-3.json",
    ], "kept like the checkpoints on disk"
    assert {m["step"] for m in record.read(directory)[URL].there} == {2, 3}
    shutil.rmtree(directory)
    again, weights = trainer(directory)
    assert again.restore() == 3
    assert bool((weights == 3).all())
    assert f"fetched step-3 in {URL}" in capsys.readouterr().err
    again.close()


@pytest.mark.long
def test_deleted_and_half_uploaded_copies_are_not_chosen(s3: S3, directory: Path):
    ck, weights = trainer(directory)
    train(ck, weights, range(1, 3))
    ck.close(strict=True)
    shutil.rmtree(directory)
    del s3.objects["bucket/run/step-2.json"]
    again, weights = trainer(directory)
    assert again.restore() == 1
    assert bool((weights == 1).all())
    again.close()


@pytest.mark.long
def test_damaged_copy_is_passed_over(s3: S3, directory: Path, capsys: pytest.CaptureFixture[str]):
    ck, weights = trainer(directory)
    train(ck, weights, range(1, 3))
    ck.close(strict=True)
    shutil.rmtree(directory)
    name = next(name for name in s3.objects if "data/step-2-" in name and name.endswith(".distcp"))
    s3.objects[name] = s3.objects[name][:-1] + b"?"
    again, _ = trainer(directory)
    assert again.restore() == 1
    assert f"passed over step-2 in {URL}: __0_0.distcp in {URL} is damaged" in capsys.readouterr().err
    again.close()


@pytest.mark.long
def test_damage_on_disk_is_repaired_from_object_storage(s3: S3, directory: Path):
    ck, weights = trainer(directory)
    train(ck, weights, range(1, 3))
    ck.close(strict=True)
    data = directory / "step-2" / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:-7])
    again, weights = trainer(directory)
    assert again.restore() == 2
    assert bool((weights == 2).all())
    assert (directory / "step-2.bad-1").is_dir()
    again.close()


@pytest.mark.long
def test_failed_upload_is_reported_and_harms_nothing(
    s3: S3, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    attempt = tmp_path / "attempt"
    monkeypatch.setenv("TRANSOM_ATTEMPT_DIR", str(attempt))
    monkeypatch.setattr(save.status, "_attempt", lambda: save.status.AttemptDir(attempt))
    s3.fails = re.compile("PUT .*distcp")
    ck, weights = trainer(directory)
    train(ck, weights, range(1, 3))
    ck.save(3)
    ck.wait()
    assert "was not copied to s3://bucket/run" in capsys.readouterr().err
    assert ck.last_error is None, "the checkpoint itself is good"
    deadline = time.monotonic() + 10.0
    text = ""
    while "not copied to object storage" not in text and time.monotonic() < deadline:
        text = (attempt / "saves.json").read_text() if (attempt / "saves.json").exists() else ""
        time.sleep(0.05)
    saves = json.loads(text)["trainings"][str(directory)]
    assert saves["failed"] >= 2
    ck.close()
    assert not any(name.endswith(".json") and "/data/" not in name for name in s3.objects)


@pytest.mark.long
def test_killed_upload_continues_where_it_was(s3: S3, tmp_path: Path):
    main = tmp_path / "main"
    bare_checkpoint(main, 10, data=b"x" * 10_000)
    asked = upload.Job(str(main), URL, 10, "1.0", 200_000.0, Keep())
    store = ObjectStore(URL)
    process = mirror.subprocess.Popen(
        mirror.own("transom_cli.ckpt.tiers.upload"), stdin=mirror.subprocess.PIPE, stdout=mirror.subprocess.PIPE
    )
    process.stdin.write(asked.encode().encode() + b"\n")
    process.stdin.flush()
    deadline = time.monotonic() + 60.0
    while not any(name.endswith("/.metadata") for name in s3.objects) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert store.steps() == [], "half an upload is no checkpoint"
    s3.log.clear()
    there, trouble = mirror.upload(upload.Job(str(main), URL, 10, "1.0", None, Keep()))
    assert (trouble, [one["step"] for one in there]) == ("", [10])
    assert not any("PUT" in line and "/.metadata" in line for line in s3.log), "it was stored already"


def test_training_does_not_start_over_if_storage_cannot_be_read(s3: S3, directory: Path):
    ck, weights = trainer(directory)
    train(ck, weights, range(1, 2))
    ck.close(strict=True)
    s3.fails = re.compile("GET")
    shutil.rmtree(directory)
    ck, _ = trainer(directory)
    with pytest.raises(NoCheckpointRestores, match="object storage cannot be read"):
        ck.restore()
    assert ck.restore(allow_lost=True) is None
    ck.close()
