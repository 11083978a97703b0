"""Server and client over real sockets; strangers send both of them arbitrary bytes."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from transom_cli.rpc import server as server_module
from transom_cli.rpc import wire
from transom_cli.rpc.client import Client
from transom_cli.rpc.errors import Failed, Refused, RpcError, Unreachable
from transom_cli.rpc.server import Server
from transom_cli.rpc.verbs import Call, Reply, Result

SECRET, WRONG = os.urandom(32), os.urandom(32)
WHO = "71.0/n1"
HERE = "127.0.0.1"
CONNECTIONS, HANDLERS = 8, 2
SOON = 20.0  # seconds: reached only when something is broken


class Handled:
    """What the agent can do in these tests. ``hold`` waits until it is let go."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.held, self.go = threading.Semaphore(0), threading.Event()

    def __call__(self, call: Call) -> Reply:
        name, fields = call.verb, call.request
        self.asked.append(name)
        if name == "hold":
            self.held.release()
            self.go.wait(3 * SOON)  # longer than any test waits for something else
        if name == "boom":
            raise KeyError("no such rank")
        if name == "exit":
            raise SystemExit(3)
        if name == "unfit":
            return Reply({"x": object()})
        if name == "big":
            return Reply({"x": "y" * int(str(fields["size"]))})
        return Reply({"name": name, **fields})


class Agent:
    def __init__(self) -> None:
        self.handled = Handled()
        allowed = frozenset({HERE, "::1"})
        self.server = Server(SECRET, WHO, allowed, self.handled, connections=CONNECTIONS, handlers=HANDLERS, stall=SOON)
        self.port = self.server.start()

    def client(self, secret: bytes = SECRET, who: str = WHO) -> Client:
        return Client.connect(HERE, self.port, secret, who, SOON, kind="agent")

    def counts(self) -> dict[str, int]:
        return {kind: count for kind, count in self.server.counts.items() if count}

    def still_answers(self) -> bool:
        with self.client() as client:
            return client.call("probe", SOON, x=1) == {"name": "probe", "x": 1}


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent()
    yield made
    made.handled.go.set()
    made.server.stop()


class Raw:
    """A peer that can say anything. `prove` makes it one that knows the secret."""

    def __init__(self, port: int, source: str = HERE) -> None:
        self.sock = socket.create_connection((HERE, port), SOON, source_address=(source, 0))
        self.said = b""

    def say(self, data: bytes) -> Raw:
        self.said += data
        self.sock.sendall(data)
        return self

    def hear(self, count: int) -> bytes:
        heard = b""
        while len(heard) < count and (data := self.sock.recv(count - len(heard))):
            heard += data
        return heard

    def rest(self) -> bytes:
        """All up to the end of the connection."""
        heard = b""
        with contextlib.suppress(ConnectionError):
            while data := self.sock.recv(65536):
                heard += data
        return heard

    def prove(self, secret: bytes = SECRET, who: str = WHO) -> Raw:
        nonce = os.urandom(32)
        self.say(wire.hello(nonce))
        self.channel = wire.Endpoint(wire.CLIENT, secret, who).pair(nonce, wire.read_hello(self.hear(wire.HELLO_BYTES)))
        return self.say(self.channel.proof)

    def met(self) -> Raw:
        self.prove().channel.check(self.hear(wire.PROOF_BYTES))
        return self

    def frame(self, name: str, **arguments: object) -> bytes:
        return self.channel.sender.frame(Call(name, arguments).encode())

    def reply(self) -> dict[str, object]:
        """The fields of the next reply."""
        receiver = self.channel.receiver
        while (found := receiver.next()) is None:
            data = self.sock.recv(receiver.wanted)
            assert data, "closed"
            receiver.feed(data)
        result = Result.decode(found)
        assert result.ok
        return result.answer

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


@contextlib.contextmanager
def impostor(act: Callable[[socket.socket], None]) -> Iterator[int]:
    """Something else than an agent, on a port: one connection, done with as it likes."""
    with socket.create_server((HERE, 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock, contextlib.suppress(OSError):
                act(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


# Good talk


def test_questions_are_answered_in_turn(agent: Agent) -> None:
    with agent.client() as client:
        assert client.call("probe", SOON) == {"name": "probe"}
        assert client.call("evidence", SOON, launch=2, why="é") == {"name": "evidence", "launch": 2, "why": "é"}
    assert agent.counts() == {"accepted": 1, "answered": 2}


def test_an_answer_may_be_long(agent: Agent) -> None:
    with agent.client() as client:
        assert client.call("big", SOON, size=1_000_000) == {"x": "y" * 1_000_000}


def test_questions_sent_at_once_are_answered_one_after_the_other(agent: Agent) -> None:
    with Raw(agent.port).met() as raw:
        raw.say(raw.frame("hold") + raw.frame("probe", n=1) + raw.frame("probe", n=2))
        agent.handled.held.acquire(timeout=SOON)
        agent.handled.go.set()
        assert [raw.reply().get("n") for _ in range(3)] == [None, 1, 2]
    assert agent.handled.asked == ["hold", "probe", "probe"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("boom", "KeyError: 'no such rank'"), ("exit", "SystemExit: 3"), ("unfit", "not a JSON object")],
)
def test_a_question_that_fails_is_answered_with_its_error(agent: Agent, name: str, words: str) -> None:
    with agent.client() as client:
        for _ in range(HANDLERS + 1):  # no place of a handler was lost
            with pytest.raises(Failed) as caught:
                client.call(name, SOON)
            assert words in caught.value.why
        assert client.call("probe", SOON) == {"name": "probe"}


def test_an_answer_that_is_too_long_is_an_error(agent: Agent) -> None:
    with agent.client() as client:
        with pytest.raises(Failed, match="big failed at") as caught:
            client.call("big", SOON, size=1024 * 1024)
        assert "1048576 are allowed" in caught.value.why
        assert client.call("probe", SOON) == {"name": "probe"}


def test_a_question_that_is_too_long_is_not_sent(agent: Agent) -> None:
    with agent.client() as client:
        with pytest.raises(Failed, match="Cannot send"):
            client.call("probe", SOON, x="y" * 65536)
        assert client.call("probe", SOON) == {"name": "probe"}
    assert agent.counts() == {"accepted": 1, "answered": 1}


# Refused by the agent


def cut_short(raw: Raw) -> None:
    raw.say(wire.hello(bytes(32))[:-1]).sock.shutdown(socket.SHUT_WR)


def wrong_hello(raw: Raw) -> None:
    raw.say(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: curl/7.88.1\r\n\r\n")


def reflected_proof(raw: Raw) -> None:
    """The agent's own hello, sent back as ours; then there is no proof to send but one for our own role."""
    raw.say(wire.hello(bytes(32)))
    other = wire.read_hello(raw.hear(wire.HELLO_BYTES))
    raw.say(wire.Endpoint(wire.SERVER, SECRET, WHO).pair(other, bytes(32)).proof)


def too_long(raw: Raw) -> None:
    raw.met().say(struct.pack(">I", 64 * 1024 + 1))


def twice(raw: Raw) -> None:
    frame = raw.met().frame("probe")
    raw.say(frame).reply()
    raw.say(frame)


def one_left_out(raw: Raw) -> None:
    raw.met().frame("probe")
    raw.say(raw.frame("probe"))


def spoilt(raw: Raw) -> None:
    frame = raw.met().frame("probe")
    raw.say(frame[:-1] + bytes([frame[-1] ^ 1]))


def nameless(raw: Raw) -> None:
    raw.met().say(raw.channel.sender.frame({"verb": 7, "request": {}}))


def half(raw: Raw) -> None:
    raw.met().say(raw.frame("probe")[:-1]).sock.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (cut_short, "refused_handshake"),
        (wrong_hello, "refused_handshake"),
        (lambda raw: raw.prove(secret=WRONG), "refused_handshake"),
        (lambda raw: raw.prove(who="71.0/n2"), "refused_handshake"),
        (reflected_proof, "refused_handshake"),
        (too_long, "oversized"),
        (twice, "replayed"),
        (one_left_out, "replayed"),
        (spoilt, "malformed"),
        (nameless, "malformed"),
        (half, "malformed"),
    ],
    ids=["half a hello", "http", "wrong secret", "other node", "agent's role", "too long", "twice", "one left out",
         "spoilt", "nameless", "half"],
)  # fmt: skip
def test_what_is_refused_is_counted_and_harms_nobody(agent: Agent, act: Callable[[Raw], None], kind: str) -> None:
    with agent.client() as before, Raw(agent.port) as raw:
        act(raw)
        heard = raw.rest()
        assert len(heard) <= wire.HELLO_BYTES  # a nonce at most: no proof, no answer
        refusals = {k: n for k, n in agent.counts().items() if k not in ("accepted", "answered")}
        assert refusals == {kind: 1}
        assert before.call("probe", SOON) == {"name": "probe"}
    assert agent.still_answers()


def test_a_host_that_is_not_allowed_gets_no_byte(agent: Agent) -> None:
    with Raw(agent.port, source="127.0.0.2") as raw:
        with contextlib.suppress(ConnectionError):
            raw.say(wire.hello(bytes(32)))
        assert raw.rest() == b""
    assert agent.counts() == {"refused_address": 1}
    assert agent.still_answers()


def test_a_recorded_session_is_of_no_use_later(agent: Agent) -> None:
    with Raw(agent.port).met() as raw:
        raw.say(raw.frame("stop"))
        assert raw.reply() == {"name": "stop"}
    with Raw(agent.port) as again:
        with contextlib.suppress(ConnectionError):
            again.say(raw.said)
        assert len(again.rest()) <= wire.HELLO_BYTES
    assert agent.handled.asked == ["stop"]
    assert agent.counts() == {"accepted": 1, "answered": 1, "refused_handshake": 1}
    assert agent.still_answers()


@pytest.mark.parametrize("trickle", [b"", b"t"], ids=["silent", "trickling"])
def test_who_does_not_prove_itself_in_time_is_closed(
    monkeypatch: pytest.MonkeyPatch, agent: Agent, trickle: bytes
) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE", 0.3)
    said = wire.hello(bytes(32))
    with Raw(agent.port) as raw:
        until(lambda: len(agent.server._connections) == 1)
        monkeypatch.setattr(server_module, "HANDSHAKE", SOON)
        assert agent.still_answers()  # beside it
        if trickle:
            with contextlib.suppress(ConnectionError):
                for at in range(wire.HELLO_BYTES - 1):
                    raw.say(said[at : at + 1])
                    time.sleep(0.02)
        assert raw.rest() == b""
    assert agent.counts() == {"accepted": 1, "answered": 1, "timed_out": 1}


def test_an_idle_connection_is_closed_in_the_end(monkeypatch: pytest.MonkeyPatch, agent: Agent) -> None:
    monkeypatch.setattr(server_module, "IDLE", 0.2)
    with agent.client() as client:
        assert client.call("probe", SOON) == {"name": "probe"}
        until(lambda: agent.server.counts["timed_out"] == 1)
        with pytest.raises(Unreachable):
            client.call("probe", SOON)
    assert agent.still_answers()


def test_being_answered_is_not_idle(monkeypatch: pytest.MonkeyPatch, agent: Agent) -> None:
    monkeypatch.setattr(server_module, "IDLE", 0.2)
    with Raw(agent.port).met() as raw:
        raw.say(raw.frame("hold"))
        agent.handled.held.acquire(timeout=SOON)
        time.sleep(0.4)
        assert agent.still_answers()  # the server has looked at its times
        agent.handled.go.set()
        assert raw.reply() == {"name": "hold"}


# Nobody waits for somebody else


def test_a_peer_that_does_not_read_holds_up_nobody(agent: Agent) -> None:
    with Raw(agent.port).met() as slow:
        slow.say(slow.frame("big", size=1_000_000) + slow.frame("big", size=1_000_000))
        until(lambda: agent.server.counts["answered"] >= 1)
        assert agent.still_answers()
        assert [len(str(slow.reply()["x"])) for _ in range(2)] == [1_000_000, 1_000_000]


def test_a_long_question_holds_up_nobody(agent: Agent) -> None:
    with Raw(agent.port).met() as raw:
        raw.say(raw.frame("hold"))
        agent.handled.held.acquire(timeout=SOON)
        assert agent.still_answers()
        agent.handled.go.set()
        assert raw.reply()["name"] == "hold"


def test_client_that_hangs_up_before_the_reply_frees_its_place(agent: Agent) -> None:
    agent.server._most = 1
    with Raw(agent.port).met() as raw:
        raw.say(raw.frame("hold"))
        agent.handled.held.acquire(timeout=SOON)
        with pytest.raises(Refused):
            agent.client()

    def let_in() -> bool:
        with contextlib.suppress(Refused):
            return agent.still_answers()
        return False

    until(let_in)
    assert not agent.handled.go.is_set()


def test_the_ninth_is_turned_away_and_the_eight_are_answered(agent: Agent) -> None:
    with contextlib.ExitStack() as stack:
        eight = [stack.enter_context(agent.client()) for _ in range(8)]
        with pytest.raises(Refused, match="closed the connection"):
            agent.client()
        assert [client.call("probe", SOON, n=n)["n"] for n, client in enumerate(eight)] == list(range(8))
        assert agent.counts() == {"accepted": 8, "answered": 8, "too_many": 1}
    until(lambda: not agent.server._connections)
    assert agent.still_answers()


def test_silent_peers_cannot_take_all_places(agent: Agent) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(Raw(agent.port)) for _ in range(8)]
        until(lambda: len(agent.server._connections) == 8)
        assert agent.still_answers()
        assert silent[0].rest() == b""
    assert agent.server.counts["too_many"] == 1


def test_no_file_descriptors_left_is_survived(monkeypatch: pytest.MonkeyPatch, agent: Agent) -> None:
    monkeypatch.setattr(server_module, "PAUSE", 0.05)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as sock:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            sock.connect((HERE, agent.port))
            until(lambda: agent.server.counts["accept_failed"] > 0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert agent.still_answers()


# Refused by the launcher


def test_a_client_with_the_wrong_secret_or_name_is_told_so(agent: Agent) -> None:
    for secret, who in ((WRONG, WHO), (SECRET, "71.1/n1")):
        with pytest.raises(Refused):
            agent.client(secret, who)
    assert agent.counts() == {"refused_handshake": 2}


def prove_with(secret: bytes) -> Callable[[socket.socket], None]:
    def act(sock: socket.socket) -> None:
        nonce = os.urandom(32)
        theirs = wire.read_hello(sock.recv(wire.HELLO_BYTES))
        sock.sendall(wire.hello(nonce))
        sock.recv(wire.PROOF_BYTES)
        sock.sendall(wire.Endpoint(wire.SERVER, secret, WHO).pair(nonce, theirs).proof)
        sock.recv(1)

    return act


def echo(sock: socket.socket) -> None:
    while data := sock.recv(4096):
        sock.sendall(data)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (prove_with(WRONG), "does not know the run's secret"),
        (echo, "does not know the run's secret"),
        (
            lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\nServer: nginx\r\n\r\n"),
            "does not follow the protocol",
        ),
        (lambda sock: sock.close(), "closed the connection"),
    ],
    ids=["wrong secret", "echo", "http", "closes"],
)
def test_who_is_not_the_agent_is_refused(act: Callable[[socket.socket], None], words: str) -> None:
    with impostor(act) as port, pytest.raises(Refused, match=words):
        Client.connect(HERE, port, SECRET, WHO, SOON)


def test_a_recorded_agent_is_refused(agent: Agent) -> None:
    with Raw(agent.port) as raw:
        raw.say(wire.hello(bytes(32)))
        theirs = raw.hear(wire.HELLO_BYTES)
        raw.say(wire.Endpoint(wire.CLIENT, SECRET, WHO).pair(bytes(32), wire.read_hello(theirs)).proof)
        recorded = theirs + raw.hear(wire.PROOF_BYTES)
    assert len(recorded) == wire.HELLO_BYTES + wire.PROOF_BYTES

    def act(sock: socket.socket) -> None:
        sock.sendall(recorded)
        echo(sock)

    with impostor(act) as port, pytest.raises(Refused, match="does not know the run's secret"):
        Client.connect(HERE, port, SECRET, WHO, SOON)


def answers(make: Callable[[wire.Sender], bytes]) -> Callable[[socket.socket], None]:
    """An agent that knows the secret and then answers as ``make`` says."""

    def act(sock: socket.socket) -> None:
        nonce = os.urandom(32)
        channel = wire.Endpoint(wire.SERVER, SECRET, WHO).pair(nonce, wire.read_hello(sock.recv(wire.HELLO_BYTES)))
        sock.sendall(wire.hello(nonce))
        channel.check(sock.recv(wire.PROOF_BYTES))
        sock.sendall(channel.proof)
        sock.recv(4096)
        sock.sendall(make(channel.sender))
        sock.recv(1)

    return act


def spoilt(frame: bytes) -> bytes:
    return frame[:-1] + bytes([frame[-1] ^ 1])


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda sender: sender.frame({"x": 1}), Refused),  # ok is missing
        (lambda sender: sender.frame({"ok": 1}), Refused),
        (lambda sender: spoilt(sender.frame(Result(True).encode())), Refused),
        (lambda sender: sender.frame({}) and sender.frame(Result(True).encode()), Refused),
        (lambda sender: struct.pack(">I", 1024 * 1024 + 1), Refused),
        (lambda sender: sender.frame({"ok": False, "error": "no"}), Failed),
    ],
    ids=["no ok", "ok is a number", "spoilt", "out of order", "too long", "error"],
)
def test_an_answer_that_is_none_is_refused(make: Callable[[wire.Sender], bytes], kind: type[RpcError]) -> None:
    with impostor(answers(make)) as port, Client.connect(HERE, port, SECRET, WHO, SOON) as client:
        with pytest.raises(kind):
            client.call("probe", SOON)
        if kind is Refused:
            with pytest.raises(Unreachable, match="Cannot send"):
                client.call("probe", SOON)


# In time or not at all


def test_an_answer_that_is_late_is_never_taken_for_another(agent: Agent) -> None:
    with agent.client() as client:
        with pytest.raises(Unreachable) as caught:
            client.call("hold", 0.1)
        assert caught.value.why == "not within 0.1 s"
        agent.handled.go.set()
        with pytest.raises(Unreachable, match="Cannot send"):
            client.call("probe", SOON)
    assert agent.still_answers()


@pytest.mark.parametrize("timeout", [0.0, 0.2])
def test_the_deadline_is_for_the_whole_handshake(timeout: float) -> None:
    def trickle(sock: socket.socket) -> None:
        for at in range(wire.HELLO_BYTES):
            sock.sendall(wire.hello(bytes(32))[at : at + 1])
            time.sleep(0.02)

    if not timeout:
        with pytest.raises(Unreachable):
            Client.connect(HERE, 1, SECRET, WHO, timeout)
        return
    with impostor(trickle) as port, pytest.raises(Unreachable, match="did not finish"):
        Client.connect(HERE, port, SECRET, WHO, timeout)


def test_where_nothing_listens_is_unreachable() -> None:
    with socket.create_server((HERE, 0)) as listener:
        port = listener.getsockname()[1]
    for address in (HERE, "localhost", ""):  # names are not looked up
        with pytest.raises(Unreachable, match="Cannot reach"):
            Client.connect(address, port, SECRET, WHO, SOON)


def test_an_agent_that_goes_is_unreachable(agent: Agent) -> None:
    with agent.client() as client:
        agent.server.stop()
        with pytest.raises(Unreachable):
            client.call("probe", SOON)
        with pytest.raises(Unreachable):
            agent.client()


# Addresses, and the end


def test_addresses_are_compared_as_addresses() -> None:
    server = Server(SECRET, WHO, frozenset({"::ffff:127.0.0.1", "fe80::1%eth0"}), Handled())
    try:
        with Client.connect(HERE, server.start(), SECRET, WHO, SOON) as client:
            assert client.call("probe", SOON) == {"name": "probe"}
    finally:
        server.stop()
    with pytest.raises(ValueError, match="n1"):
        Server(SECRET, WHO, frozenset({"n1"}), Handled())


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_an_ipv4_peer_of_an_ipv6_socket_is_itself() -> None:
    server = Server(SECRET, WHO, frozenset({HERE}), Handled())
    try:
        port = server.start("::")
        with Client.connect(HERE, port, SECRET, WHO, SOON) as client:
            assert client.call("probe", SOON) == {"name": "probe"}
        with pytest.raises(Refused):
            Client.connect("::1", port, SECRET, WHO, SOON)
        assert server.counts["refused_address"] == 1
    finally:
        server.stop()


def test_stop_leaves_no_thread_and_no_socket() -> None:
    before = set(threading.enumerate())

    def ours() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("rpc-") and thread not in before]

    sockets = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    made = Agent()
    with made.client() as client, Raw(made.port) as silent:
        assert client.call("probe", SOON) == {"name": "probe"}
        deadline = time.monotonic() + SOON
        while len(ours()) < 1 + 2 and time.monotonic() < deadline:
            time.sleep(0.01)  # the second connection was accepted a moment ago
        assert len(ours()) == 1 + 2
        made.server.stop()
        assert ours() == []
        assert silent.rest() == b""
    made.server.stop()  # again: nothing
    assert len(os.listdir("/proc/self/fd")) == sockets  # noqa: PTH208


def test_one_that_never_started_can_be_stopped() -> None:
    before = set(threading.enumerate())
    made = Server(SECRET, WHO, frozenset({HERE}), Handled())
    made.stop()
    assert set(threading.enumerate()) <= before
