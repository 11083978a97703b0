"""`@recoverable`: real gloo ranks are entered again, and what does not concern the launcher stays as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from processes import wait_for
from rank_server import Forked

from transom_cli import recoverable
from transom_cli.heartbeat import client, paths, record, reentry
from transom_cli.integrations import recoverable as module
from transom_cli.integrations.recoverable import Context
from transom_cli.rpc.sockets import free_port

SIZE = 3
ENTRIES = int(os.environ.get("TRANSOM_REENTRIES", "1000"))


class Ranks:
    """Ranks on one node, and orders to them as the node's agent writes them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.beats, self.attempt = folder, folder / "beats", folder / "attempts" / "1.0"
        self.beats.mkdir(mode=0o700)
        self.launch, self.port = 0, free_port()
        self.ranks = [self._start(rank) for rank in range(SIZE)]

    def _start(self, rank: int) -> subprocess.Popen[str]:
        (self.attempt / "logs" / str(self.launch)).mkdir(parents=True, exist_ok=True)
        fresh = record.Record(rank, self.launch, time.monotonic_ns())
        os.close(record.create(f"{self.beats}/rank-{rank}", fresh))
        env = {
            "RANK": str(rank), "WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port),
            "GLOO_SOCKET_IFNAME": "lo", paths.BEAT_DIR: str(self.beats), paths.ATTEMPT_DIR: str(self.attempt),
            paths.LAUNCH: str(self.launch), paths.RECOVERABLE: "1",
        }  # fmt: skip
        log = (self.folder / f"log-{rank}").open("a")
        worker = Path(__file__).with_name("recoverable_worker.py")
        command = [sys.executable, str(worker), str(self.folder)]
        return Forked(command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True)

    def enter_again(self, lost: int | None = None) -> None:
        if lost is not None:
            self.ranks[lost].kill()
            self.ranks[lost].wait()
        former, self.launch, self.port = self.launch, self.launch + 1, free_port()
        (self.attempt / "logs" / str(self.launch)).mkdir(parents=True)
        order = {paths.LAUNCH: str(self.launch), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
        reentry.write_order(str(self.beats), former, order)
        if lost is not None:
            self.ranks[lost] = self._start(lost)

    def reports(self, rank: int) -> list[dict[str, int]]:
        path = self.folder / f"report-{rank}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def train(self) -> None:
        """Wait until all ranks step in the present launch."""
        for rank in range(SIZE):
            wait_for(partial(self._trains, rank), 120)

    def _trains(self, rank: int) -> bool:
        assert self.ranks[rank].poll() is None, (self.folder / f"log-{rank}").read_text()[-3000:]
        return any(one["launch"] == self.launch for one in self.reports(rank))

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path)
    yield made
    made.end()


def test_ranks_are_entered_again_and_a_lost_one_is_replaced(ranks: Ranks) -> None:
    ranks.train()
    pids = [rank.pid for rank in ranks.ranks]
    ranks.enter_again(lost=1)
    ranks.train()
    newest = [ranks.reports(rank)[-1] for rank in range(SIZE)]
    assert [one["groups"] for one in newest] == [2] * SIZE
    assert [one["pid"] for one in newest] == [pids[0], ranks.ranks[1].pid, pids[2]]
    ranks.enter_again()
    ranks.train()
    assert reentry.hearing(str(ranks.beats), ranks.launch) == [0, 1, 2]
    assert [record.look(f"{ranks.beats}/rank-{rank}").launch for rank in range(SIZE)] == [2] * SIZE  # type: ignore[union-attr]


@pytest.mark.long
def test_survivors_that_wait_for_a_new_rank_are_entered_once_more(ranks: Ranks) -> None:
    """It dies before it has joined them, and another one with it."""
    ranks.train()
    pid = ranks.ranks[0].pid
    ranks.enter_again(lost=1)
    ranks.ranks[1].kill()
    ranks.ranks[1].wait()
    wait_for(lambda: {0, 2} <= set(reentry.hearing(str(ranks.beats), 1)), 60)
    ranks.enter_again(lost=2)
    ranks.ranks[1] = ranks._start(1)
    ranks.train()
    newest = [ranks.reports(rank)[-1] for rank in range(SIZE)]
    assert [(one["launch"], one["pid"]) for one in newest] == [(2, rank.pid) for rank in ranks.ranks]
    assert newest[0]["entry"] == 2 and ranks.ranks[0].pid == pid


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_entering_again_leaves_nothing_behind(ranks: Ranks) -> None:
    for _ in range(ENTRIES):
        ranks.train()
        ranks.enter_again()
    ranks.train()
    for rank in range(SIZE):
        found = ranks.reports(rank)
        fresh = [n for n, one in enumerate(found) if not one["entry"]]
        found = found[fresh[-1] + 1 :]  # since the process last started from scratch
        early, late = found[: len(found) // 2], found[len(found) // 2 :]
        for what, more in (("groups", 0), ("fds", 2), ("threads", 2), ("kilobytes", 32_000)):
            assert min(one[what] for one in late) <= max(one[what] for one in early) + more, what


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A rank's environment in this process."""
    beats = tmp_path / "beats"
    beats.mkdir(mode=0o700)
    env = {paths.BEAT_DIR: str(beats), paths.LAUNCH: "0", paths.RECOVERABLE: "1", "RANK": "0"}
    for name, value in {**env, "MASTER_ADDR": "", "MASTER_PORT": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(reentry, "redirect", lambda _launch, _rank: None)
    monkeypatch.setattr(client, "reentered", lambda _launch: None)
    return beats


ORDER = {paths.LAUNCH: "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4711"}


def test_a_sleeping_main_thread_is_interrupted(place: Path) -> None:
    closed: list[str] = []

    class Owner:
        def close(self) -> None:
            closed.append("closed")

    owner = Owner()

    @recoverable
    def train(ctx: Context, word: str) -> tuple[int, str, str]:
        import weakref

        if ctx.entry == 0:
            reentry.at_reentry(weakref.WeakMethod(owner.close))
            assert reentry.hearing(str(place), 0) == [0]
            reentry.write_order(str(place), 0, ORDER)
            ctx.keep("made", lambda: "first")
            try:
                time.sleep(600)
            except Exception:
                pytest.fail("a trainer's own handlers must not catch it")
        return ctx.entry, ctx.keep("made", lambda: "second"), word

    assert train("word") == (1, "first", "word")
    assert closed == ["closed"]
    assert (os.environ[paths.LAUNCH], os.environ["MASTER_PORT"]) == ("1", "4711")
    assert signal.getsignal(signal.SIGURG) == signal.SIG_DFL
    assert reentry.hearing(str(place), 1) == []


def test_the_error_of_a_peer_waits_for_an_order_and_other_errors_do_not(place: Path) -> None:
    @recoverable
    def train(ctx: Context) -> int:
        if ctx.entry == 0:
            reentry.write_order(str(place), 0, ORDER)
            raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")
        raise ValueError("of its own")

    with pytest.raises(ValueError, match="of its own"):
        train()
    assert os.environ[paths.LAUNCH] == "1"


def test_the_error_of_a_peer_is_raised_if_no_order_comes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.2)

    @recoverable
    def train(ctx: Context) -> None:
        raise RuntimeError("NCCL communicator was aborted")

    with pytest.raises(RuntimeError, match="aborted"):
        train()
    assert place.exists() and reentry.hearing(str(place), 0) == []


def test_training_that_ended_as_the_order_came_is_entered_again(place: Path) -> None:
    @recoverable
    def train(ctx: Context) -> int:
        if ctx.entry == 0:
            reentry.write_order(str(place), 0, ORDER)
        return ctx.entry

    assert train() == 1


def test_without_the_setting_it_is_called_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(paths.RECOVERABLE)

    @recoverable
    def train(ctx: Context) -> int:
        reentry.write_order(str(place), 0, ORDER)
        return ctx.entry

    assert train() == 0


KEPT = """
import os, sys, torch
from transom_cli import recoverable
from transom_cli.ckpt import Checkpointer
from transom_cli.heartbeat import paths, reentry

@recoverable
def train(ctx):
    model = ctx.keep("model", lambda: torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    checkpointer = Checkpointer({"model": model, "optimizer": optimizer}, every=1000, directory=sys.argv[1])
    found = checkpointer.restore()
    print("entered", os.environ[paths.LAUNCH], ctx.entry, found, flush=True)
    if os.environ[paths.LAUNCH] == "1":
        return
    checkpointer.step(1)
    with torch.no_grad():
        model.weight.add_(1)  # the state of step 1 is not whole any more
    order = {paths.LAUNCH: "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    reentry.write_order(os.environ[paths.BEAT_DIR], 0, order)
    raise RuntimeError("gloo: connection closed by peer")

train()
"""


@pytest.mark.long
def test_a_kept_model_is_not_trained_on_if_nothing_can_be_restored(tmp_path: Path) -> None:
    beats, attempt, script = tmp_path / "beats", tmp_path / "attempts" / "1.0", tmp_path / "train.py"
    beats.mkdir(mode=0o700)
    for launch in (0, 1):
        (attempt / "logs" / str(launch)).mkdir(parents=True)
    script.write_text(KEPT)
    os.close(record.create(f"{beats}/rank-0", record.Record(0, 0, time.monotonic_ns())))
    env = {paths.BEAT_DIR: str(beats), paths.ATTEMPT_DIR: str(attempt), paths.LAUNCH: "0", paths.RECOVERABLE: "1"}
    command = [sys.executable, str(script), str(tmp_path / "checkpoints")]
    done = subprocess.run(
        command, env={**os.environ, **env, "RANK": "0"}, capture_output=True, text=True, timeout=120, check=True
    )
    log = (attempt / "logs" / "1" / "rank-0.log").read_text()
    assert done.stdout == "entered 0 0 None\n", done.stderr
    assert "rank 0 has kept a trained model, so its process starts from scratch" in log
    assert log.endswith("entered 1 0 None\n"), "it began with trained values"


@pytest.mark.long
def test_torch_forgets_the_device_mesh_of_the_former_entry() -> None:
    """Results that torch keeps for an equal mesh would use process groups that are gone."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    for _ in range(2):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            mesh = init_device_mesh("cpu", (1,))
            found = DTensor.from_local(torch.ones(2), mesh, [Shard(0)]).detach()
            assert found.device_mesh is mesh
        finally:
            dist.destroy_process_group()
            module._forget_meshes()
