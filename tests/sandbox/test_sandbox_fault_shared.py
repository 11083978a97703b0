"""A shared disk that hangs or is read-only, also for open files; and the message if it cannot be shared."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from transom_cli.errors import NotPermitted, UsageError
from transom_cli.sandbox import fault_disks, faults
from transom_cli.sandbox.cluster import Sandbox, SandboxSpec

pytestmark = pytest.mark.sandbox


@pytest.fixture
def shared(sandbox: Sandbox, tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "before").write_text("it was there\n")
    try:
        faults.share_disk(sandbox, folder)
    except NotPermitted as refused:
        pytest.skip(str(refused))
    return folder


@pytest.fixture(autouse=True)
def nothing_left(sandbox: Sandbox) -> object:
    yield
    for folder in sandbox.mounts():
        faults.unshare_disk(sandbox, Path(folder))


def test_a_shared_disk_holds_what_was_there_and_leaves_what_was_made(sandbox: Sandbox, shared: Path) -> None:
    assert (shared / "before").read_text() == "it was there\n"
    (shared / "new").mkdir()
    with (shared / "new" / "file").open("w") as file:
        file.write("one\n")
        file.flush()
        os.fsync(file.fileno())
    with (shared / "new" / "file").open("a") as file:
        file.write("two\n")
    (shared / "new" / "file").rename(shared / "moved")
    (shared / "linked").hardlink_to(shared / "moved")
    assert sorted(path.name for path in shared.iterdir()) == ["before", "linked", "moved", "new"]
    assert [path.name for path in shared.glob("*/")] == ["new"] and list((shared / "new").iterdir()) == []
    with pytest.raises(FileExistsError):
        os.open(shared / "moved", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    assert [fault.undo for fault in faults.active(sandbox)] == [f"unshare-disk {shared}"]
    faults.unshare_disk(sandbox, shared)
    assert (shared / "linked").read_text() == "one\ntwo\n" and list((shared / "new").iterdir()) == []
    assert faults.active(sandbox) == [] and sandbox.mounts() == ()
    with pytest.raises(UsageError, match="is not a shared disk"):
        faults.unshare_disk(sandbox, shared)


def test_read_only_is_for_open_files_too(sandbox: Sandbox, shared: Path) -> None:
    journal = os.open(shared / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(journal, b"1\n")
        faults.readonly_disk(sandbox, shared)
        assert [fault.undo for fault in faults.active(sandbox)] == [f"writable-disk {shared}"]
        for change in (
            lambda: os.write(journal, b"2\n"),
            lambda: (shared / "new").touch(),
            lambda: (shared / "before").unlink(),
            lambda: (shared / "before").rename(shared / "after"),
            lambda: (shared / "folder").mkdir(),
        ):
            with pytest.raises(OSError, match="Read-only file system"):
                change()
        assert (shared / "journal").read_text() == "1\n"
        faults.writable_disk(sandbox, shared)
        os.write(journal, b"3\n")
        assert (shared / "journal").read_text() == "1\n3\n"
    finally:
        os.close(journal)


def test_stalled_disk_blocks_calls_until_it_resumes(sandbox: Sandbox, shared: Path) -> None:
    faults.stall_disk(sandbox, shared)
    assert [fault.undo for fault in faults.active(sandbox)] == [f"cont-disk {shared}"]
    reader = subprocess.Popen(["cat", shared / "before"], stdout=subprocess.PIPE)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(1.0)
    finally:
        faults.cont_disk(sandbox, shared)
    assert reader.communicate(timeout=30)[0] == b"it was there\n"


def test_heal_and_down_leave_no_mount_even_of_a_stalled_disk(short_dir: Path, tmp_path: Path, shared: Path) -> None:
    sb = Sandbox.up(SandboxSpec(short_dir / "stalled", nodes=1))
    mine = tmp_path / "mine"
    try:
        faults.stall_disk(sb, mine)
        faults.heal(sb)
        assert not mine.is_mount() and sb.mounts() == ()
        faults.readonly_disk(sb, mine)
        faults.stall_disk(sb, mine)
    finally:
        sb.down()
    (mine / "file").touch()
    assert not mine.is_mount() and sb.mounts() == ()
    assert shared.is_mount()


def test_a_small_disk_below_a_shared_one_fills_up(sandbox: Sandbox, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk")
    both = tmp_path / "both"
    faults.small_disk(sandbox, both, 2)
    faults.share_disk(sandbox, both)
    faults.fill_disk(sandbox, both)
    with pytest.raises(OSError, match="No space left"):
        (both / "file").write_bytes(b"x" * 4096)
    faults.free_disk(sandbox, both)
    (both / "file").write_bytes(b"x" * 4096)
    faults.unshare_disk(sandbox, both)
    assert (both / "file").stat().st_size == 4096
    faults.free_disk(sandbox, both, unmount=True)


def test_what_is_missing_is_reported(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_disks.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(NotPermitted, match="Cannot mount a file system") as refused:
        faults.stall_disk(sandbox, tmp_path / "never")
    assert refused.value.hint
    assert not (tmp_path / "never").exists()
