"""Incremental checkpoints: only blocks that have changed are written, and every checkpoint is complete."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ckpt_made import flip, names_in, odd_tensors
from ckpt_two import several_ranks, two_ranks
from torch.distributed.checkpoint import load as dcp_load
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata
from typer.testing import CliRunner

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.failures import StateMismatch
from transom_cli.ckpt.inventory import Candidate, candidates, verify
from transom_cli.ckpt.proof_files import diff, verify_deep
from transom_cli.ckpt.restore.read_plan import pieces
from transom_cli.ckpt.save import incremental
from transom_cli.ckpt.save.incremental import boxes
from transom_cli.cli.app import app
from transom_cli.errors import UsageError

EXPERTS, ROWS = 8, 20_000


def made(seed: int = 0) -> dict:
    torch.manual_seed(seed)
    experts = {str(k): torch.randn(256, 1024) for k in range(EXPERTS)}
    return {"experts": experts, "table": torch.randn(ROWS, 64), "odd": odd_tensors(), "step": torch.zeros(())}


def train(state: dict, step: int) -> None:
    """One expert and one row change."""
    state["experts"][str(step % EXPERTS)].add_(step)
    state["table"][step * 977 % ROWS] += 1
    state["step"] += 1


def flat(state: dict) -> dict[str, torch.Tensor]:
    inner = {f"{name}.{key}": one for name in ("experts", "odd") for key, one in state[name].items()}
    return {**inner, "table": state["table"], "step": state["step"]}


def same(a: dict, b: dict) -> bool:
    one, two = flat(a), flat(b)
    return all(
        torch.equal(
            one[k].contiguous().reshape(-1).view(torch.uint8), two[k].contiguous().reshape(-1).view(torch.uint8)
        )
        for k in one
    )


def run(directory: Path, steps: range, *, state: dict | None = None, **more) -> dict:
    state = state or made()
    more = {"every": 1, "keep": 2, "full_every": 4, **more}
    checkpointer = Checkpointer(state, directory, **more)
    checkpointer.restore()
    for step in steps:
        train(state, step)
        checkpointer.save(step)
        checkpointer.wait(strict=True)
        assert checkpointer._snapshots.copied(60)
    checkpointer.close(strict=True)
    return state


def restored(directory: Path, **more) -> tuple[int | None, dict]:
    state = made(1)
    checkpointer = Checkpointer(state, directory, every=1, keep=100, **more)
    found = checkpointer.restore()
    checkpointer.close()
    return found, state


def written(directory: Path, step: int) -> int:
    """Bytes of the data file that this step has written."""
    return (directory / f"step-{step}" / "__0_0.distcp").stat().st_size


def test_only_blocks_that_changed_are_written_and_restored_after_the_base_is_deleted(directory: Path) -> None:
    state = run(directory, range(1, 5))
    assert names_in(directory) == ["step-3", "step-4"], "the base, step-1, is deleted"
    whole = sum(one.nbytes for one in flat(state).values())
    expert = state["experts"]["0"].nbytes
    assert expert < written(directory, 4) < expert + 2 * incremental.BLOCK + (1 << 16) < whole / 4
    assert all(verify(found).good for found in candidates(directory))
    assert verify_deep(directory / "step-4").wrong == () and verify_deep(directory / "step-4").compared > EXPERTS
    found, other = restored(directory)
    assert found == 4 and same(state, other)


def test_stock_dcp_reads_an_incremental_checkpoint(directory: Path) -> None:
    state = run(directory, range(1, 4))
    target = {name: torch.empty_like(one) for name, one in flat(state).items() if not name.startswith("odd.")}
    dcp_load(target, checkpoint_id=str(directory / "step-3"))
    assert all(torch.equal(one, flat(state)[name]) for name, one in target.items())


def test_one_of_so_many_checkpoints_is_full(directory: Path) -> None:
    run(directory, range(1, 9), keep=10, full_every=3)
    links = {step: len(list((directory / f"step-{step}").glob("*.step-*.distcp"))) for step in range(1, 9)}
    assert links == {1: 0, 2: 1, 3: 2, 4: 0, 5: 1, 6: 2, 7: 0, 8: 1}


def test_without_full_every_the_files_are_those_of_the_snapshot(directory: Path) -> None:
    run(directory, range(1, 4), full_every=None, keep=10)
    assert all(
        sorted(path.name for path in (directory / f"step-{step}").iterdir())
        == [".metadata", "__0_0.distcp", "manifest.json"]
        for step in (1, 2, 3)
    )


def test_checkpoints_with_a_damaged_base_are_found_and_passed_over(directory: Path, capsys) -> None:
    state = run(directory, range(1, 3), keep=10, full_every=2)
    run(directory, range(3, 5), keep=10, full_every=2, state=made(1))
    flip(directory / "step-3" / "__0_0.distcp", 1 << 20)
    bad = {found.step: verify(found).reason for found in candidates(directory) if not verify(found).good}
    assert bad == {
        4: "__0_0.step-3.distcp is damaged (its checksum differs)",
        3: "__0_0.distcp is damaged (its checksum differs)",
    }
    found, other = restored(directory)
    assert found == 2 and same(state, other)
    assert "step-4" in capsys.readouterr().err


def test_a_base_that_was_changed_is_not_used(directory: Path, capfd) -> None:
    state = made()
    checkpointer = Checkpointer(state, directory, every=1, keep=10, full_every=10)
    for step in range(1, 6):
        train(state, step)
        checkpointer.save(step)
        checkpointer.wait(strict=True)
        if step == 2:
            flip(directory / "step-1" / "__0_0.distcp", 1 << 20)
    checkpointer.close(strict=True)
    verdicts = {found.step: verify(found).good for found in candidates(directory)}
    assert verdicts == {1: False, 2: False, 3: True, 4: True, 5: True}
    why = "__0_0.step-1.distcp of step-2, to which it refers, is not as it was written"
    assert capfd.readouterr().err == f"transom: step-3 is written in full: {why}\n"
    assert written(directory, 5) < written(directory, 4), "and the next ones are incremental again"


def test_a_checkpoint_is_written_in_full_where_files_cannot_be_linked(
    holder_within, directory: Path, monkeypatch, capsys
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", link)
    state = run(directory, range(1, 4), keep=10)
    assert "step-2 is written in full: Invalid cross-device link" in capsys.readouterr().err
    assert all(verify(found).good for found in candidates(directory))
    found, other = restored(directory)
    assert found == 3 and same(state, other)


def test_a_value_that_changes_shape_is_written_and_the_others_are_linked(directory: Path) -> None:
    state = made()
    checkpointer = Checkpointer(state, directory, every=1, keep=10, full_every=10)
    for step in range(1, 5):
        train(state, step)
        if step == 3:
            state["table"] = torch.randn(ROWS + 1, 64)
            state["experts"]["more"] = torch.ones(600, 600)
        checkpointer.save(step)
        checkpointer.wait(strict=True)
    checkpointer.close(strict=True)
    assert state["table"].nbytes < written(directory, 3) < 3 * state["table"].nbytes
    assert verify_deep(directory / "step-4").wrong == ()
    other = made(1)
    other["table"], other["experts"]["more"] = torch.empty(ROWS + 1, 64), torch.empty(600, 600)
    checkpointer = Checkpointer(other, directory, every=1)
    assert checkpointer.restore() == 4 and same(state, other)
    checkpointer.close()


def test_outdated_bytes_are_bounded(directory: Path) -> None:
    """Each file would stay in use for five steps because of one of its three tensors."""
    state = {str(k): torch.zeros(1 << 18) for k in range(8)}
    checkpointer = Checkpointer(state, directory, every=1, keep=10, full_every=100)
    for step in range(1, 9):
        for k in (0, 1, 3):
            state[str((step + k) % 8)].fill_(step)
        checkpointer.save(step)
        checkpointer.wait(strict=True)
    checkpointer.close(strict=True)
    whole = sum(one.nbytes for one in state.values())
    for found in candidates(directory):
        verdict = verify(found)
        assert verdict.good and verdict.manifest is not None and verdict.manifest.size < 2.2 * whole


_KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
from test_ckpt_save_incremental import made, train
from transom_cli.ckpt import files
from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.save import daemon
from transom_cli.ckpt.snapshot.daemon import in_process
from transom_cli.ckpt.snapshot.rendezvous import DaemonAddress

daemon.find_daemon = lambda directory, token: DaemonAddress("here", str(in_process().call("hello")[0]["id"]), False, "")
state, directory = made(), Path({directory!r})
checkpointer = Checkpointer(state, directory, every=1, keep=2, full_every=10)
for step in range(1, 4):
    train(state, step)
    if step == 3:
        real = files._write
        def write(fd, data, on_bytes):
            real(fd, data[: len(data) // 2], on_bytes)
            os.kill(os.getpid(), signal.SIGKILL)
        files._write = write
    checkpointer.save(step)
    checkpointer.wait(strict=True)
"""


def test_a_kill_during_the_write_leaves_the_checkpoints_before(directory: Path) -> None:
    here = Path(__file__).parent
    code = _KILLED.format(path=[str(here), str(here.parent), str(here.parents[1])], directory=str(directory))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert any(name.startswith(".tmp-step-3-") for name in names_in(directory))
    state = made()
    for step in (1, 2):
        train(state, step)
    found, other = restored(directory)
    assert found == 2 and same(state, other)
    assert not any(name.startswith(".tmp-") for name in names_in(directory))
    assert verify(Candidate(1, directory / "step-1")).good, "the base is untouched by the deletion of the links"


def test_copies_in_other_directories_are_whole(directory: Path, tmp_path: Path) -> None:
    state = run(directory, range(1, 4), also={tmp_path / "copies": 1}, keep=10)
    copy = tmp_path / "copies" / "step-3"
    assert sorted(path.name for path in copy.iterdir()) == [".metadata", "__0_0.distcp", "manifest.json"]
    assert verify(Candidate(3, copy)).good and verify_deep(copy).wrong == ()
    assert (directory / "step-3" / "__0_0.step-1.distcp").stat().st_nlink > 1
    assert list(diff(directory / "step-3", copy)) == [] and state["step"] == 3


@pytest.mark.long
def test_commands_read_incremental_checkpoints(directory: Path, tmp_path: Path) -> None:
    state = run(directory, range(1, 4), keep=10)
    call = CliRunner().invoke
    assert "good" in call(app, ["ckpt", "verify", str(directory)]).stdout
    deep = call(app, ["ckpt", "verify", "--deep", str(directory)])
    assert deep.exit_code == 0 and deep.stdout.count("proven") == 3
    changed = call(app, ["ckpt", "diff", str(directory / "step-2"), str(directory / "step-3"), "--json"]).stdout
    assert "experts.3" in changed and "experts.2" not in changed and "table" in changed
    out = tmp_path / "experts.pt"
    exported = call(app, ["ckpt", "export", str(directory), "--step", "3", "--only", "experts", "-o", str(out)])
    assert exported.exit_code == 0, exported.output
    assert torch.equal(torch.load(out)["experts"]["3"], state["experts"]["3"])


@pytest.mark.long
def test_ranks_write_their_own_changes_and_another_number_of_ranks_restores_them(directory: Path) -> None:
    found = [json.loads(out.splitlines()[-1]) for out, _ in two_ranks("ckpt_incremental_worker.py", str(directory))]
    assert [one["restored"] for one in found] == [None, None]
    assert all(one["written"] < one["whole"] / 4 for one in found), "each rank's own file has its changes"
    for size in (2, 3):
        again = [
            json.loads(out.splitlines()[-1])
            for out, _ in several_ranks(size, "ckpt_incremental_worker.py", str(directory), "read")
        ]
        assert [one["restored"] for one in again] == [5] * size
        assert {one["digest"] for one in again} == {found[0]["digest"]}


def test_boxes_cover_a_tensor_in_order() -> None:
    for sizes, most in [
        ((7,), 3),
        ((1, 1, 9), 4),
        ((5, 4, 3), 2),
        ((5, 4, 3), 13),
        ((2, 3), 100),
        ((), 1),
        ((3, 0), 1),
    ]:
        whole = torch.arange(math.prod(sizes)).reshape(sizes)
        seen = []
        for offsets, part in boxes(sizes, most):
            view = whole
            for dimension, (start, size) in enumerate(zip(offsets, part, strict=True)):
                view = view.narrow(dimension, start, size)
            assert view.is_contiguous() and view.numel() <= max(most, 1)
            seen += view.reshape(-1).tolist()
        assert seen == list(range(math.prod(sizes)))


def test_an_increment_refers_only_to_the_checkpoint_that_its_ranks_have_planned(directory: Path) -> None:
    state = made()
    checkpointer = Checkpointer(state, directory, every=1, keep=10, full_every=10)
    for step in range(1, 5):
        checkpointer.save(step)
        checkpointer.wait(strict=True)
        planned = checkpointer._saver._committer._incremental._planned
        if step == 2:
            planned[2] = "of another attempt to save step 2"
    checkpointer.close(strict=True)
    linked = [len(list((directory / f"step-{step}").glob("*.step-*"))) for step in range(1, 5)]
    assert linked == [0, 1, 0, 1]


def test_each_stored_part_is_read_into_its_place() -> None:
    def stored(*boxes: tuple[tuple[int, ...], tuple[int, ...]]) -> TensorStorageMetadata:
        chunks = [ChunkStorageMetadata(torch.Size(at), torch.Size(size)) for at, size in boxes]
        return TensorStorageMetadata(TensorProperties(dtype=torch.float32), torch.Size((4, 6)), chunks)

    target = torch.arange(24.0).reshape(4, 6)
    found = pieces("w", stored(((0, 0), (3, 6)), ((3, 0), (1, 6))), target)
    assert [(view.flatten()[0].item(), box) for _, view, box in found] == [(0, None), (18, None)]
    found = pieces("w", stored(((0, 0), (4, 3)), ((0, 3), (4, 3))), target)
    assert [view.flatten()[0].item() for _, view, _ in found] == [0, 3]
    narrow = target[:, :3]
    assert [box for *_, box in pieces("w", stored(((0, 0), (4, 6))), narrow)] == [((0, 4), (0, 3))]
    with pytest.raises(StateMismatch, match="do not add up"):
        pieces("w", stored(((0, 0), (3, 6))), target)


@pytest.mark.parametrize("full_every", [1, 0, 2.5, True])
def test_odd_numbers_are_refused(directory: Path, full_every: object) -> None:
    with pytest.raises(UsageError, match="full_every"):
        Checkpointer({"n": 1}, directory, every=1, full_every=full_every)  # type: ignore[arg-type]
