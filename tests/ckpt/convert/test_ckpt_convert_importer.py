"""One file as a checkpoint: what restore() makes of it, and what is refused before anything is written."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from ckpt_made import Training, bits, names_in, odd_tensors
from safetensors.torch import save_file
from typer.testing import CliRunner

from transom_cli.ckpt import NoCheckpointRestores
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.inventory import candidates, verify
from transom_cli.cli.ckpt import ckpt_app
from transom_cli.config.load import load
from transom_cli.errors import TransomError


def _run(*words: object):
    return CliRunner().invoke(ckpt_app, [str(word) for word in words])


def _done(*words: object):
    result = _run(*words)
    assert result.exit_code == 0, result.exception
    return result


def _refused(*words: object) -> TransomError:
    error = _run(*words).exception
    assert isinstance(error, TransomError), error
    return error


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Training]:
    """A training after two steps, saved."""
    directory, training = tmp_path_factory.mktemp("trained") / "c", Training(1)
    checkpointer = Checkpointer(training.state, directory, every=1)
    for _ in range(2):
        training.step()
    checkpointer.save(2)
    checkpointer.close(strict=True)
    return directory, training


@pytest.fixture
def there(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


def _restored(directory: Path, training: Training) -> int | None:
    checkpointer = Checkpointer(training.state, directory, every=1)
    try:
        return checkpointer.restore()
    finally:
        checkpointer.close()


def test_with_all_of_it_the_training_goes_on_bit_for_bit(trained, there: Path, tmp_path: Path):
    directory, training = trained
    _done("export", directory, "-o", tmp_path / "all.pt", "--all")
    _done("import", tmp_path / "all.pt", there, "--step", 7)
    assert [verify(c).good for c in candidates(there)] == [True]
    again = Training(5)
    assert _restored(there, again) == 7
    assert again.digest() == training.digest()


def test_import_makes_its_folder_and_removes_it_if_it_fails(trained, tmp_path: Path):
    directory, _ = trained
    _done("export", directory, "-o", tmp_path / "all.pt", "--all")
    (tmp_path / "broken.pt").write_bytes(b"nonsense")
    for wrong in ("broken.pt", "missing.pt"):
        _refused("import", tmp_path / wrong, tmp_path / "new" / "folder", "--step", 7)
        assert not (tmp_path / "new").exists()
    _done("import", tmp_path / "all.pt", tmp_path / "new" / "folder", "--step", 7)
    assert [verify(c).good for c in candidates(tmp_path / "new" / "folder")] == [True]


def test_without_per_rank_state_the_rest_is_restored_and_it_is_said(trained, there: Path, tmp_path: Path, capsys):
    directory, training = trained
    _done("export", directory, "-o", tmp_path / "m.pt")
    told = json.loads(_done("import", tmp_path / "m.pt", there, "--step", 0, "--json").stdout)
    assert (
        told["schema"] == 1 and told["imported"]["ranks"] == 0 and told["imported"]["checkpoint"] == f"{there}/step-0"
    )
    again = Training(5)
    position = again.data.position = 17
    random = torch.get_rng_state()
    assert _restored(there, again) == 0
    about = "imported from m.pt; afresh start: random numbers and per-rank objects; not proven: it carries no digests"
    assert f"transom: restored step-0 ({about})" in capsys.readouterr().err
    assert again.data.position == position and torch.equal(torch.get_rng_state(), random)
    for mine, theirs in zip(again.model.parameters(), training.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        for moment in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(again.optimizer.state[mine][moment], training.optimizer.state[theirs][moment])
    assert again.schedule.state_dict() == training.schedule.state_dict()


def test_foreign_weights_with_a_fresh_optimizer(there: Path, tmp_path: Path, capsys):
    """A plain state_dict, as models are handed around: which entry it is must be said, and what is missing too."""
    torch.manual_seed(8)
    weights = {name: torch.randn_like(p) for name, p in Training(1).model.state_dict().items()}
    save_file(weights, tmp_path / "w.safetensors")
    torch.save(weights, tmp_path / "w.pt")
    rest = ("optim", "schedule", "mean", "note")
    for step, name in enumerate(("w.safetensors", "w.pt")):
        error = _refused("import", tmp_path / name, there, "--step", step)
        assert error.exit_code == 2 and error.hint.endswith("--as model")
        _done(
            "import",
            tmp_path / name,
            there,
            "--step",
            step,
            "--as",
            "model",
            *(w for n in rest for w in ("--afresh", n)),
        )
        again = Training(5)
        again.step()
        before = again.optimizer.state_dict()
        assert _restored(there, again) == step
        assert "afresh start: optim, schedule, mean, note, random numbers" in capsys.readouterr().err
        for key, tensor in again.model.state_dict().items():
            assert torch.equal(tensor, weights[key])
        assert repr(again.optimizer.state_dict()) == repr(before)


@pytest.mark.parametrize("name", ["odd.pt", "odd.safetensors"])
def test_every_bit_of_odd_tensors_through_a_foreign_file_and_back(there: Path, tmp_path: Path, name: str):
    """Views, shared and non-contiguous memory in the file that comes in; through a restore and out again."""
    want = {key: bits(tensor) for key, tensor in odd_tensors().items()}
    if name == "odd.pt":
        torch.save({**odd_tensors(), "parameter": torch.nn.Parameter(torch.ones(3))}, tmp_path / name)
        want["parameter"] = bits(torch.ones(3))
    else:
        save_file({key: tensor.contiguous().clone() for key, tensor in odd_tensors().items()}, tmp_path / name)
    _done("import", tmp_path / name, there, "--step", 1, "--as", "odd")
    state: dict = {"odd": {}}
    assert Checkpointer(state, there, every=1).restore() == 1
    assert {key: bits(tensor.detach()) for key, tensor in state["odd"].items()} == want
    _done("export", there, "-o", tmp_path / "back.pt")
    assert {key: bits(tensor) for key, tensor in torch.load(tmp_path / "back.pt")["odd"].items()} == want


def test_what_lacks_without_a_word_is_not_restored(trained, there: Path, tmp_path: Path):
    directory, _ = trained
    _done("export", directory, "-o", tmp_path / "m.safetensors", "--only", "model")
    error = _refused("import", tmp_path / "m.safetensors", there, "--step", 3, "--as", "model")
    assert error.exit_code == 2 and error.hint == "leave out --as model"
    _done("import", tmp_path / "m.safetensors", there, "--step", 3, "--afresh", "optim")
    with pytest.raises(NoCheckpointRestores, match=r"no mean, note, schedule .*--afresh"):
        _restored(there, Training(5))


def test_half_an_optimizer_is_refused(trained, there: Path, tmp_path: Path):
    directory, _ = trained
    _done("export", directory, "-o", tmp_path / "m.safetensors")
    error = _refused("import", tmp_path / "m.safetensors", there, "--step", 3)
    assert error.exit_code == 2 and "only the tensors of optim" in error.what
    _done("import", tmp_path / "m.safetensors", there, "--step", 3, "--only", "model")
    torch.save({"optim": Training(1).optimizer.state_dict()}, tmp_path / "numbered.pt")
    error = _refused("import", tmp_path / "numbered.pt", there, "--step", 4)
    assert "numbered parameters (`optim.param_groups.0.params`)" in error.what
    error = _refused("import", tmp_path / "m.safetensors", there, "--step", 4, "--only", "model", "--afresh", "model")
    assert error.exit_code == 2 and "which was to start afresh" in error.what
    assert "has no modle" in _refused("import", tmp_path / "m.safetensors", there, "--step", 4, "--only", "modle").what
    assert names_in(there) == ["step-3"]


def test_existing_step_is_never_replaced(there: Path, tmp_path: Path):
    torch.save({"x": torch.ones(2)}, tmp_path / "x.pt")
    (there / "step-4").mkdir()  # not even one that is no checkpoint
    error = _refused("import", tmp_path / "x.pt", there, "--step", 4)
    assert error.exit_code == 2 and "already exists" in error.what and names_in(there / "step-4") == []
    result = _done("import", tmp_path / "x.pt", there, "--step", 3)
    assert "there are newer ones: 4" in result.stderr
    assert names_in(there) == ["step-3", "step-4"]


class Code:
    def __reduce__(self):
        return os.mkdir, ("/proc/never",)


def test_files_that_are_not_data(there: Path, tmp_path: Path):
    torch.save({"x": Code()}, tmp_path / "code.pt")
    error = _refused("import", tmp_path / "code.pt", there, "--step", 1)
    assert error.exit_code == 1 and "holds more than data" in error.what and "posix.mkdir" in error.why
    with (tmp_path / "old.pt").open("wb") as file:
        pickle.dump(threading.Thread, file)
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "text.pt").write_bytes(b"hello")
    torch.save({"x": torch.arange(100_000)}, tmp_path / "good.pt")
    data = bytearray((tmp_path / "good.pt").read_bytes())
    (tmp_path / "cut.pt").write_bytes(data[:-500])
    data[len(data) // 2] ^= 1
    (tmp_path / "flipped.pt").write_bytes(data)  # torch itself would load it
    save_file({"x": torch.arange(10)}, tmp_path / "good.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "good.safetensors").read_bytes()[:-5])
    for name in ("old.pt", "empty.pt", "text.pt", "cut.pt", "flipped.pt", "cut.safetensors"):
        error = _refused("import", tmp_path / name, there, "--step", 1)
        assert error.exit_code == 1 and name in error.what and error.kind == "bad_file", error
    error = _refused("import", tmp_path / "nothing.pt", there, "--step", 1)
    assert "cannot be read" in error.what and "No such file" in error.why
    assert names_in(there) == []


def test_content_that_no_checkpoint_can_have(there: Path, tmp_path: Path):
    itself: list = []
    itself.append({"again": itself})
    for value, words in (
        (torch.ones(2), "holds no dict with names"),
        ({1: 2}, "holds no dict with names"),
        ({}, "holds no dict with names"),
        ({"m": torch.eye(2).to_sparse()}, "tensors that are not plain ones"),
        ({"m": {"a.b": 1, "a": {"b": 2}}}, "both called `m.a.b`"),
        ({"m": itself}, "contains itself"),
        ({"m": 1, "ranks": {"1": {"rng": 0}}}, "is not whole"),
    ):
        torch.save(value, tmp_path / "x.pt")
        assert words in str(_refused("import", tmp_path / "x.pt", there, "--step", 1))
    assert names_in(there) == []


def test_inconsistent_safetensors_file_is_refused(there: Path, tmp_path: Path):
    for paths, words in (
        ({"a": ["a"]}, "header's `transom` is damaged"),
        ({"a": ["a"], "b": ["a", "x"]}, "contradict each other"),
        ({"a": ["a"], "b": ["a", "x", "y"]}, "contradict each other"),
        ({"a": ["a"], "b": ["a", 0]}, "contradict each other"),
        ({"a": ["a"], "b": [0]}, "header's `transom` is damaged"),
        ({"a": ["a", 0], "b": ["a", -1]}, "header's `transom` is damaged"),
        ({"a": ["a", 0], "b": ["a", 1 << 40]}, "header's `transom` is damaged"),
        ({"a": [], "b": ["b"]}, "header's `transom` is damaged"),
        ("x", "header's `transom` is damaged"),
    ):
        about = {"schema": 1, "step": 1, "paths": paths, "partial": []}
        tensors = {"a": torch.ones(1), "b": torch.ones(1)}
        save_file(tensors, tmp_path / "x.safetensors", {"transom": json.dumps(about)})
        assert words in str(_refused("import", tmp_path / "x.safetensors", there, "--step", 1))
    save_file(tensors, tmp_path / "x.safetensors", {"transom": json.dumps({**about, "schema": 2})})
    assert "its schema is 2" in str(_refused("import", tmp_path / "x.safetensors", there, "--step", 1))
    assert names_in(there) == []


def test_a_run_without_checkpoints_yet_gets_its_first(tmp_path: Path):
    from datetime import datetime, timezone

    from transom_cli.submit.rundir import new_run

    torch.save({"x": 1}, tmp_path / "x.pt")
    now, settings = datetime(2026, 3, 4, tzinfo=timezone.utc), load(site=None, user=tmp_path / "none")
    run = new_run(tmp_path / "runs", "a", now, settings, "#!/bin/sh\n")
    _done("import", tmp_path / "x.pt", "a", "--root", tmp_path / "runs", "--step", 12)
    assert [c.step for c in candidates(run.checkpoints)] == [12]
    state = {"x": 0}
    assert Checkpointer(state, run.checkpoints, every=1).restore() == 12 and state == {"x": 1}
    assert _refused("import", tmp_path / "x.pt", "b", "--root", tmp_path / "runs", "--step", 1).exit_code == 10
    assert _run("import", tmp_path / "x.pt", "a", "--root", tmp_path / "runs", "--step", -1).exit_code == 2


@pytest.mark.long
def test_a_full_disk_leaves_nothing(there: Path, tmp_path: Path):
    torch.save({"x": torch.zeros(1 << 20)}, tmp_path / "x.pt")
    program = (
        "import resource, signal, sys\n"
        "from transom_cli.cli.app import run_app\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))\n"
        f"sys.argv = ['transom', 'ckpt', 'import', {str(tmp_path / 'x.pt')!r}, {str(there)!r}, '--step', '5']\n"
        "run_app()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stderr
    assert f"error: {there}/step-5 was not written" in done.stderr and "File too large" in done.stderr
    assert names_in(there) == []
