"""A restore from memory believes no byte that it did not check, though it copies while it checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from transom_cli.ckpt.checkpointer import Checkpointer
from transom_cli.ckpt.restore.reader import MappedReader


def trained(directory: Path, steps: int) -> tuple[Checkpointer, dict[str, Any]]:
    """Step 1 is durable, and those after it are in memory alone."""
    state = {"weights": torch.zeros(300, 700), "flags": torch.zeros(3, dtype=torch.uint8), "note": "step 0"}
    ck = Checkpointer(state, directory, every=1, keep=1, persist=1000)
    for step in range(1, steps + 1):
        state["weights"].fill_(step)
        state["note"] = f"step {step}"
        assert ck.save(step, force=step == 1)
        ck.wait(strict=True)
    return ck, state


def newest(ck: Checkpointer, step: int) -> Any:
    index = next(n for n, share in ck._snapshots._shares.items() if share.step == step)
    return ck._snapshots._buffers[index], ck._snapshots._shares[index]


@pytest.mark.parametrize("where", ["first byte", "payload", "last byte"])
def test_a_damaged_snapshot_leads_to_an_older_step(
    tmp_path: Path, where: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ck, state = trained(tmp_path / "c", 2)
    arena, share = newest(ck, 2)
    (start, length), *_ = share.segments
    at = {"first byte": start, "payload": start + length // 2, "last byte": start + length - 1}[where]
    arena.write(at, bytes([arena.view(at, 1)[0] ^ 1]))
    unpickled: list[bytes] = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda file, **how: unpickled.append(file.getvalue()) or load(file, **how))
    assert ck.restore() == 1
    assert bool((state["weights"] == 1).all()) and state["note"] == "step 1"
    assert not any(b"step 2" in data for data in unpickled)
    assert "passed over step-2 in memory" in capfd.readouterr().err
    ck.close()


def test_bytes_damaged_on_the_first_look_alone_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ck, state = trained(tmp_path / "c", 2)
    arena, share = newest(ck, 2)
    at = share.segments[0][0] + share.segments[0][1] // 2
    good = arena.view(at, 1)[0]
    arena.write(at, bytes([good ^ 1]))
    copy = MappedReader._copy
    tries: list[bool] = []

    def mended(reader: MappedReader, *about: Any) -> Any:
        found = copy(reader, *about)
        tries.append(found is not None)
        arena.write(at, bytes([good]))
        return found

    monkeypatch.setattr(MappedReader, "_copy", mended)
    assert ck.restore() == 2
    assert tries == [False, True]
    assert bool((state["weights"] == 2).all())
    ck.close()
