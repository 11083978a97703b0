"""The rendezvous store over real sockets: values are read as written, and every wait ends on time."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from transom_cli.health.probe.rendezvous import OwnStore, RemoteStore


def test_what_one_writes_the_others_read_whenever_it_comes() -> None:
    board = OwnStore()
    one, other = (RemoteStore("127.0.0.1", board.port, board.password, 5.0) for _ in range(2))
    one.set("a", b"\x00\xff")
    writing = threading.Timer(0.1, lambda: one.set("b", b"late"))
    writing.start()
    assert other.get(["a", "b"], 10.0) == [b"\x00\xff", b"late"]
    assert board.get(["b"], 0.0) == [b"late"]
    assert one.seen_from == "127.0.0.1"
    writing.join()


def test_missing_keys_are_none_when_the_time_is_over() -> None:
    board = OwnStore()
    board.set("here/0", b"x")
    assert RemoteStore("127.0.0.1", board.port, board.password, 5.0).get(["here/0", "here/1"], 0.05) == [b"x", None]


def test_hundreds_write_and_wait_for_one_another_at_once() -> None:
    board = OwnStore()
    keys = [str(i) for i in range(200)]
    came: list[list[bytes | None]] = []

    def member(key: str) -> None:
        theirs = RemoteStore("127.0.0.1", board.port, board.password, 20.0)
        theirs.set(key, key.encode())
        came.append(theirs.get(keys, 20.0))
        theirs.close()

    members = [threading.Thread(target=member, args=(key,)) for key in keys]
    for one in members:
        one.start()
    for one in members:
        one.join()
    assert came == [[key.encode() for key in keys]] * len(keys)


def test_malformed_requests_do_not_affect_other_clients() -> None:
    board = OwnStore()
    for words in (b"GET / HTTP/1.1\r\n\r\n", b'{"get": 1}\n', b"\xff\xfe\n", b"[]\n"):
        with socket.create_connection(("127.0.0.1", board.port), timeout=5) as stranger:
            stranger.sendall(words)
    theirs = RemoteStore("127.0.0.1", board.port, board.password, 5.0)
    theirs.set("a", b"1")
    assert board.get(["a"], 0.0) == [b"1"]


def test_missing_answer_costs_one_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        theirs = RemoteStore("127.0.0.1", mute.getsockname()[1], "", 0.1)
        with pytest.raises(TimeoutError):
            theirs.set("a", b"1")


def test_missing_peer_is_an_immediate_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        RemoteStore("127.0.0.1", port, "", 5.0)


def test_closing_ends_a_call_that_another_thread_is_in() -> None:
    board = OwnStore()
    theirs = RemoteStore("127.0.0.1", board.port, board.password, 5.0)
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises((OSError, ValueError)):
            theirs.get(["never"], 600.0)
        ended.set()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    time.sleep(0.05)
    theirs.close()
    assert ended.wait(10.0)
