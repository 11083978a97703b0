"""`transom ckpt`, as a user types it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

from ckpt_made import Training, bare_checkpoint, flip
from typer.testing import CliRunner

from transom_cli.ckpt.tiers import marks, record
from transom_cli.cli.ckpt import ckpt_app
from transom_cli.config.load import load
from transom_cli.errors import NoCheckpoint
from transom_cli.submit.rundir import new_run


def _run(*words: str):
    return CliRunner().invoke(ckpt_app, list(words))


def test_ls_tells_good_from_bad_without_reading(tmp_path: Path):
    for step in (5, 20, 100):
        bare_checkpoint(tmp_path / "it's a run" / "checkpoints", step)
    (tmp_path / "it's a run" / "checkpoints" / "step-100" / ".metadata").unlink()
    result = _run("ls", str(tmp_path / "it's a run"))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["STEP", "100", "20", "5"]
    assert "bad: .metadata is missing" in lines[1]
    assert lines[2].endswith("complete")


def test_ls_json_and_an_empty_directory(tmp_path: Path):
    document = json.loads(_run("ls", str(tmp_path), "--json").stdout)
    assert document == {"schema": 1, "directory": str(tmp_path), "checkpoints": []}
    assert "no checkpoints in" in _run("ls", str(tmp_path)).stderr


def test_verify_finds_a_flipped_byte_that_ls_cannot(tmp_path: Path):
    for step in (1, 2):
        bare_checkpoint(tmp_path, step)
    flip(tmp_path / "step-2" / "__0_0.distcp", 50)
    result = _run("verify", str(tmp_path), "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)["checkpoints"]
    assert [(c["step"], c["good"]) for c in found] == [(2, False), (1, True)]
    assert found[0]["reasons"] == ["__0_0.distcp is damaged (its checksum differs)"]


def test_verify_exits_with_15_when_none_is_good(tmp_path: Path):
    flip(bare_checkpoint(tmp_path, 2) / "manifest.json", 9)
    error = _run("verify", str(tmp_path)).exception
    assert error.exit_code == 15
    assert "step-2: manifest.json is damaged" in str(error)
    error = _run("verify", str(tmp_path), "--step", "7").exception
    assert error.exit_code == 15
    assert "no checkpoint of step 7" in str(error) and "there: 2" in str(error)


def test_wrong_words(tmp_path: Path):
    assert _run("ls", "--root", str(tmp_path)).exception.exit_code == 10
    assert _run("ls", str(tmp_path / "nowhere")).exception.exit_code == 10


def test_runs_are_found_under_a_root_by_id_by_name_and_as_the_newest(tmp_path: Path):
    root, elsewhere = tmp_path / "runs", tmp_path / "big" / "checkpoints"
    now = datetime(2026, 3, 4, tzinfo=timezone.utc)
    made = new_run(root, "a", now, load(site=None, user=tmp_path / "none"), "#!/bin/sh\n")
    bare_checkpoint(made.checkpoints, 3)
    settings = load(None, {"checkpoint.directory": str(elsewhere)}, site=None, user=tmp_path / "none")
    newest = new_run(root, "b", now.replace(second=1), settings, "#!/bin/sh\n")
    bare_checkpoint(elsewhere, 7)
    for words, step in (((made.run_id,), 3), (("a",), 3), (("b",), 7), ((), 7), ((str(newest.path),), 7)):
        for command in ("ls", "verify"):
            found = json.loads(_run(command, *words, "--root", str(root), "--json").stdout)["checkpoints"]
            assert [(c["step"], c["good"]) for c in found] == [(step, True)]


def test_export_takes_the_newest_one_or_that_of_the_step(tmp_path: Path):
    import torch

    from transom_cli.ckpt.checkpointer import Checkpointer

    training = Training(1)
    checkpointer = Checkpointer(training.state, tmp_path / "c", every=1)
    weights = {}
    for step in (1, 2):
        training.step()
        checkpointer.save(step)
        weights[step] = training.model[0].weight.detach().clone()
    checkpointer.close()
    for step, words in ((2, ()), (1, ("--step", "1"))):
        out = tmp_path / f"{step}.pt"
        result = _run("export", str(tmp_path / "c"), "-o", str(out), *words)
        assert result.exit_code == 0, result.exception
        assert torch.equal(torch.load(out)["model"]["0.weight"], weights[step])


def test_kept_checkpoint_and_copies_are_listed(tmp_path: Path):
    bare_checkpoint(tmp_path, 10)
    marks.write_metrics(tmp_path / "step-10", {"loss": 0.25})
    there = {"step": 10, "hash": "0" * 32, "world_size": 1, "attempt": "1.0", "created": "2025", "size": 700}
    record.write(tmp_path, {"s3://bucket/run": record.MirrorState((there,), 1.0, "denied")})
    assert _run("keep", str(tmp_path), "--step", "10").exit_code == 0
    listed = _run("ls", str(tmp_path))
    assert "complete, kept; loss 0.25" in listed.output
    assert "in s3://bucket/run, " in listed.output
    assert "the last upload to s3://bucket/run failed: denied" in listed.output
    document = json.loads(_run("ls", str(tmp_path), "--json").stdout)
    assert document["copies"]["s3://bucket/run"]["there"][0]["step"] == 10
    assert _run("keep", str(tmp_path), "--step", "10", "--undo").exit_code == 0
    assert not marks.is_kept(tmp_path / "step-10")
    assert isinstance(_run("keep", str(tmp_path), "--step", "11").exception, NoCheckpoint)
