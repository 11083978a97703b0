"""Pieces and their seals over a socket pair: all bytes, each in its place, and nothing else is taken."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from rpc_made import make_hash

from transom_cli.rpc import bulk, wire
from transom_cli.rpc.bulk import PIECE, SEAL_BYTES, Seals
from transom_cli.rpc.stream import Stream

KEY = b"k" * 32
SOON = 20.0

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def sent(data: bytes, seals: Seals) -> bytes:
    """What goes over the line for these bytes."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=bulk.send, args=(Stream(ours), [memoryview(data)], seals, list))
        sender.start()
        pieces = -(-len(data) // PIECE)
        out = bytearray(len(data) + pieces * SEAL_BYTES)
        Stream(theirs).receive([memoryview(out)], time.monotonic() + SOON)
        sender.join()
    return bytes(out)


def received(pair: Pair, raw: bytes, size: int, seals: Seals) -> bytes:
    def say() -> None:
        with contextlib.suppress(BrokenPipeError):  # the other side has refused a piece before the last
            pair[0].sendall(raw)

    sender = threading.Thread(target=say)
    sender.start()
    into = bytearray(size)
    try:
        bulk.receive(Stream(pair[1]), memoryview(into), seals, time.monotonic() + SOON)
    finally:
        pair[1].close()  # frees a sender whose bytes nobody takes
        sender.join()
    return bytes(into)


def test_the_seals_are_those_of_the_description() -> None:
    seed = int.from_bytes(hmac.new(KEY, b"seed", hashlib.sha256).digest()[:8], "big")
    seals = Seals(KEY, make_hash)
    for number, piece in enumerate([b"one", b"", b"one"]):
        signed = number.to_bytes(8, "big") + xxhash.xxh3_128_digest(piece, seed=seed)
        assert seals.next([memoryview(piece)]) == hmac.new(KEY, signed, hashlib.sha256).digest()[:16]


@given(st.lists(st.binary(max_size=30), max_size=8), st.integers(1, 40))
def test_cutting_keeps_every_byte_in_its_order(parts: list[bytes], size: int) -> None:
    groups = [[bytes(part) for part in group] for group in bulk.cut([memoryview(part) for part in parts], size)]
    whole = [b"".join(group) for group in groups]
    assert b"".join(whole) == b"".join(parts)
    assert all(len(group) == size for group in whole[:-1]) and all(whole)


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_a_seal_does_not_depend_on_where_the_views_begin(parts: list[bytes]) -> None:
    views: Sequence[memoryview] = [memoryview(part) for part in parts]
    assert Seals(KEY, make_hash).next(views) == Seals(KEY, make_hash).next([memoryview(b"".join(parts))])


def test_pieces_in_another_order_are_refused(pair: Pair) -> None:
    raw = sent(os.urandom(2 * PIECE), Seals(KEY, make_hash))
    with pytest.raises(wire.BadMac, match="bytes from 0 to 1048576 are not the bytes that were sent"):
        received(pair, raw[PIECE + SEAL_BYTES :] + raw[: PIECE + SEAL_BYTES], 2 * PIECE, Seals(KEY, make_hash))


def test_a_piece_is_not_taken_twice(pair: Pair) -> None:
    raw = sent(b"x" * PIECE, Seals(KEY, make_hash))
    with pytest.raises(wire.BadMac, match="from 1048576 to 2097152"):
        received(pair, raw + raw, 2 * PIECE, Seals(KEY, make_hash))


def test_an_earlier_answers_piece_is_not_taken_again(pair: Pair) -> None:
    ours, seals = Seals(KEY, make_hash), Seals(KEY, make_hash)
    raw = sent(b"first", ours)
    seals.next([memoryview(b"first")])
    with pytest.raises(wire.BadMac):
        received(pair, raw, 5, seals)


def test_another_connections_piece_is_refused(pair: Pair) -> None:
    with pytest.raises(wire.BadMac):
        received(pair, sent(b"first", Seals(b"o" * 32, make_hash)), 5, Seals(KEY, make_hash))


def test_a_sender_can_end_before_each_piece(pair: Pair) -> None:
    turns = iter([None, None])

    def before() -> None:
        if next(turns, "over") == "over":
            raise ConnectionAbortedError("the server stops")

    data = [memoryview(os.urandom(7 * PIECE + 5))]
    reader = threading.Thread(target=pair[1].recv, args=(3 * PIECE, socket.MSG_WAITALL), daemon=True)
    reader.start()
    with pytest.raises(ConnectionAbortedError, match="the server stops"):
        bulk.send(Stream(pair[0]), data, Seals(KEY, make_hash), before)
