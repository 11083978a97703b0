"""The agent asks NCCL's RAS while the ranks train, here a stub server that answers again and again."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from unittest import mock

import pytest
from ras_answers import answer, comm
from supervise.agent.test_nccl_ras import Server

from transom_cli.layout import AttemptDir
from transom_cli.supervise.agent import nccl_behind, procfs
from transom_cli.supervise.agent.nccl_behind import NcclBehind

LATE, EVEN = (answer(comm({rank: 9 - (rank == late) for rank in range(8)})) for late in (5, -1))


class Asked:
    """A launch of eight ranks; this process is rank 0."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.launch, self.server = 0, server
        attempt = AttemptDir(folder / "12.0")
        attempt.nodes.mkdir(parents=True)
        self.path = attempt.nccl("n0")
        self.one = NcclBehind(attempt, "n0", lambda: (self.launch, {0: os.getpid()}))
        self.now = 0.0

    def told(self, said: str) -> list[dict[str, object]]:
        """What the file says after an answer, 40 s after the last one."""
        self.server.says, self.now = said.encode(), self.now + 40.0
        clock = mock.Mock(wraps=time, monotonic=lambda: self.now)
        with (
            mock.patch.object(nccl_behind, "time", clock),
            mock.patch.object(nccl_behind.nccl_ras, "_left", lambda _: 5.0),
        ):
            self.one.look()
        return json.loads(self.path.read_text())["behind"] if self.path.exists() else []


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    server = Server(json=True)
    env = {"NCCL_RAS_ADDR": f"127.0.0.1:{server.port}", "WORLD_SIZE": "8"}
    monkeypatch.setattr(procfs, "environ", lambda pid: env)
    yield Asked(tmp_path, server)
    server.close()


def test_a_rank_that_stays_behind_is_told_from_the_second_answer_on(asked: Asked) -> None:
    assert asked.told(LATE) == []
    (one,) = asked.told(LATE)
    assert str(one["words"]).startswith("rank 5 is behind in communicator 0x9c1b (8 ranks)") and one["seconds"] == 40.0
    assert asked.told(LATE)[0]["seconds"] == 80.0
    assert asked.told(EVEN) == [] and asked.told(LATE) == [], "it begins again"
    assert asked.path.stat().st_size < 2048


def test_another_launch_begins_again(asked: Asked) -> None:
    asked.told(LATE)
    asked.launch = 1
    assert asked.told(LATE) == [] and json.loads(asked.path.read_text())["launch"] == 1


def test_an_answer_of_a_launch_that_ended_meanwhile_is_dropped(asked: Asked) -> None:
    launches = iter(range(2))
    asked.one._ranks = lambda: (next(launches), {0: os.getpid()})
    assert asked.told(LATE) == [] and not asked.path.exists()


def test_without_nccl_there_is_no_file(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "environ", lambda pid: {"NCCL_RAS_ADDR": "localhost:1", "WORLD_SIZE": "8"})
    assert asked.told(LATE) == [] and not asked.path.exists()


def test_when_nccl_falls_silent_nothing_is_told_any_more(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    asked.told(LATE)
    assert asked.told(LATE)
    monkeypatch.setattr(procfs, "environ", lambda pid: {"NCCL_RAS_ADDR": "localhost:1", "WORLD_SIZE": "8"})
    assert asked.told(LATE) == []


def test_a_thread_asks_and_leaves(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_behind, "EVERY", 0.01)
    monkeypatch.setattr(nccl_behind, "RARELY", 0.0)
    asked.server.says = LATE.encode()
    asked.one.start()
    until = time.monotonic() + 30
    while not (asked.path.exists() and json.loads(asked.path.read_text())["behind"]) and time.monotonic() < until:
        time.sleep(0.01)
    asked.one.stop()
    assert json.loads(asked.path.read_text())["behind"]
