"""A checkpoint as one file: the same bits, in both formats, and nothing half-done in any other case."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from ckpt_made import Data, bare_checkpoint, bits, flip, names_in, odd_tensors
from safetensors.torch import load_file
from typer.testing import CliRunner

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.convert.safetensors_file import ExportRecord, write
from transom_cli.cli.ckpt import ckpt_app
from transom_cli.errors import TransomError


def _run(*words: object):
    return CliRunner().invoke(ckpt_app, [str(word) for word in words])


def _refused(*words: object) -> TransomError:
    error = _run(*words).exception
    assert isinstance(error, TransomError), error
    return error


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("it's saved")
    state = {
        "model": torch.nn.Linear(2, 2),
        "odd": odd_tensors(),
        "data": Data(),
        "inner": {1: (torch.arange(3), torch.arange(3.0)), "none": {}},  # stored as one value, tensors and all
        "note": {"losses": [1.5, 2], "name": "x"},
    }
    checkpointer = Checkpointer(state, directory, every=1)
    for step in (1, 2):
        checkpointer.save(step)
    checkpointer.close(strict=True)
    return directory


def test_torch_file_is_bit_identical(saved: Path, tmp_path: Path):
    out = tmp_path / "m.pt"
    result = _run("export", saved, "-o", out)
    assert result.exit_code == 0, result.exception
    assert "left out: per-rank state" in result.stderr
    state = torch.load(out)  # weights_only
    assert list(state) == ["model", "odd", "inner", "note"]
    assert {name: bits(tensor) for name, tensor in state["odd"].items()} == {
        name: bits(tensor) for name, tensor in odd_tensors().items()
    }
    assert state["note"] == {"losses": [1.5, 2], "name": "x"}
    assert torch.equal(state["inner"][1][1], torch.arange(3.0)) and torch.equal(state["inner"][1][0], torch.arange(3))
    assert state["inner"]["none"] == {}
    assert zipfile.ZipFile(out).testzip() is None  # its checksums too are as torch writes them
    assert torch.equal(torch.load(out, mmap=True)["odd"]["large"], odd_tensors()["large"])
    assert names_in(tmp_path) == ["m.pt"]


def test_safetensors_hold_every_bit_of_the_tensors_and_say_what_is_left_out(saved: Path, tmp_path: Path):
    out = tmp_path / "m.safetensors"
    result = _run("export", saved, "-o", out, "--json")
    assert result.exit_code == 0, result.exception
    told = json.loads(result.stdout)
    assert told["schema"] == 1 and told["exported"]["size"] == out.stat().st_size
    assert told["exported"]["left_out"] == {
        "per_rank": True,
        "not_tensors": ["inner", "note.losses", "note.name"],
    }
    tensors = load_file(out)
    assert {name: bits(tensors[f"odd.{name}"]) for name in odd_tensors()} == {
        name: bits(tensor) for name, tensor in odd_tensors().items()
    }
    assert set(tensors) == {f"odd.{name}" for name in odd_tensors()} | {"model.weight", "model.bias"}


def test_parts(saved: Path, tmp_path: Path):
    assert (
        _run("export", saved, "-o", tmp_path / "m", "--format", "torch", "--only", "model", "--step", 1).exit_code == 0
    )
    assert list(torch.load(tmp_path / "m")) == ["model"]
    result = _run("export", saved, "-o", tmp_path / "all.pt", "--all", "--json")
    told = json.loads(result.stdout)["exported"]
    assert told["needs_code"] == ["ranks.0.rng.numpy"] and not told["weights_only"]
    state = torch.load(tmp_path / "all.pt", weights_only=False)
    assert state["ranks"]["0"]["data"] == {"position": 0, "seen": {}}
    error = _refused("export", saved, "-o", tmp_path / "x.pt", "--only", "modle", "--only", "data")
    assert error.exit_code == 2 and "no `modle`, `data`" in error.what and "ranks" in error.why


def test_a_damaged_checkpoint_is_refused_and_an_older_one_named(tmp_path: Path):
    for step in (1, 2):
        bare_checkpoint(tmp_path, step)
    flip(tmp_path / "step-2" / "__0_0.distcp", 50)
    error = _refused("export", tmp_path, "-o", tmp_path / "x.pt")
    assert error.exit_code == 15
    assert "step-2 is damaged" in error.what and "__0_0.distcp is damaged" in error.why and "--step 1" in error.hint
    error = _refused("export", tmp_path, "-o", tmp_path / "x.pt", "--step", 1)  # its bytes are good, and not torch's
    assert error.exit_code == 1 and "torch's own metadata of step-1 cannot be read" in error.what
    assert _refused("export", tmp_path, "-o", tmp_path / "x.pt", "--step", 9).exit_code == 15
    assert _refused("export", tmp_path / "nowhere", "-o", tmp_path / "x.pt").exit_code == 10
    assert not list(tmp_path.glob("*.pt")) and not list(tmp_path.glob(".*"))


def test_what_is_there_is_not_replaced(saved: Path, tmp_path: Path):
    out = tmp_path / "m.pt"
    out.write_text("precious")
    error = _refused("export", saved, "-o", out)
    assert error.exit_code == 2 and "--force" in error.hint and out.read_text() == "precious"
    assert _run("export", saved, "-o", out, "--force", "--only", "note").exit_code == 0
    assert torch.load(out) == {"note": {"losses": [1.5, 2], "name": "x"}}
    assert "not a regular file" in _refused("export", saved, "-o", tmp_path, "--force", "--format", "torch").what
    assert "inside the checkpoint" in _refused("export", saved, "-o", saved / "step-2" / "x.pt").what
    assert "format cannot be read from the name" in _refused("export", saved, "-o", tmp_path / "x").what
    missing = _refused("export", saved, "-o", tmp_path / "no" / "x.pt")
    assert missing.exit_code == 1 and not (tmp_path / "no").exists()


def test_file_created_meanwhile_is_not_replaced(tmp_path: Path):
    from transom_cli.ckpt.convert.outfile import appearing

    with pytest.raises(FileExistsError), appearing(tmp_path / "x", force=False) as file:
        file.write(b"ours")
        (tmp_path / "x").write_bytes(b"theirs")
    assert (tmp_path / "x").read_bytes() == b"theirs" and names_in(tmp_path) == ["x"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["m.pt", "m.safetensors"])
def test_a_full_disk(saved: Path, tmp_path: Path, name: str):
    """A limit on a file's size stands for it: the system refuses in the middle of the large tensor."""
    program = (
        "import resource, signal, sys\n"
        "from transom_cli.cli.app import run_app\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, resource.RLIM_INFINITY))\n"
        f"sys.argv = ['transom', 'ckpt', 'export', {str(saved)!r}, '-o', {str(tmp_path / name)!r}, '--only', 'odd']\n"
        "run_app()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stderr
    assert f"cannot write {tmp_path / name}" in done.stderr and "File too large" in done.stderr
    assert names_in(tmp_path) == []


def test_a_type_that_safetensors_lacks(tmp_path: Path):
    checkpointer = Checkpointer({"c": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "c", every=1)
    checkpointer.save(1)
    checkpointer.close(strict=True)
    error = _refused("export", tmp_path / "c", "-o", tmp_path / "c.safetensors")
    assert error.exit_code == 2 and error.why == "c (complex128)"
    assert _run("export", tmp_path / "c", "-o", tmp_path / "c.pt").exit_code == 0
    assert bits(torch.load(tmp_path / "c.pt")["c"]) == bits(torch.zeros(2, dtype=torch.complex128))


def test_one_tensor_at_a_time_is_in_memory(tmp_path: Path):
    """Placeholders cost no memory, and each tensor is let go before the next one is asked for."""
    import weakref

    placeholders = {str(i): torch.empty(1 << 16) for i in range(20)}
    alive: list[weakref.ref] = []

    def read(key: str) -> torch.Tensor:
        assert not any(ref() is not None for ref in alive[:-1])
        tensor = torch.full((1 << 16,), float(key))
        alive.append(weakref.ref(tensor))
        return tensor

    with (tmp_path / "x.safetensors").open("xb+") as file:
        write(file, placeholders, ExportRecord(1, {key: (key,) for key in placeholders}, ()), read)
    assert len(alive) == 20
    for key, tensor in load_file(tmp_path / "x.safetensors").items():
        assert bool((tensor == float(key)).all())


@pytest.mark.parametrize(("package", "words"), [("torch", "PyTorch"), ("safetensors", "the safetensors library")])
def test_without_its_packages_it_says_what_to_install(tmp_path: Path, package: str, words: str):
    bare_checkpoint(tmp_path, 1)
    program = (
        "import sys\n"
        f"sys.modules[{package!r}] = None\n"
        "from transom_cli.cli.app import run_app\n"
        f"sys.argv = ['transom', 'ckpt', 'export', {str(tmp_path)!r}, '-o', {str(tmp_path / 'x.safetensors')!r}]\n"
        "run_app()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and f"This needs {words}, which is not installed here" in done.stderr
    assert "pip install" in done.stderr and "Traceback" not in done.stderr
