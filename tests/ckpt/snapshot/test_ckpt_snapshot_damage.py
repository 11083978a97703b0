"""What is damaged in memory is never loaded: a restore takes an older step or the disk's, and says so."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from ckpt_memory_holders import abandon, holder_pid, memory_of

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.names import MEMORY
from transom_cli.ckpt.restore.memory import memory_candidates
from transom_cli.ckpt.snapshot import daemon
from transom_cli.ckpt.snapshot.record import Record


def state(step: int) -> dict[str, Any]:
    return {"n": step, "odd": torch.full((5,), step, dtype=torch.int8), "even": torch.full((100,), step)}


def trained(directory: Path, *steps: int) -> Checkpointer:
    """Goes on from where a restore says, and saves these; every second is durable."""
    held = state(0)
    trainer = Checkpointer(held, directory, every=1, persist=2)
    trainer.restore()
    for step in steps:
        held |= {"n": step}
        held["odd"].fill_(step)
        held["even"].fill_(step)
        trainer.save(step)
    trainer.wait(strict=True)
    return trainer


def restored(directory: Path) -> int | None:
    """The step that comes back, every value of which was looked at."""
    found = state(0)
    trainer = Checkpointer(found, directory, every=1, persist=2)
    step = trainer.restore()
    abandon(trainer)
    assert found["n"] == (step or 0)
    assert bool((found["odd"] == (step or 0)).all()) and bool((found["even"] == (step or 0)).all())
    return step


def places(trainer: Checkpointer) -> dict[str, int]:
    """Byte positions in the memory of the newest snapshot, one and more for each kind of byte there is."""
    layout = trainer._saver._stager._layout
    assert layout is not None
    found: dict[str, int] = {}
    for n, block in enumerate(layout.blocks[:2]):
        head, tail = len(block.envelope.head), block.payload + block.envelope.nbytes
        end = block.start + block.envelope.length
        found |= {f"head's first {n}": block.start, f"head's middle {n}": block.start + head // 2,
                  f"head's last {n}": block.payload - 1, f"payload's first {n}": block.payload,
                  f"payload's last {n}": tail - 1, f"tail's first {n}": tail, f"tail's last {n}": end - 1}  # fmt: skip
        if end % 64:
            found[f"gap {n}"] = end
    share = newest(trainer)[1]
    last = sum(share.segments[-1])
    found |= {"objects' first": layout.size, "objects' middle": (layout.size + last) // 2, "the last": last - 1}
    assert any(name.startswith("gap") for name in found)
    return found


def newest(trainer: Checkpointer) -> tuple[int, Any]:
    return max(trainer._snapshots._shares.items(), key=lambda pair: pair[1].step)


def held_file(trainer: Checkpointer, directory: Path) -> Path:
    """The memory of the newest snapshot, as the daemon has it."""
    mine = os.fstat(trainer._snapshots._buffers[newest(trainer)[0]].fd)
    return next(path for path in memory_of(holder_pid(directory)) if path.stat().st_ino == mine.st_ino)


def test_a_flipped_bit_of_any_kind_of_byte_is_never_loaded(directory: Path, capfd) -> None:
    trainer = trained(directory, 1, 2, 3)
    for name, position in places(trainer).items():
        with held_file(trainer, directory).open("r+b", buffering=0) as memory:
            memory.seek(position)
            byte = memory.read(1)[0]
            memory.seek(position)
            memory.write(bytes([byte ^ 0x10]))
        abandon(trainer)
        assert restored(directory) == 2, name
        said = capfd.readouterr().err
        assert "passed over step-3 in memory" in said and "damaged" in said, name
        assert "restored step-2 in memory" in said, name
        trainer = trained(directory, 3)
        shutil.rmtree(directory / "step-3", ignore_errors=True)  # what is asked is of the memory
    abandon(trainer)
    assert restored(directory) == 3  # it was the flips


def test_with_every_snapshot_damaged_the_disk_counts(directory: Path, capfd) -> None:
    abandon(trained(directory, 1, 2, 3))
    for path in memory_of(holder_pid(directory)):
        with path.open("r+b", buffering=0) as memory:
            memory.write(b"not a tensor")
    assert restored(directory) == 2
    said = capfd.readouterr().err
    assert "passed over step-3 in memory" in said and "passed over step-2 in memory" in said
    assert "restored step-2 (written by" in said


def test_memory_that_is_held_cannot_be_cut(directory: Path) -> None:
    trainer = trained(directory, 1)
    with held_file(trainer, directory).open("r+b", buffering=0) as memory, pytest.raises(PermissionError):
        memory.truncate(4096)
    abandon(trainer)
    assert restored(directory) == 1


@pytest.mark.usefixtures("holder_within")
def test_a_flipped_byte_of_a_record_shows(directory: Path) -> None:
    trainer = trained(directory, 1, 2, 3)
    store = daemon._in_process._trainings[str(directory)].store  # type: ignore[union-attr]
    good = store.records[3]
    for at in range(0, len(good.manifest) + len(good.metadata), 13):
        data = bytearray(good.manifest + good.metadata)
        data[at] ^= 0x01
        size = len(good.manifest)
        store.records[3] = Record(bytes(data[:size]), bytes(data[size:]))
        found, said = memory_candidates(trainer._snapshots)
        assert found[0].step == 2, at
        assert said[-1].startswith("the record of step 3 on here is damaged"), at
    store.records[3] = Record(good.manifest[:-1], good.metadata)
    assert memory_candidates(trainer._snapshots)[0][0].step == 2
    store.records[3] = good
    assert memory_candidates(trainer._snapshots)[0][0].step == 3
    abandon(trainer)


@pytest.mark.usefixtures("holder_within")
def test_a_damaged_record_is_not_made_durable(directory: Path) -> None:
    trainer = trained(directory, 1, 2, 3)
    store = daemon._in_process._trainings[str(directory)].store  # type: ignore[union-attr]
    good = store.records[3]
    store.records[3] = Record(good.manifest, good.metadata[:-1] + b"?")
    trainer.close()
    assert trainer.last_error is not None and "is damaged" in str(trainer.last_error)
    assert not (directory / "step-3").exists()


def test_the_memory_of_another_training_of_that_name_is_not_believed(directory: Path) -> None:
    abandon(trained(directory, 1, 2, 3))
    (directory / MEMORY).write_text("0" * 32)  # as if the directory had been removed and made anew
    assert restored(directory) == 2  # what stands there
