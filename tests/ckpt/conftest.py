from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from ckpt_memory_holders import end_holder

from transom_cli.ckpt.save import daemon
from transom_cli.ckpt.snapshot.client import LINGER
from transom_cli.ckpt.snapshot.rendezvous import DaemonAddress

# Checkpointers that tests leave open keep the descriptors of their buffers; many systems allow 1,024 by default.
_, _MOST = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (_MOST, _MOST))


@pytest.fixture(autouse=True)
def holders_leave_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test leaves open must not stay for a minute."""
    monkeypatch.setenv(LINGER, "3")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Of a training; the snapshot daemon that it leaves ends with the test."""
    yield tmp_path / "c"
    end_holder(tmp_path / "c")


@pytest.fixture
def holder_within(monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot daemon is in the test's own process, where limits and patches of the test reach it."""
    from transom_cli.ckpt.snapshot.daemon import in_process

    def find_daemon(directory: object, token: str) -> DaemonAddress:
        line = in_process()
        try:
            return DaemonAddress("here", str(line.call("hello")[0]["id"]), False, "")
        finally:
            line.close()

    monkeypatch.setattr(daemon, "find_daemon", find_daemon)
