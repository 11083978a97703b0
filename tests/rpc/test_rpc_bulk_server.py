"""A server with bulk replies over real sockets: the right bytes at every size, and otherwise an error in time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import wait_for
from rpc_made import HERE, SECRET, SHORT, SOON, WHO, WRONG, BulkServer, Calling

from transom_cli.rpc import server as module
from transom_cli.rpc import wire
from transom_cli.rpc.bulk import PIECE
from transom_cli.rpc.client import Client
from transom_cli.rpc.errors import Failed, Refused, Unreachable
from transom_cli.rpc.server import CONNECTIONS, Server
from transom_cli.rpc.throttle import BURST
from transom_cli.rpc.verbs import Reply

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3))
names = st.text()


@pytest.fixture
def server() -> Iterator[BulkServer]:
    with BulkServer() as made:
        yield made


def share(server: BulkServer, *parts: bytes) -> bytes:
    """What a client brings of these parts."""
    server.shares["s"] = [memoryview(part) for part in parts]
    into = bytearray(sum(map(len, parts)))
    with server.connect() as client:
        assert client.call("share", SOON, memoryview(into), of="s") == {"of": "s"}
    return bytes(into)


def raw(server: BulkServer, who: str = WHO) -> tuple[socket.socket, wire.Channel]:
    """A peer that has proven itself, and can now say anything."""
    sock = socket.create_connection((HERE, server.port), SOON)
    nonce = os.urandom(32)
    sock.sendall(wire.hello(nonce))
    channel = wire.Endpoint(wire.CLIENT, SECRET, who).pair(nonce, wire.read_hello(sock.recv(64, socket.MSG_WAITALL)))
    sock.sendall(channel.proof)
    channel.check(sock.recv(wire.PROOF_BYTES))
    return sock, channel


# Right answers


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 7])
def test_reply_of_any_size_arrives_complete(server: BulkServer, size: int) -> None:
    data = os.urandom(size)
    assert share(server, data) == data


@pytest.mark.parametrize("sizes", [[1, 0, PIECE - 2, 3], [PIECE, PIECE], [PIECE + 5, 1, 2 * PIECE], [3] * 5000, [0, 0]])
def test_views_arrive_in_order(server: BulkServer, sizes: list[int]) -> None:
    parts = [os.urandom(size) for size in sizes]
    assert share(server, *parts) == b"".join(parts)


def test_more_than_100_MiB(server: BulkServer) -> None:
    block = os.urandom(35 << 20)
    assert share(server, block, block[::-1], block[7:]) == block + block[::-1] + block[7:]


def test_views_of_other_items_than_bytes(server: BulkServer) -> None:
    server.shares["s"] = [memoryview(bytes(range(24))).cast("d"), memoryview(bytes(range(8))).cast("B", (2, 4))]
    into = bytearray(32)
    with server.connect() as client:
        client.call("share", SOON, memoryview(into).cast("Q"), of="s")
    assert into == bytes(range(24)) + bytes(range(8))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(arguments=st.dictionaries(names, values, max_size=4))
def test_any_fields_come_back_as_they_were(server: BulkServer, arguments: dict[str, object]) -> None:
    """Names that the protocol uses itself among them."""
    sent: dict[str, object] = {"ok": False, "bulk": 9, "answer": 1, "verb": 2, "request": 3, "into": 4, **arguments}
    with server.connect() as client:
        assert client.call("echo", SOON, **sent) == sent


def test_concurrent_connections_each_get_their_own_bytes(server: BulkServer) -> None:
    data = {str(number): os.urandom(4 * PIECE + number) for number in range(6)}
    server.shares = {of: [memoryview(part)] for of, part in data.items()}
    intos = {of: bytearray(len(part)) for of, part in data.items()}
    asked = [Calling(server.connect(), "share", memoryview(intos[of]), of=of) for of in data]
    assert [each.done() for each in asked] == [{"of": of} for of in data]
    assert intos == data


def test_connection_carries_many_calls(server: BulkServer) -> None:
    data = os.urandom(PIECE + 1)
    server.shares["s"] = [memoryview(data)]
    with server.connect() as client:
        for _ in range(5):
            into = bytearray(len(data))
            client.call("share", SOON, memoryview(into), of="s")
            assert into == data
            assert client.call("echo", SOON, n=1) == {"n": 1}
    wait_for(lambda: server.counts() == {"accepted": 1, "answered": 10})


# Who may ask


def test_wrong_secret_and_wrong_identity_are_refused(server: BulkServer) -> None:
    for secret, who in [(WRONG, WHO), (SECRET, WHO + "0")]:
        with pytest.raises(Refused, match="it closed the connection"):
            server.connect(secret=secret, who=who)
    wait_for(lambda: server.counts() == {"refused_handshake": 2})
    assert server.still_answers()


def test_server_without_the_secret_is_refused(server: BulkServer) -> None:
    """It takes any proof, and cannot make its own."""
    with socket.create_server((HERE, 0)) as listener:

        def pose() -> None:
            sock, _ = listener.accept()
            with sock:
                theirs = wire.read_hello(sock.recv(wire.HELLO_BYTES))
                sock.sendall(wire.hello(bytes(32)))
                sock.recv(wire.PROOF_BYTES)
                sock.sendall(wire.Endpoint(wire.SERVER, WRONG, WHO).pair(bytes(32), theirs).proof)

        poser = threading.Thread(target=pose)
        poser.start()
        with pytest.raises(Refused, match="does not know the run's secret"):
            server.connect(port=listener.getsockname()[1])
        poser.join()


def test_host_that_is_not_allowed_gets_no_byte_of_bulk_server() -> None:
    with BulkServer(allowed=frozenset({"127.0.0.2"})) as server:
        with pytest.raises(Refused):
            server.connect()
        assert server.counts() == {"refused_address": 1}
        with socket.create_connection((HERE, server.port), SOON, source_address=("127.0.0.2", 0)) as sock:
            sock.sendall(wire.hello(os.urandom(32)))
            assert sock.recv(1) == wire.hello(b"")[:1]


def test_host_name_is_not_an_allowed_address() -> None:
    with pytest.raises(ValueError, match="n17"):
        Server(SECRET, WHO, frozenset({"n17"}), lambda call: Reply())


def test_port_without_listener_is_unreachable() -> None:
    with socket.create_server((HERE, 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Unreachable, match="Cannot reach"):
        Client.connect(HERE, port, SECRET, WHO, SOON)


# Answers that are errors


@pytest.mark.parametrize(
    ("name", "why"),
    [("share", "KeyError: 'none'"), ("exit", "SystemExit: 3"), ("unfit", "not a JSON object"), ("long", "allowed")],
)
def test_handler_error_is_the_reply_and_the_connection_stays(server: BulkServer, name: str, why: str) -> None:
    with server.connect() as client:
        with pytest.raises(Failed, match="failed at") as caught:
            client.call(name, SOON, of="none")
        assert why in caught.value.why
        assert client.call("echo", SOON, x=1) == {"x": 1}


def test_non_contiguous_view_is_an_error_of_the_handler(server: BulkServer) -> None:
    with server.connect() as client, pytest.raises(Failed) as caught:
        client.call("gaps", SOON, memoryview(bytearray(4)))
    assert "contiguous" in caught.value.why


def test_call_that_is_not_json_is_not_sent(server: BulkServer) -> None:
    with server.connect() as client:
        with pytest.raises(Failed, match="Cannot send echo"):
            client.call("echo", SOON, x=object())
        assert client.call("echo", SOON, x=1) == {"x": 1}


@pytest.mark.parametrize("room", [None, 0, 4, 6])
def test_reply_of_another_size_is_refused(server: BulkServer, room: int | None) -> None:
    server.shares["s"] = [memoryview(b"12345")]
    client = server.connect()
    with pytest.raises(Refused, match="Unexpected reply to share") as caught:
        client.call("share", SOON, None if room is None else memoryview(bytearray(room)), of="s")
    assert caught.value.why == f"5 bytes, not {room or 0}"
    with pytest.raises(Unreachable, match="Cannot send echo"):
        client.call("echo", SOON)


# In time


def test_unanswered_handshake_times_out() -> None:
    with socket.create_server((HERE, 0)) as listener, pytest.raises(Unreachable, match="handshake") as caught:
        Client.connect(HERE, listener.getsockname()[1], SECRET, WHO, 0.2)
    assert caught.value.why == "not within 0.2 s"


def test_late_reply_times_out_and_closes_the_connection(server: BulkServer) -> None:
    client = server.connect()
    with pytest.raises(Unreachable) as caught:
        client.call("hold", 0.2)
    assert caught.value.why == "not within 0.2 s"
    with pytest.raises(Unreachable, match="Cannot send"):
        client.call("echo", SOON)
    assert server.still_answers()


def test_reply_that_stalls_times_out(server: BulkServer) -> None:
    with server.connect(stall=0.2) as client, pytest.raises(Unreachable) as caught:
        client.call("hold", SOON)
    assert caught.value.why == "nothing was received for 0.2 s"


def test_deadline_covers_the_whole_reply() -> None:
    """Bytes come all the time here, and too slowly."""
    with BulkServer(rate=200_000.0) as server:
        server.shares["s"] = [memoryview(bytes(BURST + (16 << 20)))]
        with server.connect() as client, pytest.raises(Unreachable) as caught:
            client.call("share", 1.0, memoryview(bytearray(BURST + (16 << 20))), of="s")
        assert caught.value.why == "not within 1 s"


@pytest.mark.parametrize("said", [b"", b"trnw", wire.hello(bytes(32))])
def test_unproven_client_times_out(server: BulkServer, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(module, "HANDSHAKE", 0.2)
    with socket.create_connection((HERE, server.port), SOON) as sock:
        sock.sendall(said)
        while sock.recv(64):
            pass
        assert server.counts() == {"timed_out": 1}


def test_idle_client_is_disconnected(server: BulkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE", 0.2)
    sock, _ = raw(server)
    with sock:
        assert sock.recv(1) == b""
    assert server.counts() == {"accepted": 1, "timed_out": 1}


def test_client_that_does_not_read_is_disconnected() -> None:
    with BulkServer(stall=SHORT) as server:
        server.shares["s"] = [memoryview(bytes(64 << 20))]  # more than sockets buffer
        sock, channel = raw(server)
        with sock:
            sock.sendall(channel.sender.frame({"verb": "share", "request": {"of": "s"}}))
            wait_for(lambda: server.counts().get("timed_out"))
        assert server.still_answers()


# What is no question


def garbage(channel: wire.Channel) -> bytes:
    frame = bytearray(channel.sender.frame({"verb": "echo", "request": {}}))
    frame[-1] ^= 1
    return bytes(frame)


def twice(channel: wire.Channel) -> bytes:
    return 2 * channel.sender.frame({"verb": "echo", "request": {}})


def half(channel: wire.Channel) -> bytes:
    return channel.sender.frame({"verb": "echo", "request": {}})[:-1]


@pytest.mark.parametrize(
    ("say", "kind"),
    [
        (garbage, "malformed"),
        (twice, "replayed"),
        (half, "malformed"),
        (lambda channel: b"\xff" * 4, "oversized"),
        (lambda channel: b"\0\0", "malformed"),
        (lambda channel: channel.sender.frame({"verb": 1, "request": {}}), "malformed"),
        (lambda channel: channel.sender.frame({"verb": "echo", "request": []}), "malformed"),
        (lambda channel: channel.sender.frame({}), "malformed"),
    ],
)
def test_invalid_call_closes_its_connection(
    server: BulkServer, say: Callable[[wire.Channel], bytes], kind: str
) -> None:
    sock, channel = raw(server)
    with sock:
        sock.sendall(say(channel))
        sock.shutdown(socket.SHUT_WR)
        wait_for(lambda: server.counts().get(kind) == 1)
    assert server.still_answers()


# Many, and the end


def test_connection_above_the_limit_is_turned_away(server: BulkServer) -> None:
    taken = [server.connect() for _ in range(CONNECTIONS)]
    with pytest.raises(Refused):
        server.connect()
    assert server.counts()["too_many"] == 1
    assert [client.call("echo", SOON, n=n) for n, client in enumerate(taken)] == [{"n": n} for n in range(CONNECTIONS)]
    taken.pop().close()
    wait_for(lambda: len(server.tcp._connections) < CONNECTIONS)
    assert server.still_answers()
    for client in taken:
        client.close()


def test_silent_clients_do_not_lock_others_out(server: BulkServer) -> None:
    silent = [socket.create_connection((HERE, server.port), SOON) for _ in range(CONNECTIONS)]
    wait_for(lambda: len(server.tcp._connections) == CONNECTIONS)
    assert server.still_answers()
    assert silent[0].recv(1) == b""  # the one that has had most time
    wait_for(lambda: server.counts().get("answered"))
    assert server.counts() == {"too_many": 1, "accepted": 1, "answered": 1}
    for sock in silent:
        sock.close()


def test_stop_aborts_replies_being_sent() -> None:
    before = set(threading.enumerate())
    with BulkServer(rate=1.0) as server:
        server.shares["s"] = [memoryview(b"\1" * (2 * BURST))]
        into = bytearray(2 * BURST)
        asked = Calling(server.connect(), "share", memoryview(into), of="s")
        wait_for(lambda: into[0])
        server.tcp.stop()
        assert isinstance(asked.done(), Unreachable)
        assert [thread.name for thread in set(threading.enumerate()) - before] == []
        with pytest.raises(Unreachable):
            server.connect()


def test_server_killed_during_a_reply_is_unreachable(server: BulkServer) -> None:
    script = Path(__file__).with_name("rpc_killed.py")
    with subprocess.Popen([sys.executable, str(script), SECRET.hex(), WHO], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            into = bytearray(16 << 20)
            asked = Calling(server.connect(port=port), "share", memoryview(into))
            wait_for(lambda: into[0])
        finally:
            process.kill()
        error = asked.done()
    assert isinstance(error, Unreachable) and "nothing was received" not in error.why
    assert into[-1] == 0


@pytest.mark.parametrize("whole", [True, False])
def test_views_are_released_when_sent_or_aborted(whole: bool) -> None:
    with BulkServer() as server:
        gone = threading.Event()

        def views() -> list[memoryview]:
            view = memoryview(bytearray(64 << 20))
            weakref.finalize(view, gone.set)
            return [view]

        server.fresh = views
        if whole:
            with server.connect() as client:
                client.call("fresh", SOON, memoryview(bytearray(64 << 20)))
                assert gone.wait(SOON)
        else:
            sock, channel = raw(server)
            sock.sendall(channel.sender.frame({"verb": "fresh", "request": {}}))
            assert sock.recv(1)
            assert not gone.is_set()
            sock.close()
            assert gone.wait(SOON)
            wait_for(lambda: server.counts().get("cut") == 1)
