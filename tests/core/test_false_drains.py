"""500 generated situations in which no node is at fault: none is drained, none excluded without evidence.

Each is a profile of the site, one to three events, and the moments at which they come. Promises are counted from the
actions that both deciders order. The same number is always the same situation.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from core_cluster import Cluster

from transom_cli.core import events as ev
from transom_cli.core.operator.state import Phase

SITUATIONS, PART = 500, 50
Undo = Callable[[], object]


def _fails(c: Cluster, rng: random.Random, node: str) -> None:
    c.blamed[node] += 1
    c.fails(node, *rng.choice(((1, None), (None, 9), (None, 15), (137, None), (None, 6))))


def _hangs(c: Cluster, rng: random.Random, node: str) -> Undo:
    c.blamed[node] += 1
    c.hung.add(node)
    return lambda: c.hung.discard(node)


def _late(c: Cluster, nodes: set[str]) -> Undo:
    c.agents |= nodes
    return lambda: c.agents.difference_update(nodes)


def _set(c: Cluster, name: str, value: object, after: object) -> Undo:
    setattr(c, name, value)
    return lambda: setattr(c, name, after)


def _slurmds(c: Cluster, nodes: set[str]) -> Undo:
    c.slurmds |= nodes
    c.suspected |= nodes  # while no slurmd runs, the node may be gone
    return lambda: c.slurmds.difference_update(nodes)


def _split(c: Cluster) -> Undo:
    c.split = c.now
    return lambda: setattr(c, "split", None)


def _suspends(c: Cluster) -> Undo:
    c.suspended, c.stopped_at = True, f"{c.now:.0f}"

    def resumes() -> None:
        c.suspended, c.stopped_at, c.stepped = False, f"{c.now:.0f}", c.now

    return resumes


def _drains(c: Cluster, node: str) -> Undo:
    c.draining.add(node)
    return lambda: c.draining.discard(node)


def _suspects(c: Cluster, nodes: tuple[str, ...], check: str) -> Undo:
    for node in nodes:
        c.suspected.add(node)
        c.suspicions[node] = ev.NodeFault(node, check, "SUSPECT", "as the kernel says")
    return c.suspicions.clear


def _operator_dies(c: Cluster) -> Undo:
    c.operator = False
    return c.start_operator


def _held(c: Cluster) -> Undo:
    c.requeue("JobHeldUser")
    return lambda: setattr(c, "held", "")


def _cancelled(c: Cluster) -> None:
    if c.status in ("RUNNING", "PENDING"):
        c.status, c.launcher = "CANCELLED", None


EVENTS: dict[str, Callable[[Cluster, random.Random, str], object]] = {
    "a rank fails": _fails,
    "a rank hangs": _hangs,
    "an agent dies": lambda c, rng, node: _late(c, {node}),
    "all agents are late": lambda c, rng, node: _late(c, set(c.nodes)),
    "the launcher dies": lambda c, rng, node: c.kill_launcher(),
    "the launcher is stopped": lambda c, rng, node: _set(c, "launcher_lives", False, True),
    "the operator dies": lambda c, rng, node: _operator_dies(c),
    "slurmctld is away": lambda c, rng, node: _set(c, "slurm", False, True),
    "the file system stalls": lambda c, rng, node: _set(c, "files", False, True),
    "the job is suspended": lambda c, rng, node: _suspends(c),
    "the job is requeued": lambda c, rng, node: c.requeue(),
    "the job is requeued and held": lambda c, rng, node: _held(c),
    "the job is preempted": lambda c, rng, node: c.requeue() or _set(c, "booked", True, False),
    "maintenance": lambda c, rng, node: _set(c, "booked", True, False),
    "a node is drained for repair": lambda c, rng, node: _drains(c, node),
    "the network splits": lambda c, rng, node: _split(c),
    "a firewall goes up": lambda c, rng, node: _set(c, "firewall", True, False),
    "a slurmd is restarted": lambda c, rng, node: _slurmds(c, {node}),
    "all slurmds are restarted": lambda c, rng, node: _slurmds(c, set(c.nodes)),
    "a suspicious kernel line": lambda c, rng, node: _suspects(c, (node,), rng.choice(("kernel", "gpu_xid"))),
    "a suspicious line on most nodes": lambda c, rng, node: _suspects(c, c.nodes, "kernel"),
    "the job is cancelled": lambda c, rng, node: _cancelled(c),
}
MOMENTS: tuple[Callable[[Cluster], bool], ...] = (
    lambda c: c.status == "PENDING",
    lambda c: c.status == "RUNNING",
    lambda c: c.step >= 0,
    lambda c: c.step >= 8,
    lambda c: c.state.incident is not None,
    lambda c: c.step >= c.steps - 3,
)


def play(number: int) -> tuple[Cluster, list[str]]:
    rng = random.Random(f"blameless/{number}")
    cluster = Cluster(
        width=rng.choice((2, 3, 3)),
        steps=rng.choice((60, 60, 60, 400)),
        spares=rng.choice((0, 0, 1)),
        rights=rng.random() < 0.8,
        resubmit=rng.random() < 0.2,
        hands=rng.choice((0.0, 0.0, 2.0)),
        revive=rng.random() < 0.8,
        firewall=rng.random() < 0.15,
    )
    story = []
    undos: list[tuple[float, Undo]] = []
    first = list(EVENTS)[number % len(EVENTS)]
    for name in (first, *rng.choices(list(EVENTS), k=rng.choice((0, 1, 2)))):
        moment = rng.choice(MOMENTS)
        wait(cluster, undos, moment, 25.0)
        wait(cluster, undos, lambda c: bool(c.nodes), 25.0)
        wait(cluster, undos, lambda c: False, rng.choice((0.0, 1.0, 4.0)))
        node = rng.choice(cluster.training or cluster.nodes)
        undo = EVENTS[name](cluster, rng, node)
        lasts = rng.choice((3.0, 14.0, 45.0, 500.0))
        story.append(f"{cluster.now:.0f} {name} ({node}, {lasts:.0f} s)")
        if callable(undo):
            undos.append((cluster.now + lasts, undo))
    wait(cluster, undos, lambda c: c.state.phase.over, 1500.0)
    return cluster, story


def wait(cluster: Cluster, undos: list[tuple[float, Undo]], until: Callable[[Cluster], bool], limit: float) -> None:
    end = cluster.now + limit
    while not until(cluster) and cluster.now < end and not cluster.state.phase.over:
        cluster.second()
        for at, undo in [x for x in undos if x[0] <= cluster.now]:
            undos.remove((at, undo))
            undo()


def wrongs(cluster: Cluster) -> list[str]:
    expiry = cluster.state.policy.expiry
    found = [f"drains {a.node}: {a.reason}" for a in cluster.isolated if a.drain]
    for node, since, until in cluster.kept_away:
        if until is None:
            found.append(f"excludes {node} for good")
        elif until - since > expiry or (cluster.blamed[node] < 2 and node not in cluster.suspected):
            found.append(f"excludes {node} for {until - since:.0f} s")
    if not cluster.state.phase.over:
        found.append(f"never ends: {cluster.state.phase.value}")
    return found


@pytest.mark.parametrize("part", range(SITUATIONS // PART))
def test_no_node_is_drained_when_none_is_at_fault(part: int) -> None:
    bad = {}
    for number in range(part * PART, (part + 1) * PART):
        cluster, story = play(number)
        if found := wrongs(cluster):
            bad[number] = (found, story)
    assert not bad, bad


def test_situations_cover_every_event_and_end_in_every_way() -> None:
    ends: Counter[Phase] = Counter()
    for number in range(len(EVENTS) * 2):
        ends[play(number)[0].state.phase] += 1
    assert {Phase.DONE, Phase.STOPPED} <= set(ends), ends
