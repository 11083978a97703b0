"""Heartbeat tables over the agents' connections, with real servers: what arrives, and what happens when one fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from processes import wait_for

from transom_cli.heartbeat.table import NodeTable, decode, encode
from transom_cli.rpc import poll
from transom_cli.rpc.server import Server
from transom_cli.rpc.verbs import Call, Reply, Verb, dispatch
from transom_cli.supervise.agent import heartbeat_feed
from transom_cli.supervise.agent.heartbeat_feed import SILENT, Beats, HeartbeatFeed
from transom_cli.supervise.launcher import heartbeat_stream
from transom_cli.supervise.launcher.heartbeat_stream import HeartbeatStream

KEY = bytes(range(32))
ATTEMPT = "7.0"


class Service:
    def __init__(self, feed: HeartbeatFeed) -> None:
        self.feed = feed

    def beats(self, request: Beats) -> Reply:
        return Reply(self.feed.fetch(request))


@dataclass
class Node:
    """An agent's server."""

    name: str
    feed: HeartbeatFeed = field(default_factory=HeartbeatFeed)
    port: int = 0
    seq: int = 0
    server: Server | None = None

    def start(self, identity: str = "") -> None:
        service, verbs = Service(self.feed), {"beats": Verb(Service.beats, Beats)}

        def handle(call: Call) -> Reply:
            return dispatch(verbs, service, call)

        self.server = Server(KEY, identity or f"{ATTEMPT}/{self.name}", frozenset(["127.0.0.1"]), handle)
        self.port = self.server.start("127.0.0.1", self.port)

    def beat(self, node: str = "") -> None:
        self.seq += 1
        self.feed.offer(self.seq, encode(NodeTable(node or self.name, ATTEMPT, self.seq, ())))

    def die(self) -> None:
        self.feed.end()
        if self.server is not None:
            self.server.stop()
        self.feed.over = False


class Nodes(dict[str, Node]):
    def where(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", self[name].port) if self[name].port else None

    def stream(self) -> HeartbeatStream:
        return HeartbeatStream(self, ATTEMPT, KEY, self.where)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    for name in ("WAIT", "SILENT"):
        monkeypatch.setattr(heartbeat_feed, name, 0.3)
    made = Nodes((name, Node(name)) for name in ("n1", "n2", "n3"))
    yield made
    for node in made.values():
        node.die()


def taken(stream: HeartbeatStream, count: int) -> dict[str, int]:
    """The numbers of the newest tables, once there are `count` of them."""
    found: dict[str, int] = {}

    def enough() -> bool:
        stream.consumed()
        found.update((node, decode(data).seq) for node, data in stream.take()[0].items())
        return len(found) >= count

    wait_for(enough)
    return found


def test_tables_of_all_nodes_arrive_when_they_are_made(nodes: Nodes) -> None:
    before = threading.active_count()
    for node in nodes.values():
        node.start()
        node.beat()
    stream = nodes.stream()
    assert taken(stream, 3) == {"n1": 1, "n2": 1, "n3": 1}
    assert stream.take()[1] == {"n1", "n2", "n3"}
    nodes["n2"].beat()
    assert taken(stream, 1) == {"n2": 2}, "nothing twice"
    assert [node.feed.fetched for node in nodes.values()] == [True] * 3
    stream.stop(0.0)
    assert threading.active_count() < before + 30
    wait_for(lambda: not any(node.feed.fetched for node in nodes.values()))


def test_no_more_nodes_are_called_than_there_are_descriptors_for(nodes: Nodes) -> None:
    for node in nodes.values():
        node.start()
        node.beat()
    stream = HeartbeatStream(nodes, ATTEMPT, KEY, nodes.where, most=2)
    assert taken(stream, 2) == {"n1": 1, "n2": 1}
    assert stream.nodes == ("n1", "n2", "n3"), "the file of the third is read"
    stream.stop(0.0)


def test_one_thread_fetches_from_all_nodes(nodes: Nodes) -> None:
    for node in nodes.values():
        node.start()
    before = {thread.name for thread in threading.enumerate()}
    stream = nodes.stream()
    assert {t.name for t in threading.enumerate()} - before - {"rpc-connection"} == {"rpc-poll"}
    stream.stop(0.0)


def test_an_agent_that_comes_back_on_another_port_is_found(nodes: Nodes) -> None:
    node = nodes["n1"]
    stream = nodes.stream()
    assert stream.take() == ({}, frozenset())
    node.start()
    node.beat()
    assert taken(stream, 1) == {"n1": 1}
    node.die()
    node.port = 0
    node.seq += 10
    node.start()
    node.beat()
    assert taken(stream, 1) == {"n1": 12}
    stream.stop(0.0)


def test_a_call_that_fails_is_not_repeated_without_a_pause(nodes: Nodes) -> None:
    calls: list[Call] = []

    def handle(call: Call) -> Reply:
        calls.append(call)
        raise ValueError("unknown verb")

    server = Server(KEY, f"{ATTEMPT}/n1", frozenset(["127.0.0.1"]), handle)
    nodes["n1"].port, nodes["n1"].server = server.start("127.0.0.1"), server
    began = time.monotonic()
    stream = nodes.stream()
    wait_for(lambda: len(calls) >= 2)
    time.sleep(0.3)
    assert len(calls) <= 1 + (time.monotonic() - began) / poll.PAUSES[0]
    stream.stop(0.0)


def test_a_server_of_another_attempt_is_refused(nodes: Nodes) -> None:
    nodes["n1"].start("6.0/n1")
    nodes["n2"].start()
    for node in nodes.values():
        node.beat()
    stream = nodes.stream()
    assert taken(stream, 1) == {"n2": 1}
    assert nodes["n1"].server is not None
    wait_for(lambda: nodes["n1"].server.counts["refused_handshake"] > 0)  # type: ignore[union-attr]
    stream.stop(0.0)


def test_nothing_is_fetched_while_the_launcher_does_not_consume(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loop hangs on a file system, say: then the agents must write files, for the operator."""
    monkeypatch.setattr(heartbeat_stream, "UNREAD", 0.0)
    nodes["n1"].start()
    nodes["n1"].beat()
    stream = nodes.stream()
    time.sleep(0.5)
    assert stream.take() == ({}, frozenset()) and not nodes["n1"].feed.fetched
    monkeypatch.setattr(heartbeat_stream, "UNREAD", 60.0)
    assert taken(stream, 1) == {"n1": 1}
    stream.stop(0.0)


def test_step_breakdowns_come_along(nodes: Nodes) -> None:
    node = nodes["n1"]
    node.feed.steps = "{}"
    node.start()
    node.beat()
    stream = nodes.stream()
    taken(stream, 1)
    assert stream.steps("n1") == "{}" and stream.steps("n2") == ""
    stream.stop(0.0)


def test_agents_hear_that_the_attempt_is_over(nodes: Nodes) -> None:
    node = nodes["n1"]
    node.start()
    node.beat()
    stream = nodes.stream()
    taken(stream, 1)
    stream.announce_end()
    node.beat()
    wait_for(lambda: node.feed.over)
    stream.stop(0.0)


def test_feed_counts_as_fetched_between_two_calls_and_no_longer() -> None:
    now = [100.0]
    feed = HeartbeatFeed(lambda: now[0])
    assert not feed.fetched
    feed.offer(5, b"five")
    assert feed.fetch(Beats(4)) == {"seq": 5, "table": "Zml2ZQ=="}
    now[0] += SILENT - 0.1
    assert feed.fetched
    now[0] += 0.2
    assert not feed.fetched
