"""Random lives of a launch whose survivors may stay, in a cluster that keeps account of the living ranks.

Whatever dies, hangs, is cut off or answers late: a rank that stays lives, a rank that is started does not live
elsewhere, and no rank is started on a node where processes of an older launch may survive.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from core_launcher import NODES, SPARE, fresh

from transom_cli.core import launcher
from transom_cli.core.events import NodeFault, RankExit, Stall
from transom_cli.core.launcher import Action, Phase, decide


class Life:
    """The launcher's core, and the ranks that it commands."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes = (*NODES, SPARE) if self._may(0.7) else NODES
        state = fresh(self.nodes, recoverable=True, relaunches=self.random.choice((1, 3)))
        self.state = replace(state, tasks_on_node=self.random.choice((1, 1, 2)))
        self.now, self.step = 0.0, 0
        self.alive: dict[int, str] = {}  # the node of each living rank
        self.exits: dict[int, RankExit] = {}  # of the present launch
        self.dead: set[str] = set()  # nodes that never answer
        self.left: set[str] = set()  # nodes on which ranks were left behind
        self.asked: list[Action] = []  # and not answered yet
        self.seen: Counter[str] = Counter()

    def run(self) -> None:
        self.hear(launcher.AttemptStarted(0.0))
        if SPARE in self.nodes:
            self.hear(launcher.SpareChecked(0.1, SPARE, good=True))
        for _ in range(60):
            self.now += self.random.choice((0.1, 1.0, 5.0))
            if self._may(0.05):
                self.hear(launcher.Tick(self.now + self.random.choice((0.0, 40.0, 200.0))))
            if self.asked and self._may(0.7):
                self.answer(self.asked.pop(self.random.randrange(len(self.asked)) if self._may(0.2) else 0))
            else:
                self.happen()

    def hear(self, event: launcher.Event) -> None:
        before = self.state.nodes.training
        self.state, actions = decide(self.state, event)
        for action in actions:
            if isinstance(action, launcher.StartLaunch):
                self.start(action, before)
            if isinstance(action, launcher.ReplaceRanks):
                self.replace(action)
            else:
                self.asked.append(action)

    def start(self, action: launcher.StartLaunch, before: tuple[str, ...]) -> None:
        each = self.state.tasks_on_node
        places = {rank: action.nodes[rank // each] for rank in range(len(action.nodes) * each)}
        stay = [rank for rank in places if rank not in action.lost] if action.lost else []
        assert all(self.alive.get(rank) == places[rank] for rank in stay), "a rank that stays is dead, or elsewhere"
        others = {rank: node for rank, node in self.alive.items() if rank not in stay}
        assert set(others.values()) <= self.left, "a rank is started beside a living one"
        assert not self.left & set(action.nodes), "ranks are on a node where older ones may live"
        self.seen["kept" if stay else "all new"] += 1
        self.seen["kept in a swap"] += bool(stay) and action.nodes != before
        self.alive, self.exits = places, {}

    def replace(self, action: launcher.ReplaceRanks) -> None:
        """The launch continues, and the ranks that are alive wait for the new ones."""
        assert action.launch == self.state.launch.number
        assert not set(action.ranks) & set(self.alive), "a rank is started beside itself"
        training = self.state.nodes.training
        places = {rank: training[rank // self.state.tasks_on_node] for rank in action.ranks}
        assert not self.left & set(places.values()), "ranks are on a node where older ones may live"
        self.seen["replaced alone"] += 1
        self.alive |= places
        self.asked.append(launcher.StartLaunch(action.launch, training))
        for rank in action.ranks:
            self.exits.pop(rank, None)

    def answer(self, action: Action) -> None:
        now, pick = self.now, self.random.choice
        if isinstance(action, launcher.StartLaunch):
            stuck = pick(((), (), (0,), (1,)))
            entered = tuple(rank for rank in range(self.state.tasks) if rank not in stuck)
            self.hear(launcher.RanksEntered(now, action.launch, entered))
            if self.state.launch.awaited:
                self.hear(launcher.Tick(now + self.state.policy.reenter))
                return
            self.step += pick((0, 1, 3))
            self.hear(launcher.Stepped(now, action.launch, self.step))
        elif isinstance(action, launcher.JudgeHang):
            ranks = pick(((), (1,), (1,), (0, 1)))
            self.hear(launcher.HangJudged(now, action.launch, ranks, ("x",), pick(((), ("n2",)))))
        elif isinstance(action, launcher.KillRanks):
            self.hear(launcher.RanksKilled(now, action.launch, *self.kill(action.ranks)))
        elif isinstance(action, launcher.EndLaunch):
            training = self.state.nodes.training
            unheard = {node for node in training if node in self.dead or self._may(0.05)}
            self.left -= {node for node in training if node not in unheard}
            self.left |= unheard & set(self.alive.values())
            self.alive = {rank: node for rank, node in self.alive.items() if node in unheard}
            self.hear(launcher.LaunchEnded(now, action.launch, unheard=tuple(sorted(unheard))))
        elif isinstance(action, launcher.ReadLogs):
            hearing = tuple(rank for rank in range(self.state.tasks) if self._may(0.97))
            self.hear(launcher.LogsRead(now, action.launch, "unknown", "", hearing=hearing))
        elif isinstance(action, launcher.PersistMemory):
            self.hear(launcher.MemoryPersisted(now, action.launch, -1))

    def kill(self, ranks: tuple[int, ...]) -> tuple[tuple[RankExit, ...], tuple[str, ...]]:
        """Most of these ranks die, and now and then another one. Their nodes may not answer."""
        unheard = set()
        for rank in [rank for rank in ranks if rank in self.alive]:
            if self.alive[rank] in self.dead or self._may(0.1):
                unheard.add(self.alive[rank])
            elif self._may(0.9):
                self.die(rank, None)
        if self.alive and self._may(0.1):
            self.die(self.random.choice(sorted(self.alive)), self.random.choice((0, 1)))
        self.left |= unheard
        return tuple(self.exits[rank] for rank in sorted(self.exits)), tuple(sorted(unheard))

    def die(self, rank: int, code: int | None) -> None:
        self.exits[rank] = RankExit(rank, self.alive.pop(rank), code, 9 if code is None else None)

    def happen(self) -> None:
        now, launch, pick = self.now, self.state.launch.number, self.random.choice
        what = pick(("death", "death", "stall", "silence", "lost", "fault", "step", "step", "durable", "stop"))
        if what == "death" and self.alive and self.state.phase is Phase.TRAINING:
            self.die(pick(sorted(self.alive)), None)
            exits = tuple(self.exits[rank] for rank in sorted(self.exits))
            self.hear(launcher.RanksExited(now, launch, exits))
            self.hear(launcher.Tick(now + 0.5))
        elif what == "stall":
            self.hear(launcher.Stalled(now, launch, Stall(self.step, 9.0, 8.0, pick(((), (1,))))))
        elif what == "silence":
            self.hear(launcher.Stalled(now, launch, Stall(self.step, 9.0, 8.0, (1,), ("n2",), overdue=("n2",))))
        elif what == "lost":
            node = pick(self.nodes)
            self.dead.add(node)
            self.hear(launcher.NodeUnreachable(now, node, 100.0))
        elif what == "fault":
            self.hear(launcher.FaultsFound(now, (NodeFault(pick(self.nodes), "gpu", "FAIL", "x"),)))
        elif what == "step":
            self.step += 1
            self.hear(launcher.Stepped(now, launch, self.step))
        elif what == "durable":
            self.hear(launcher.CheckpointDurable(now, self.step))
        elif what == "stop" and self._may(0.2):
            self.hear(launcher.StopRequested(now, "TERM"))

    def _may(self, chance: float) -> bool:
        return self.random.random() < chance


@pytest.mark.parametrize("part", range(4))
def test_no_rank_lives_twice(part: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(part * 250, part * 250 + 250):
        life = Life(seed)
        life.run()
        seen += life.seen
    assert min(seen[what] for what in ("kept", "kept in a swap", "all new", "replaced alone")) > 5, seen
