"""A man in the middle flips a byte, or stops: never a wrong answer, always an error, and no other line waits for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from ckpt_memory_holder import SHORT, SOON, Asking, Holder
from ckpt_memory_relay import Relay
from processes import wait_for

from transom_cli.ckpt.snapshot.asking import Damaged, LineFailed, Refused, Unreachable
from transom_cli.ckpt.snapshot.bulk import PIECE, SEAL_BYTES, WHOLE
from transom_cli.supervise.agent import wire

MEETING = wire.HELLO_BYTES + wire.PROOF_BYTES  # bytes of either side before the first message
LENGTH = range(MEETING, MEETING + 4)  # places of the first message's length: with another, a side waits for more
SMALL = b"a few bytes" * 4


@pytest.fixture
def holder() -> Iterator[Holder]:
    with Holder() as made:
        made.shares = {"small": [memoryview(SMALL)], "large": [memoryview(os.urandom(2 * PIECE + 100))]}
        yield made


def asked(holder: Holder, relay: Relay, of: str, stall: float = SOON) -> bytes:
    """The bytes that come through the relay, or the error."""
    into = bytearray(sum(map(len, holder.shares[of])))
    with holder.line(port=relay.port, stall=stall) as line:
        assert line.ask("share", SOON, memoryview(into), of=of) == {"of": of}
    return bytes(into)


def passed(holder: Holder, of: str) -> tuple[int, int]:
    """Bytes to the asker and to the holder of one line with one question; and the relay itself changes nothing."""
    with Relay(holder.port) as relay:
        assert asked(holder, relay, of) == b"".join(holder.shares[of])
        to_asker, to_holder = relay.passed
    return to_asker, to_holder


def failure(holder: Holder, relay: Relay, of: str, stall: float = SOON) -> LineFailed:
    with pytest.raises(LineFailed) as caught:
        asked(holder, relay, of, stall)
    return caught.value


@pytest.mark.parametrize("mask", [0x01, pytest.param(0x80, marks=pytest.mark.long)])
def test_any_byte_of_an_answer_flipped_is_an_error(holder: Holder, mask: int) -> None:
    whole, _ = passed(holder, "small")
    bulk = whole - len(SMALL) - SEAL_BYTES
    for place in range(whole):
        with Relay(holder.port, flip=place, mask=mask) as relay:
            error = failure(holder, relay, "small", SHORT if place in LENGTH else SOON)
        if place < MEETING:
            assert type(error) is Refused, place
        elif place in LENGTH:  # by another length it takes the wrong bytes, or waits for more
            assert type(error) in (Damaged, Unreachable), place
        else:
            assert type(error) is Damaged, place
        assert ("the bytes from 0 to 44" in error.why) == (place >= bulk), place
    assert holder.still_answers()


def test_any_byte_of_a_question_flipped_is_an_error(holder: Holder) -> None:
    _, whole = passed(holder, "small")
    for place in range(whole):
        with Relay(holder.port, flip=place, to_holder=True) as relay:
            error = failure(holder, relay, "small", SHORT if place in LENGTH else SOON)
        assert type(error) is (Refused if place < MEETING else Unreachable), place
    assert holder.still_answers()


@pytest.mark.parametrize("piece", [0, 1, 2])
def test_a_byte_flipped_in_any_piece_is_found(holder: Holder, piece: int) -> None:
    whole, _ = passed(holder, "large")
    start = whole - (2 * WHOLE + 100 + SEAL_BYTES) + piece * WHOLE
    size = 100 if piece == 2 else PIECE
    for place in (0, 1, size // 2, size - 1, size, size + SEAL_BYTES - 1):
        with Relay(holder.port, flip=start + place, mask=0x10) as relay:
            error = failure(holder, relay, "large")
        assert type(error) is Damaged, place
        assert error.why == f"the bytes from {piece * PIECE} to {piece * PIECE + size} are not what was sent"


def test_bytes_that_stop_coming_are_an_error_and_hold_up_nobody_else(holder: Holder) -> None:
    holder.shares["huge"] = [memoryview(bytes(64 << 20))]  # more than sockets buffer: the holder waits, too
    with Relay(holder.port, stop=PIECE + PIECE // 2) as relay:
        into = memoryview(bytearray(64 << 20))
        stuck = Asking(holder.line(port=relay.port, stall=SHORT), "share", into, of="huge")
        assert relay.stopped.wait(SOON)
        assert holder.still_answers()
        error = stuck.done()
        assert holder.still_answers()
    assert type(error) is Unreachable and error.why == f"nothing came for {SHORT} s"
    wait_for(lambda: holder.counts().get("cut") == 1)


@pytest.mark.parametrize("stop", [0, wire.HELLO_BYTES, MEETING - 1, MEETING, MEETING + 2, MEETING + 40])
def test_a_line_that_stops_anywhere_is_an_error(holder: Holder, stop: int) -> None:
    with Relay(holder.port, stop=stop) as relay, pytest.raises(Unreachable):
        holder.line(port=relay.port, timeout=SHORT, stall=SHORT).ask("echo", SOON)
