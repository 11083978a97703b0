"""A man in the middle flips a byte or stops: always an error, never wrong bytes, and no other client waits."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from processes import wait_for
from rpc_made import SHORT, SOON, BulkServer, Calling
from rpc_relay import Relay

from transom_cli.rpc import wire
from transom_cli.rpc.bulk import PIECE, SEAL_BYTES
from transom_cli.rpc.errors import Damaged, Refused, RpcError, Unreachable

WHOLE = PIECE + SEAL_BYTES

HANDSHAKE = wire.HELLO_BYTES + wire.PROOF_BYTES  # bytes of either side before the first message
LENGTH = range(HANDSHAKE, HANDSHAKE + 4)  # places of the first message's length: with another, a side waits for more
SMALL = b"a few bytes" * 4


@pytest.fixture
def server() -> Iterator[BulkServer]:
    with BulkServer() as made:
        made.shares = {"small": [memoryview(SMALL)], "large": [memoryview(os.urandom(2 * PIECE + 100))]}
        yield made


def asked(server: BulkServer, relay: Relay, of: str, stall: float = SOON) -> bytes:
    """The bytes that come through the relay, or the error."""
    into = bytearray(sum(map(len, server.shares[of])))
    with server.connect(port=relay.port, stall=stall) as client:
        assert client.call("share", SOON, memoryview(into), of=of) == {"of": of}
    return bytes(into)


def passed(server: BulkServer, of: str) -> tuple[int, int]:
    """Bytes to the asker and to the server of one client with one question; and the relay itself changes nothing."""
    with Relay(server.port) as relay:
        assert asked(server, relay, of) == b"".join(server.shares[of])
        to_client, to_server = relay.passed
    return to_client, to_server


def failure(server: BulkServer, relay: Relay, of: str, stall: float = SOON) -> RpcError:
    with pytest.raises(RpcError) as caught:
        asked(server, relay, of, stall)
    return caught.value


@pytest.mark.parametrize("mask", [0x01, pytest.param(0x80, marks=pytest.mark.long)])
def test_any_byte_of_an_answer_flipped_is_an_error(server: BulkServer, mask: int) -> None:
    whole, _ = passed(server, "small")
    bulk = whole - len(SMALL) - SEAL_BYTES
    for place in range(whole):
        with Relay(server.port, flip=place, mask=mask) as relay:
            error = failure(server, relay, "small", SHORT if place in LENGTH else SOON)
        if place < HANDSHAKE:
            assert type(error) is Refused, place
        elif place in LENGTH:  # by another length it takes the wrong bytes, or waits for more
            assert type(error) in (Damaged, Unreachable), place
        else:
            assert type(error) is Damaged, place
        assert ("the bytes from 0 to 44" in error.why) == (place >= bulk), place
    assert server.still_answers()


def test_any_byte_of_a_question_flipped_is_an_error(server: BulkServer) -> None:
    _, whole = passed(server, "small")
    for place in range(whole):
        with Relay(server.port, flip=place, to_server=True) as relay:
            error = failure(server, relay, "small", SHORT if place in LENGTH else SOON)
        assert type(error) is (Refused if place < HANDSHAKE else Unreachable), place
    assert server.still_answers()


@pytest.mark.parametrize("piece", [0, 1, 2])
def test_a_byte_flipped_in_any_piece_is_found(server: BulkServer, piece: int) -> None:
    whole, _ = passed(server, "large")
    start = whole - (2 * WHOLE + 100 + SEAL_BYTES) + piece * WHOLE
    size = 100 if piece == 2 else PIECE
    for place in (0, 1, size // 2, size - 1, size, size + SEAL_BYTES - 1):
        with Relay(server.port, flip=start + place, mask=0x10) as relay:
            error = failure(server, relay, "large")
        assert type(error) is Damaged, place
        assert error.why == f"the bytes from {piece * PIECE} to {piece * PIECE + size} are not the bytes that were sent"


def test_bytes_that_stop_coming_are_an_error_and_hold_up_nobody_else(server: BulkServer) -> None:
    server.shares["huge"] = [memoryview(bytes(64 << 20))]  # more than sockets buffer: the server waits, too
    with Relay(server.port, stop=PIECE + PIECE // 2) as relay:
        into = memoryview(bytearray(64 << 20))
        stuck = Calling(server.connect(port=relay.port, stall=SHORT), "share", into, of="huge")
        assert relay.stopped.wait(SOON)
        assert server.still_answers()
        error = stuck.done()
        assert server.still_answers()
    assert type(error) is Unreachable and error.why == f"nothing was received for {SHORT} s"
    wait_for(lambda: server.counts().get("cut") == 1)


@pytest.mark.parametrize("stop", [0, wire.HELLO_BYTES, HANDSHAKE - 1, HANDSHAKE, HANDSHAKE + 2, HANDSHAKE + 40])
def test_a_line_that_stops_anywhere_is_an_error(server: BulkServer, stop: int) -> None:
    with Relay(server.port, stop=stop) as relay, pytest.raises(Unreachable):
        server.connect(port=relay.port, timeout=SHORT, stall=SHORT).call("echo", SOON)
