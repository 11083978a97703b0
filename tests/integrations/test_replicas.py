"""Elastic replicas: real gloo ranks train on without a lost one, which joins later, and the result is the same."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from processes import wait_for
from rank_server import Forked

from transom_cli import recoverable
from transom_cli.elastic import GlobalBatches
from transom_cli.errors import UsageError
from transom_cli.files import publish_text
from transom_cli.heartbeat import paths, record, reentry
from transom_cli.integrations.replicas import Members
from transom_cli.rpc.sockets import free_port

WORLD = 3
KILLS = int(os.environ.get("TRANSOM_KILLS", "30"))


class Ranks:
    """Ranks on one node. `lose` does what launcher and agent do."""

    def __init__(
        self,
        folder: Path,
        *,
        kept: bool = True,
        every: int = 10**6,
        pause: float = 0.0,
        elastic: bool = True,
        world: int = WORLD,
        shards: int = 1,
    ) -> None:
        self.folder, self.beats, self.attempt = folder, folder / "beats", folder / "attempts" / "1.0"
        self.beats.mkdir(mode=0o700)
        self.arguments = [str(folder), "kept" if kept else "new", str(every)]
        self.launch, self.port, self.pause, self.elastic = 0, free_port(), pause, elastic
        self.world, self.shards = world, shards
        self.members = list(range(world))
        self.ordered: list[float] = []
        self.ranks = [self._start(rank, "") for rank in range(world)]

    def _start(self, rank: int, replicas: str) -> subprocess.Popen[str]:
        (self.attempt / "logs" / str(self.launch)).mkdir(parents=True, exist_ok=True)
        os.close(record.create(f"{self.beats}/rank-{rank}", record.Record(rank, self.launch, time.monotonic_ns())))
        env = {
            "RANK": str(rank), "WORLD_SIZE": str(self.world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port),
            "GLOO_SOCKET_IFNAME": "lo", paths.BEAT_DIR: str(self.beats), paths.ATTEMPT_DIR: str(self.attempt),
            paths.LAUNCH: str(self.launch), paths.RECOVERABLE: "1", paths.REPLICAS: replicas, "PAUSE": str(self.pause),
            "SHARDS": str(self.shards), "TRANSOM_ATTEMPT": "1.0", "ELASTIC": "yes" if self.elastic else "no",
        }  # fmt: skip
        log = (self.folder / f"log-{rank}").open("a")
        worker = Path(__file__).with_name("replicas_worker.py")
        command = [sys.executable, str(worker), *self.arguments]
        return Forked(command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True)

    def lose(self, *lost: int, replace: bool = True) -> None:
        """Kill ranks. Elastic ones train on without them, and without those that have not joined yet."""
        for rank in lost:
            self.ranks[rank].kill()
            self.ranks[rank].wait()
        former, self.launch, self.port = self.launch, self.launch + 1, free_port()
        self.members = [rank for rank in self.members if rank not in lost]
        assert reentry.elastic(str(self.beats), former, self.members) == self.elastic
        (self.attempt / "logs" / str(self.launch)).mkdir(parents=True)
        order = {paths.LAUNCH: str(self.launch), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port),
                 paths.REPLICAS: ",".join(map(str, self.members)) if self.elastic else ""}  # fmt: skip
        self.ordered.append(time.monotonic())
        reentry.write_order(str(self.beats), former, order)
        for rank in lost if replace else ():
            self.ranks[rank] = self._start(rank, order[paths.REPLICAS])

    def reports(self, rank: int) -> list[dict[str, float]]:
        path = self.folder / f"report-{rank}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def trains(self, world: int | None = None) -> None:
        """Wait until that many ranks step together in the present launch. Default: all."""
        world = world or self.world
        for rank in self._whole(self.members) if world < self.world else range(self.world):
            wait_for(partial(self._trains, rank, world), 120)
        if world == self.world:
            self.members = list(range(self.world))

    def _whole(self, ranks: list[int]) -> list[int]:
        """Those whose replica has lost none."""
        there = [rank // self.shards for rank in ranks]
        return [rank for rank in ranks if there.count(rank // self.shards) == self.shards]

    def has_stepped(self, rank: int, times: int) -> bool:
        """Whether the rank has reported that many steps of the present launch."""
        assert self.ranks[rank].poll() in (None, 0), self.log(rank)
        return sum(one["launch"] == self.launch for one in self.reports(rank)) >= times

    def _trains(self, rank: int, world: int) -> bool:
        assert self.ranks[rank].poll() in (None, 0), self.log(rank)
        found = self.reports(rank)[-1:]
        return bool(found) and (found[0]["launch"], found[0]["world"]) == (self.launch, world)

    def log(self, rank: int) -> str:
        logs = sorted(self.attempt.glob(f"logs/*/rank-{rank}.log"), key=lambda path: int(path.parent.name))
        return "\n".join(one.read_text()[-3000:] for one in [self.folder / f"log-{rank}", *logs[-1:]] if one.exists())

    def end_soon(self, ahead: int = 20) -> int:
        """Let the training end. The number of its last step, which no rank has reached yet."""
        last = ahead + max(int(self.reports(rank)[-1]["step"]) for rank in range(self.world) if self.reports(rank))
        publish_text(self.folder / "last", str(last))
        return last

    def finish(self, ahead: int = 20) -> tuple[list[torch.Tensor], int]:
        """The parameters in the end, which are the same on all ranks, and the number of steps."""
        last = self.end_soon(ahead)
        return self.finals(), last

    def finals(self) -> list[torch.Tensor]:
        for rank in range(self.world):
            assert self.ranks[rank].wait(240) == 0, self.log(rank)
        finals = [torch.load(path) for path in self.folder.glob("final-*")]
        assert all(torch.equal(a, b) for one in finals for a, b in zip(one, finals[0], strict=True))
        return finals[0]

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()


def undisturbed(steps: int) -> list[torch.Tensor]:
    """The parameters after that many steps in one process."""
    sys.argv[1:] = ["", "kept", "1"]
    from integrations import replicas_worker as worker

    model, optimizer = worker.build()
    inputs, targets = worker.data()
    batches = GlobalBatches(worker.SIZE, worker.BATCH, worker.BATCH, seed=3, rank=0, world=1)
    for _ in range(steps):
        optimizer.zero_grad()
        [micro] = batches.step()
        chosen = list(micro.samples)
        torch.nn.functional.mse_loss(model(inputs[chosen]), targets[chosen]).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.fixture(autouse=True)
def arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv[:1])


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[list[Ranks]]:
    made: list[Ranks] = []
    yield made
    for one in made:
        one.end()


def assert_exact(found: list[torch.Tensor], steps: int) -> None:
    """Sums are rounded in another order, and nothing else differs."""
    for a, b in zip(found, undisturbed(steps), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-9), float((a - b).abs().max())


@pytest.mark.parametrize("kept", [pytest.param(True, marks=pytest.mark.long), False])
def test_survivors_train_on_and_the_replacement_joins(tmp_path: Path, begun: list[Ranks], kept: bool) -> None:
    ranks = Ranks(tmp_path, kept=kept, pause=0.05)
    begun.append(ranks)
    ranks.trains()
    pids = [rank.pid for rank in ranks.ranks]
    ranks.lose(0)  # which has the store, and is rank 0 of torch
    ranks.trains(2)
    ranks.trains()
    assert [ranks.reports(rank)[-1]["pid"] for rank in range(WORLD)] == [ranks.ranks[0].pid, *pids[1:]]
    for rank in (1, 2):
        steps = [int(one["step"]) for one in ranks.reports(rank)]
        assert steps == list(range(1, steps[-1] + 1)), "a step of a survivor was lost or done twice"
    assert_exact(*ranks.finish())


@pytest.mark.long
def test_a_second_rank_is_lost_before_the_first_one_has_joined(tmp_path: Path, begun: list[Ranks]) -> None:
    ranks = Ranks(tmp_path, pause=0.05)
    begun.append(ranks)
    ranks.trains()
    ranks.lose(1)
    ranks.trains(2)
    ranks.lose(*[rank for rank in ranks.members if rank][:1])
    ranks.trains()
    assert_exact(*ranks.finish())


@pytest.mark.long
def test_replacement_ends_well_if_the_training_ends_before_it_joins(tmp_path: Path, begun: list[Ranks]) -> None:
    ranks = Ranks(tmp_path, pause=0.05)
    begun.append(ranks)
    ranks.trains()
    ranks.lose(2, replace=False)
    ranks.end_soon()
    for rank in (0, 1):
        assert ranks.ranks[rank].wait(120) == 0, ranks.log(rank)
    exits = ranks.attempt / "exits" / "1"
    exits.mkdir(parents=True)
    (exits / "rank-0.json").write_text('{"code": 0}')
    ranks.ranks[2] = ranks._start(2, "0,1")
    assert ranks.ranks[2].wait(60) == 0
    assert "ended before this rank joined" in ranks.log(2)


@pytest.mark.long
def test_ranks_that_wait_for_the_lost_one_repeat_the_step_in_flight(tmp_path: Path, begun: list[Ranks]) -> None:
    ranks = Ranks(tmp_path, kept=False, pause=0.5, elastic=False)
    begun.append(ranks)
    for lost in (1, 0):
        for rank in range(WORLD):  # a Checkpointer's first save takes long, and a report comes before it
            wait_for(partial(ranks.has_stepped, rank, 2), 120)
        time.sleep(0.1)  # until all are in the pause before the next step: all have noted the last one
        ranks.lose(lost)
    ranks.trains()
    found, last = ranks.finish()
    steps = [int(one["step"]) for one in ranks.reports(2)]
    assert "from the live state" in "".join(ranks.log(rank) for rank in range(WORLD))
    assert steps == list(range(1, last + 1)), "a survivor repeated a step that all had finished"
    (tmp_path / "again").mkdir()
    publish_text(tmp_path / "again" / "last", str(last))
    again = Ranks(tmp_path / "again", kept=False, elastic=False)
    begun.append(again)
    again.trains()
    for a, b in zip(
        found, again.finals(), strict=True
    ):  # DDP's first buckets are others, so sums are rounded otherwise
        assert torch.allclose(a, b, rtol=0, atol=1e-12), float((a - b).abs().max())


@pytest.mark.long
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_the_other_replica_trains_on_with_hsdp(tmp_path: Path, begun: list[Ranks], lost: int) -> None:
    ranks = Ranks(tmp_path, every=10, pause=0.05, world=4, shards=2)
    begun.append(ranks)
    ranks.trains()
    pids = [rank.pid for rank in ranks.ranks]
    ranks.lose(lost)
    ranks.trains(2)
    ranks.trains()
    pids[lost] = ranks.ranks[lost].pid
    assert [int(ranks.reports(rank)[-1]["pid"]) for rank in range(4)] == pids
    for rank in (2, 3) if lost < 2 else (0, 1):
        steps = [int(one["step"]) for one in ranks.reports(rank)]
        assert steps == list(range(1, steps[-1] + 1)), "a step of the other replica was lost or done twice"
    assert_exact(*ranks.finish())


@pytest.mark.long
def test_if_no_hsdp_replica_is_whole_all_resume_from_a_snapshot(tmp_path: Path, begun: list[Ranks]) -> None:
    ranks = Ranks(tmp_path, every=1, pause=0.05, world=4, shards=2)
    begun.append(ranks)
    ranks.trains()
    ranks.lose(0, 3)
    ranks.trains()
    assert_exact(*ranks.finish())


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_many_ranks_are_lost_at_any_moment(tmp_path: Path, begun: list[Ranks]) -> None:
    ranks = Ranks(tmp_path)
    begun.append(ranks)
    chance = random.Random(11)
    ranks.trains()
    for _ in range(KILLS):
        time.sleep(chance.random() * 0.3)
        ranks.lose(chance.choice(ranks.members))
        ranks.trains(len(ranks.members)) if chance.random() < 0.3 else None
        ranks.trains()
    assert_exact(*ranks.finish(100))
    stalls = sorted(_stalls(ranks))
    print(f"{len(stalls)} stalls of survivors: median {stalls[len(stalls) // 2]:.3f} s, most {stalls[-1]:.3f} s")


def _stalls(ranks: Ranks) -> Iterator[float]:
    for number, ordered in enumerate(ranks.ordered):
        for rank in range(WORLD):
            found = ranks.reports(rank)
            stayed = {one["pid"] for one in found if one["launch"] == number}
            later = [one["at"] for one in found if one["launch"] == number + 1 and one["pid"] in stayed]
            if later:
                yield min(later) - ordered


def test_members_are_named_by_the_order_and_by_those_who_joined() -> None:
    members = Members.at_start("0,2", 4)
    assert (members.ranks, members.missing(4)) == ((0, 2), (1, 3))
    joined = members.with_joined((1,))
    assert (joined.ranks, joined.generation, joined.missing(4)) == ((0, 2, 1), 1, (3,))
    assert Members.decode(joined.encode()) == joined
    assert Members.at_start("", 3).ranks == (0, 1, 2)


def test_only_whole_replicas_are_members() -> None:
    members = Members.at_start("0,2,3,4,5", 6, size=2)
    assert (members.ranks, members.missing(6)) == ((2, 3, 4, 5), (0, 1))
    assert members.with_joined((0,)) is members
    joined = members.with_joined((0, 1))
    assert (joined.ranks, joined.generation) == ((2, 3, 4, 5, 0, 1), 1)
    assert Members.decode(joined.encode()) == joined
    assert Members.at_start("0,3", 4, size=2).ranks == (0, 1, 2, 3)


@pytest.mark.long
def test_saves_after_each_step_are_in_memory_after_a_rank_has_joined(tmp_path: Path, begun: list[Ranks]) -> None:
    ranks = Ranks(tmp_path, every=1, pause=0.05)
    begun.append(ranks)
    ranks.trains()
    ranks.lose(1)
    ranks.trains()
    wait_for(lambda: ranks.has_stepped(0, 40), 120)
    assert "while training waits" not in "".join(ranks.log(rank) for rank in range(WORLD))
    ranks.finish()


@pytest.mark.parametrize(("replicas", "size"), [("", 2), ("elastic", 0), ("", -1)])
def test_ranks_per_replica_without_replicas_are_refused(replicas: str, size: int) -> None:
    with pytest.raises(UsageError, match=f"ranks_per_replica={size} "):
        recoverable(replicas=replicas, ranks_per_replica=size)
