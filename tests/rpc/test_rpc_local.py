"""Calls within a node: a message is complete or refused, and no descriptor leaks."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from transom_cli.rpc import local
from transom_cli.rpc.errors import Failed, Refused, Unreachable
from transom_cli.rpc.local import LIMIT

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_message_comes_whole_with_its_descriptors(pair: Pair) -> None:
    fd = local.parcel(b"bytes")
    local.send(pair[0], {"ask": "hold", "step": 5}, [fd])
    body, (came,) = local.receive(pair[1])
    assert body == {"ask": "hold", "step": 5}
    assert local.unpack(came) == b"bytes"
    assert local.unpack(came) == b"bytes", "the offset, which both sides share, is left alone"
    os.close(fd)
    os.close(came)


@pytest.mark.parametrize("raw", [b"{", b"[1]", b"\xff", b"5", b"x" * (LIMIT + 1)])
def test_what_is_no_message_is_refused_and_its_descriptors_are_closed(pair: Pair, raw: bytes) -> None:
    fd = local.parcel(b"bytes")
    before = descriptors()
    socket.send_fds(pair[0], [raw], [fd])
    with pytest.raises(ValueError):
        local.receive(pair[1])
    assert descriptors() == before
    os.close(fd)


def test_too_many_descriptors_are_refused_and_closed(pair: Pair) -> None:
    fd = local.parcel(b"")
    before = descriptors()
    socket.send_fds(pair[0], [b"{}"], [fd] * 40)
    with pytest.raises(ValueError, match="too long"):
        local.receive(pair[1])
    assert descriptors() == before
    os.close(fd)


def test_a_message_that_no_packet_takes_is_not_sent(pair: Pair) -> None:
    with pytest.raises(ValueError, match="are allowed"):
        local.send(pair[0], {"words": "x" * LIMIT})


def test_a_parcel_cannot_be_changed() -> None:
    fd = local.parcel(b"as it was")
    for change in (lambda: os.pwrite(fd, b"X", 0), lambda: os.ftruncate(fd, 0), lambda: os.ftruncate(fd, 1 << 20)):
        with pytest.raises(PermissionError):
            change()
    assert local.unpack(fd) == b"as it was"
    os.close(fd)


def test_a_parcel_that_is_too_large_is_not_read() -> None:
    fd = os.memfd_create("large")
    os.ftruncate(fd, 1 << 40)  # sparse: it takes nothing
    with pytest.raises(ValueError, match="a parcel of 1099511627776 bytes"):
        local.unpack(fd)
    os.close(fd)


def _answering(sock: socket.socket, answer: dict[str, object], fds: list[int]) -> threading.Thread:
    def act() -> None:
        local.receive(sock)
        local.send(sock, answer, fds)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_a_refusal_has_the_holders_words_and_costs_no_descriptor(pair: Pair) -> None:
    fd = local.parcel(b"")
    before = descriptors()
    thread = _answering(pair[1], {"ok": False, "error": "slot 3 was not given out"}, [fd])
    with pytest.raises(Failed, match="slot 3 was not given out"):
        local.call(pair[0], 20.0, "drop", index=3)
    thread.join()
    assert descriptors() == before
    os.close(fd)


@pytest.mark.parametrize("answer", [{}, {"ok": 1}, {"ok": "true"}])
def test_only_true_is_a_yes(pair: Pair, answer: dict[str, object]) -> None:
    thread = _answering(pair[1], answer, [])
    with pytest.raises(Refused):
        local.call(pair[0], 20.0, "hello")
    thread.join()


def test_a_holder_that_ends_or_is_silent_is_gone(pair: Pair) -> None:
    with pytest.raises(Unreachable):
        local.call(pair[0], 0.05, "hello")
    pair[1].close()
    with pytest.raises(Unreachable):
        local.call(pair[0], 20.0, "hello")


def test_the_user_on_the_other_side_is_asked_of_the_kernel(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    assert local.same_user(pair[0])
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert not local.same_user(pair[0])


def test_a_message_is_one_line_of_plain_ascii(pair: Pair) -> None:
    local.send(pair[0], {"error": "é\n\x1b[31m"})
    raw = pair[1].recv(LIMIT)
    assert raw.isascii() and b"\n" not in raw and b"\x1b" not in raw
    assert json.loads(raw) == {"error": "é\n\x1b[31m"}


def test_parcels_are_not_inherited() -> None:
    fd = local.parcel(b"")
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.close(fd)


def test_end_of_the_server_is_seen_in_a_process_with_thousands_of_open_files() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    high = fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD, 2000)
    with socket.socket(fileno=high) as client, ours:
        assert not local.readable(client, 0.0)
        theirs.close()
        assert local.readable(client, 5.0)
