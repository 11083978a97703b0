"""Final checkpoints with several real ranks: one checkpoint at one step, or none; never one of two steps."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ckpt_made import names_in
from processes import wait_for
from rank_server import Forked

from transom_cli.ckpt.inventory import candidates, verify
from transom_cli.supervise.agent import final_checkpoint as agent


class Node:
    """Ranks of one node, with its own beats folder."""

    def __init__(self, beats: Path) -> None:
        beats.mkdir(mode=0o700)
        self.beats = str(beats)

    def ask(self, step: int = -1) -> dict[str, object]:
        return agent.ask(self.beats, 0, step)


class World:
    def __init__(self, folder: Path, ranks_by_node: list[int]) -> None:
        self.directory = folder / "checkpoints"
        self.nodes = [Node(folder / f"node{n}") for n in range(len(ranks_by_node))]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        homes = [node for node, count in zip(self.nodes, ranks_by_node, strict=True) for _ in range(count)]
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TRANSOM_", "SLURM_"))}
        clean |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
        self.ranks = [
            Forked(
                [sys.executable, str(Path(__file__).parents[1] / "ckpt_flush_worker.py"), str(self.directory)],
                env={**clean, "RANK": str(rank), "WORLD_SIZE": str(len(homes)), "TRANSOM_BEAT_DIR": home.beats},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank, home in enumerate(homes)
        ]  # fmt: skip
        self.up = [self.heard(rank) for rank in range(len(homes))]

    def tell(self, rank: int, line: str) -> None:
        stdin = self.ranks[rank].stdin
        assert stdin is not None
        stdin.write(line + "\n")
        stdin.flush()

    def heard(self, rank: int) -> str:
        stdout = self.ranks[rank].stdout
        assert stdout is not None
        return stdout.readline().rstrip("\n")

    def go(self, *steps: int) -> list[str]:
        """So many steps on each rank, all at once; what each answers: where it is, and what it began to save."""
        for rank, count in enumerate(steps):
            self.tell(rank, f"go {count}")
        return [self.heard(rank) for rank in range(len(steps))]

    def saved(self) -> list[int]:
        return [c.step for c in candidates(self.directory) if verify(c).good]

    def close(self) -> list[str]:
        for rank in range(len(self.ranks)):
            self.tell(rank, "close")
        said = [self.heard(rank) for rank in range(len(self.ranks))]
        assert [rank.wait() for rank in self.ranks] == [0] * len(self.ranks)
        return said


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(*ranks_by_node: int) -> World:
        made.append(World(tmp_path, list(ranks_by_node)))
        return made[-1]

    yield make
    for rank in [rank for one in made for rank in one.ranks]:
        rank.kill()
        rank.communicate()


@pytest.mark.long
def test_request_makes_one_checkpoint_at_one_step(world: Callable[..., World]) -> None:
    made = world(2, 1)
    assert made.up == ["up 0"] * 3
    assert made.go(3, 5, 4) == ["3", "5", "4"]
    assert [node.ask() for node in made.nodes] == [
        {"listening": [0, 1], "reached": 5, "keeps": [0, 1], "ordered": -1},
        {"listening": [2], "reached": 4, "keeps": [2], "ordered": -1},
    ]
    for rank in made.ranks:
        os.kill(rank.pid, signal.SIGTERM)
    assert [node.ask(8)["reached"] for node in made.nodes] == [5, 4]
    assert made.go(4, 2, 3) == ["7"] * 3
    assert made.go(1, 4, 9) == ["8 8", "11 8", "16 8"]
    wait_for(lambda: made.saved() == [8], 60)
    assert made.go(2, 0, 0) == ["10", "11", "16"], "once"
    assert [node.ask(20)["reached"] for node in made.nodes] == [11, 16]
    assert made.go(20, 20, 20) == ["30 20", "31 20", "36 20"]
    wait_for(lambda: made.saved() == [20, 8], 60)
    for node in made.nodes:
        agent.end_now(node.beats, 0)
    assert [rank.wait() for rank in made.ranks] == [-signal.SIGTERM] * 3


def test_request_that_one_rank_has_passed_is_replaced_by_the_next(world: Callable[..., World]) -> None:
    made = world(1, 1)
    assert made.go(10, 4) == ["10", "4"]
    assert [node.ask(6)["reached"] for node in made.nodes] == [10, 4], "told: one may not have seen it"
    assert made.go(2, 4) == ["12", "8 6"]
    assert [node.ask(20)["reached"] for node in made.nodes] == [12, 8]
    assert made.go(8, 12) == ["20 20", "20 20"]
    wait_for(lambda: made.saved() == [20], 60)
    assert made.close() == ["closed ", "closed "]
    assert made.saved() == [20]


@pytest.mark.long
def test_request_replaced_before_its_step(world: Callable[..., World]) -> None:
    made = world(1, 1)
    made.go(4, 4)
    assert [node.ask(6)["reached"] for node in made.nodes] == [4, 4]
    made.go(4, 0)
    assert [node.ask(9)["reached"] for node in made.nodes] == [8, 4], "one has saved step 6, the other never will"
    assert made.go(1, 6) == ["9 9", "10 9"]
    wait_for(lambda: made.saved() == [9], 60)
    assert made.close() == ["closed ", "closed "]


@pytest.mark.long
@pytest.mark.parametrize("told", [0, pytest.param(1, marks=pytest.mark.long)])
def test_node_without_the_request_loses_only_that_checkpoint(world: Callable[..., World], told: int) -> None:
    """Whoever is told waits with it in the background; at the next usual one all come together."""
    made = world(1, 1)
    made.nodes[told].ask(5)
    assert made.go(99, 99) == ["99 5" if rank == told else "99" for rank in (0, 1)]
    assert made.go(1, 1) == ["100 100", "100 100"]
    wait_for(lambda: made.saved() == [100], 60)
    assert made.close() == ["closed ", "closed "]
    assert names_in(made.directory) == ["step-100"], "nothing is left of the other"
    said = made.ranks[0].stderr.read()  # type: ignore[union-attr]
    words = "step-5 was not saved: not all ranks save this step: others are at step-100"
    assert (words in said) == (told == 0), "rank 0 speaks, if it was its own"


@pytest.mark.long
def test_a_step_that_is_saved_anyway_is_saved_once(world: Callable[..., World]) -> None:
    made = world(1, 1)
    for node in made.nodes:
        node.ask(100)
    assert made.go(110, 110) == ["110 100"] * 2
    for node in made.nodes:
        node.ask(200)
    made.close()
    assert made.saved() == [100]
    assert [node.ask()["listening"] for node in made.nodes] == [[], []]
