"""Seals of checkpoints in a framework's own format, and what a training resumes from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli.ckpt.failures import NoCheckpointRestores
from transom_cli.ckpt.inventory import check_bytes
from transom_cli.ckpt.names import SEAL, SEALS
from transom_cli.ckpt.seal import choose, latest, read_seal, seal, sealed
from transom_cli.supervise.attempt_files import newest_checkpoint

CHOOSE = "import sys; from transom_cli.ckpt.seal import latest; print(latest(sys.argv[1]))"


def checkpoint(folder: Path, step: int, *, sealed: bool = True) -> Path:
    """A Hugging Face folder with files in a folder below, as DeepSpeed's engine makes them there."""
    made = folder / f"checkpoint-{step}"
    (made / f"global_step{step}").mkdir(parents=True)
    (made / "model.safetensors").write_bytes(b"weights" * 100)
    (made / f"global_step{step}" / "optim_0.pt").write_bytes(bytes(range(256)))
    if sealed:
        seal(made, step)
    return made


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.fixture
def launch(tmp_path: Path) -> dict[str, str]:
    """The environment of a run's first launch. The run was created before any checkpoint."""
    run = tmp_path / "run"
    (run / "attempts" / "7.0").mkdir(parents=True)
    (run / "run.toml").touch()
    os.utime(run / "run.toml", (1, 1))
    env = {"TRANSOM_ATTEMPT_DIR": str(run / "attempts" / "7.0"), "TRANSOM_ATTEMPT": "7.0", "TRANSOM_LAUNCH": "0"}
    return {**os.environ, **env, "TRANSOM_CHECKPOINT_DIR": str(run / "checkpoints")}


def rank(number: int, folder: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    command, env = [sys.executable, "-c", CHOOSE, str(folder)], {**env, "RANK": str(number)}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_newest_sealed_checkpoint_is_taken_whatever_is_above_it(tmp_path: Path) -> None:
    assert latest(tmp_path) is None and latest(tmp_path / "missing") is None
    checkpoint(tmp_path, 100)
    good = checkpoint(tmp_path, 200)
    checkpoint(tmp_path, 1000, sealed=False)
    assert latest(tmp_path) == str(good)
    assert (tmp_path / "checkpoint-1000").exists(), "outside transom nothing is renamed: another process may write it"


@pytest.mark.parametrize("below", ["model.safetensors", "global_step200/optim_0.pt"])
def test_flipped_byte_falls_back_to_the_checkpoint_before(tmp_path: Path, below: str) -> None:
    good, bad = checkpoint(tmp_path, 100), checkpoint(tmp_path, 200)
    flip(bad / below)
    newest, _ = sealed(tmp_path)
    assert check_bytes(newest.base, newest.files) == [f"{below} is damaged (its checksum differs)"]
    assert latest(tmp_path) == str(good)


def test_missing_and_short_files_are_found_without_reading(tmp_path: Path) -> None:
    made = checkpoint(tmp_path, 100)
    (made / "model.safetensors").write_bytes(b"short")
    (made / "global_step100" / "optim_0.pt").unlink()
    (found,) = sealed(tmp_path)
    assert len(check_bytes(found.base, found.files)) == 2


def test_damaged_seal_is_none(tmp_path: Path) -> None:
    made = checkpoint(tmp_path, 100)
    text = (made / SEAL).read_text()
    (made / SEAL).write_text(text.replace('"step": 100', '"step": 900'))
    assert read_seal(made) is None
    outside = json.loads(text)
    outside["files"][0]["name"] = "../run.toml"
    (made / SEAL).write_text(json.dumps(outside))
    assert read_seal(made) is None


def test_only_damaged_checkpoints_are_an_error_that_names_them(tmp_path: Path) -> None:
    flip(checkpoint(tmp_path, 100) / "model.safetensors")
    with pytest.raises(NoCheckpointRestores) as raised:
        latest(tmp_path)
    assert raised.value.code == 15
    assert f"transom ckpt seal {tmp_path}/checkpoint-100" in str(raised.value)


def test_a_file_is_sealed_beside_it_and_seals_of_deleted_files_go(tmp_path: Path) -> None:
    for step in (10, 20):
        (tmp_path / f"epoch=1-step={step}.ckpt").write_bytes(b"x" * step)
        seal(tmp_path / f"epoch=1-step={step}.ckpt", step)
    assert latest(tmp_path) == str(tmp_path / "epoch=1-step=20.ckpt")
    (tmp_path / "epoch=1-step=10.ckpt").unlink()
    (tmp_path / "epoch=1-step=30.ckpt").write_bytes(b"new")
    assert latest(tmp_path) == str(tmp_path / "epoch=1-step=20.ckpt")
    seal(tmp_path / "epoch=1-step=30.ckpt", 30)
    assert {p.name for p in (tmp_path / SEALS).iterdir()} == {f"epoch=1-step={step}.ckpt.json" for step in (20, 30)}


def test_all_ranks_of_a_launch_get_one_answer_and_what_is_above_is_renamed(
    tmp_path: Path, launch: dict[str, str]
) -> None:
    out = tmp_path / "out"
    good = checkpoint(out, 100)
    flip(checkpoint(out, 200) / "model.safetensors")
    checkpoint(out, 300, sealed=False)
    (out / "latest").write_text("checkpoint-300")
    second, first = rank(1, out, launch), rank(0, out, launch)
    answers = [one.communicate(timeout=60) for one in (first, second)]
    assert [answer[0] for answer in answers] == [f"{good}\n"] * 2, answers
    assert {p.name for p in out.iterdir()} == {
        "checkpoint-100",
        "checkpoint-200.bad-1",
        "checkpoint-300.unsealed-1",
        "latest",
    }
    assert "checkpoint-300 is not used (it has no seal, so it may be half-written)" in answers[0][1]
    assert (out / "latest").read_text() == "checkpoint-100", "DeepSpeed's own record"


def test_interrupted_first_checkpoint_of_a_run_is_set_aside(tmp_path: Path, launch: dict[str, str]) -> None:
    out = tmp_path / "out"
    checkpoint(out, 100, sealed=False)
    assert rank(0, out, launch).communicate(timeout=60)[0] == "None\n"
    assert [p.name for p in out.iterdir()] == ["checkpoint-100.unsealed-1"]


def test_unsealed_checkpoint_from_before_the_run_stops_it_and_names_the_folder(
    tmp_path: Path, launch: dict[str, str]
) -> None:
    out = tmp_path / "out"
    os.utime(checkpoint(out, 100, sealed=False), (0, 0))
    one, other = rank(0, out, launch), rank(1, out, launch)
    _, said = one.communicate(timeout=60)
    other.communicate(timeout=60)
    assert (one.returncode, other.returncode) == (15, 15)
    assert f"transom ckpt seal {out}/checkpoint-100" in said and (out / "checkpoint-100").exists()


def test_a_seal_makes_the_step_the_newest_durable_one_of_the_run(
    tmp_path: Path, launch: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in launch.items():
        monkeypatch.setenv(name, value)
    directory = Path(launch["TRANSOM_CHECKPOINT_DIR"])
    made = checkpoint(tmp_path / "out", 300)
    assert newest_checkpoint(directory) == 300
    assert newest_checkpoint(directory, up_to=400) == -1, "only the Checkpointer's own are rolled back"
    (directory / ".fence").write_text("7.0.1\n")
    checkpoint(tmp_path / "out", 400)
    assert newest_checkpoint(directory) == 300, "a newer launch has taken over"
    (made / SEAL).unlink()
    assert newest_checkpoint(directory) == -1


def test_choose_renames_nothing_without_being_told(tmp_path: Path) -> None:
    checkpoint(tmp_path, 100)
    flip(checkpoint(tmp_path, 200) / "model.safetensors")
    found = choose(tmp_path)
    assert found is not None and found.step == 100 and (tmp_path / "checkpoint-200").exists()
