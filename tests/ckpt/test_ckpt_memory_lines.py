"""Lines between holders over real sockets: the right bytes at every size, and an error in time whatever goes wrong."""

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
from ckpt_memory_holder import HERE, SECRET, SHORT, SOON, WHO, WRONG, Asking, Holder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import wait_for

from transom_cli.ckpt.snapshot import lines as module
from transom_cli.ckpt.snapshot.asking import Failed, Line, Refused, Unreachable
from transom_cli.ckpt.snapshot.bulk import PIECE
from transom_cli.ckpt.snapshot.lines import LINES, Server
from transom_cli.ckpt.snapshot.throttle import BURST
from transom_cli.supervise.agent import wire

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3))
names = st.text().filter(lambda text: text not in {"self", "name", "timeout", "into"})


@pytest.fixture
def holder() -> Iterator[Holder]:
    with Holder() as made:
        yield made


def share(holder: Holder, *parts: bytes) -> bytes:
    """What a line brings of these parts."""
    holder.shares["s"] = [memoryview(part) for part in parts]
    into = bytearray(sum(map(len, parts)))
    with holder.line() as line:
        assert line.ask("share", SOON, memoryview(into), of="s") == {"of": "s"}
    return bytes(into)


def raw(holder: Holder, who: str = WHO) -> tuple[socket.socket, wire.Meeting]:
    """A peer that has proven itself, and can now say anything."""
    sock = socket.create_connection((HERE, holder.port), SOON)
    nonce = os.urandom(32)
    sock.sendall(wire.hello(nonce))
    meeting = wire.Party(wire.LAUNCHER, SECRET, who).meet(nonce, wire.read_hello(sock.recv(64, socket.MSG_WAITALL)))
    sock.sendall(meeting.proof)
    meeting.check(sock.recv(wire.PROOF_BYTES))
    return sock, meeting


# Right answers


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 7])
def test_all_bytes_arrive(holder: Holder, size: int) -> None:
    data = os.urandom(size)
    assert share(holder, data) == data


@pytest.mark.parametrize("sizes", [[1, 0, PIECE - 2, 3], [PIECE, PIECE], [PIECE + 5, 1, 2 * PIECE], [3] * 5000, [0, 0]])
def test_views_arrive_one_after_the_other(holder: Holder, sizes: list[int]) -> None:
    parts = [os.urandom(size) for size in sizes]
    assert share(holder, *parts) == b"".join(parts)


def test_more_than_100_MiB(holder: Holder) -> None:
    block = os.urandom(35 << 20)
    assert share(holder, block, block[::-1], block[7:]) == block + block[::-1] + block[7:]


def test_views_of_other_items_than_bytes(holder: Holder) -> None:
    holder.shares["s"] = [memoryview(bytes(range(24))).cast("d"), memoryview(bytes(range(8))).cast("B", (2, 4))]
    into = bytearray(32)
    with holder.line() as line:
        line.ask("share", SOON, memoryview(into).cast("Q"), of="s")
    assert into == bytes(range(24)) + bytes(range(8))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(arguments=st.dictionaries(names, values, max_size=4))
def test_any_fields_come_back_as_they_were(holder: Holder, arguments: dict[str, object]) -> None:
    """Names that the protocol uses itself among them."""
    sent: dict[str, object] = {"ok": False, "bulk": 9, "answer": 1, "ask": 2, "with": 3, **arguments}
    with holder.line() as line:
        assert line.ask("echo", SOON, **sent) == sent


def test_many_lines_at_once_each_get_their_own(holder: Holder) -> None:
    data = {str(number): os.urandom(4 * PIECE + number) for number in range(6)}
    holder.shares = {of: [memoryview(part)] for of, part in data.items()}
    intos = {of: bytearray(len(part)) for of, part in data.items()}
    asked = [Asking(holder.line(), "share", memoryview(intos[of]), of=of) for of in data]
    assert [each.done() for each in asked] == [{"of": of} for of in data]
    assert intos == data


def test_a_line_is_asked_again_and_again(holder: Holder) -> None:
    data = os.urandom(PIECE + 1)
    holder.shares["s"] = [memoryview(data)]
    with holder.line() as line:
        for _ in range(5):
            into = bytearray(len(data))
            line.ask("share", SOON, memoryview(into), of="s")
            assert into == data
            assert line.ask("echo", SOON, n=1) == {"n": 1}
    wait_for(lambda: holder.counts() == {"accepted": 1, "answered": 10})


# Who may ask


def test_wrong_secret_and_wrong_identity_get_nothing(holder: Holder) -> None:
    for secret, who in [(WRONG, WHO), (SECRET, WHO + "0")]:
        with pytest.raises(Refused, match="closed the connection before it was made"):
            holder.line(secret=secret, who=who)
    wait_for(lambda: holder.counts() == {"refused_handshake": 2})
    assert holder.still_answers()


def test_a_holder_without_the_secret_is_not_believed(holder: Holder) -> None:
    """It takes any proof, and cannot make its own."""
    with socket.create_server((HERE, 0)) as listener:

        def pose() -> None:
            sock, _ = listener.accept()
            with sock:
                theirs = wire.read_hello(sock.recv(wire.HELLO_BYTES))
                sock.sendall(wire.hello(bytes(32)))
                sock.recv(wire.PROOF_BYTES)
                sock.sendall(wire.Party(wire.AGENT, WRONG, WHO).meet(bytes(32), theirs).proof)

        poser = threading.Thread(target=pose)
        poser.start()
        with pytest.raises(Refused, match="does not know the run's secret"):
            holder.line(port=listener.getsockname()[1])
        poser.join()


def test_an_address_that_is_not_allowed_gets_no_byte() -> None:
    with Holder(allowed=frozenset({"127.0.0.2"})) as holder:
        with pytest.raises(Refused):
            holder.line()
        assert holder.counts() == {"refused_address": 1}
        with socket.create_connection((HERE, holder.port), SOON, source_address=("127.0.0.2", 0)) as sock:
            sock.sendall(wire.hello(os.urandom(32)))
            assert sock.recv(1) == wire.hello(b"")[:1]


def test_a_word_is_no_address() -> None:
    with pytest.raises(ValueError, match="n17"):
        Server(SECRET, WHO, frozenset({"n17"}), lambda name, arguments: ({}, []))


def test_nobody_listens() -> None:
    with socket.create_server((HERE, 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Unreachable, match="cannot be reached"):
        Line.connect(HERE, port, SECRET, WHO, SOON)


# Answers that are errors


@pytest.mark.parametrize(
    ("name", "why"),
    [("share", "KeyError: 'none'"), ("exit", "SystemExit: 3"), ("unfit", "not a JSON object"), ("long", "allowed")],
)
def test_what_the_handler_raises_is_the_answer_and_the_line_stays(holder: Holder, name: str, why: str) -> None:
    with holder.line() as line:
        with pytest.raises(Failed, match="could not do") as caught:
            line.ask(name, SOON, of="none")
        assert why in caught.value.why
        assert line.ask("echo", SOON, x=1) == {"x": 1}


def test_views_with_gaps_are_an_error_of_the_handler(holder: Holder) -> None:
    with holder.line() as line, pytest.raises(Failed) as caught:
        line.ask("gaps", SOON, memoryview(bytearray(4)))
    assert "contiguous" in caught.value.why


def test_a_question_that_is_no_json_is_not_sent(holder: Holder) -> None:
    with holder.line() as line:
        with pytest.raises(Failed, match="cannot be asked of a holder"):
            line.ask("echo", SOON, x=object())
        assert line.ask("echo", SOON, x=1) == {"x": 1}


@pytest.mark.parametrize("room", [None, 0, 4, 6])
def test_bytes_that_do_not_fit_are_refused(holder: Holder, room: int | None) -> None:
    holder.shares["s"] = [memoryview(b"12345")]
    line = holder.line()
    with pytest.raises(Refused, match="answered share otherwise") as caught:
        line.ask("share", SOON, None if room is None else memoryview(bytearray(room)), of="s")
    assert caught.value.why == f"5 bytes and not {room or 0}"
    with pytest.raises(Unreachable, match="cannot be asked for echo"):
        line.ask("echo", SOON)


# In time


def test_a_handshake_that_nobody_answers() -> None:
    with socket.create_server((HERE, 0)) as listener, pytest.raises(Unreachable, match="handshake") as caught:
        Line.connect(HERE, listener.getsockname()[1], SECRET, WHO, 0.2)
    assert caught.value.why == "not within 0.2 s"


def test_an_answer_that_does_not_come_in_time(holder: Holder) -> None:
    line = holder.line()
    with pytest.raises(Unreachable) as caught:
        line.ask("hold", 0.2)
    assert caught.value.why == "not within 0.2 s"
    with pytest.raises(Unreachable, match="cannot be asked"):
        line.ask("echo", SOON)
    assert holder.still_answers()


def test_an_answer_of_which_nothing_comes_for_too_long(holder: Holder) -> None:
    with holder.line(stall=0.2) as line, pytest.raises(Unreachable) as caught:
        line.ask("hold", SOON)
    assert caught.value.why == "nothing came for 0.2 s"


def test_the_deadline_is_the_whole_answers() -> None:
    """Bytes come all the time here, and too slowly."""
    with Holder(rate=200_000.0) as holder:
        holder.shares["s"] = [memoryview(bytes(BURST + (16 << 20)))]
        with holder.line() as line, pytest.raises(Unreachable) as caught:
            line.ask("share", 1.0, memoryview(bytearray(BURST + (16 << 20))), of="s")
        assert caught.value.why == "not within 1 s"


@pytest.mark.parametrize("said", [b"", b"trnw", wire.hello(bytes(32))])
def test_who_does_not_prove_itself_is_timed_out(holder: Holder, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(module, "HANDSHAKE", 0.2)
    with socket.create_connection((HERE, holder.port), SOON) as sock:
        sock.sendall(said)
        while sock.recv(64):
            pass
        assert holder.counts() == {"timed_out": 1}


def test_who_asks_nothing_for_long_is_let_go(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE", 0.2)
    sock, _ = raw(holder)
    with sock:
        assert sock.recv(1) == b""
    assert holder.counts() == {"accepted": 1, "timed_out": 1}


def test_who_takes_no_bytes_is_let_go() -> None:
    with Holder(stall=SHORT) as holder:
        holder.shares["s"] = [memoryview(bytes(64 << 20))]  # more than sockets buffer
        sock, meeting = raw(holder)
        with sock:
            sock.sendall(meeting.sender.frame({"ask": "share", "with": {"of": "s"}}))
            wait_for(lambda: holder.counts().get("timed_out"))
        assert holder.still_answers()


# What is no question


def garbage(meeting: wire.Meeting) -> bytes:
    frame = bytearray(meeting.sender.frame({"ask": "echo", "with": {}}))
    frame[-1] ^= 1
    return bytes(frame)


def twice(meeting: wire.Meeting) -> bytes:
    return 2 * meeting.sender.frame({"ask": "echo", "with": {}})


def half(meeting: wire.Meeting) -> bytes:
    return meeting.sender.frame({"ask": "echo", "with": {}})[:-1]


@pytest.mark.parametrize(
    "say",
    [
        garbage,
        twice,
        half,
        lambda meeting: b"\xff" * 4,
        lambda meeting: meeting.sender.frame({"ask": 1, "with": {}}),
        lambda meeting: meeting.sender.frame({"ask": "echo", "with": []}),
        lambda meeting: meeting.sender.frame({}),
    ],
)
def test_what_is_no_question_ends_its_line(holder: Holder, say: Callable[[wire.Meeting], bytes]) -> None:
    sock, meeting = raw(holder)
    with sock:
        sock.sendall(say(meeting))
        sock.shutdown(socket.SHUT_WR)
        wait_for(lambda: holder.counts().get("refused_question") == 1)
    assert holder.still_answers()


# Many, and the end


def test_one_more_than_there_are_places_is_turned_away(holder: Holder) -> None:
    taken = [holder.line() for _ in range(LINES)]
    with pytest.raises(Refused):
        holder.line()
    assert holder.counts()["too_many"] == 1
    assert [line.ask("echo", SOON, n=n) for n, line in enumerate(taken)] == [{"n": n} for n in range(LINES)]
    taken.pop().close()
    wait_for(lambda: len(holder.server._lines) < LINES)
    assert holder.still_answers()
    for line in taken:
        line.close()


def test_the_silent_keep_nobody_out(holder: Holder) -> None:
    silent = [socket.create_connection((HERE, holder.port), SOON) for _ in range(LINES)]
    wait_for(lambda: len(holder.server._lines) == LINES)
    assert holder.still_answers()
    assert silent[0].recv(1) == b""  # the one that has had most time
    wait_for(lambda: holder.counts().get("answered"))
    assert holder.counts() == {"too_many": 1, "accepted": 1, "answered": 1}
    for sock in silent:
        sock.close()


def test_all_lines_share_the_rate() -> None:
    """At a byte a second the first burst goes, and nothing more in this test's time: both have it between them."""
    with Holder(rate=1.0) as holder:
        holder.shares["s"] = [memoryview(b"\1" * (2 * BURST))]
        intos = [bytearray(2 * BURST) for _ in range(2)]
        asked = [Asking(holder.line(stall=4 * SHORT), "share", memoryview(into), of="s") for into in intos]
        assert [type(each.done()) for each in asked] == [Unreachable, Unreachable]
        came = sum(into.count(1) for into in intos)
        assert BURST // 2 < came <= BURST


def test_stop_ends_what_is_being_sent() -> None:
    before = set(threading.enumerate())
    with Holder(rate=1.0) as holder:
        holder.shares["s"] = [memoryview(b"\1" * (2 * BURST))]
        into = bytearray(2 * BURST)
        asked = Asking(holder.line(), "share", memoryview(into), of="s")
        wait_for(lambda: into[0])
        holder.server.stop()
        assert isinstance(asked.done(), Unreachable)
        assert [thread.name for thread in set(threading.enumerate()) - before] == []
        with pytest.raises(Unreachable):
            holder.line()


def test_a_holder_killed_while_it_sends(holder: Holder) -> None:
    script = Path(__file__).with_name("ckpt_memory_killed.py")
    with subprocess.Popen([sys.executable, str(script), SECRET.hex(), WHO], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            into = bytearray(16 << 20)
            asked = Asking(holder.line(port=port), "share", memoryview(into))
            wait_for(lambda: into[0])
        finally:
            process.kill()
        error = asked.done()
    assert isinstance(error, Unreachable) and "nothing came" not in error.why
    assert into[-1] == 0


@pytest.mark.parametrize("whole", [True, False])
def test_views_are_let_go_when_they_are_sent_or_cannot_be(whole: bool) -> None:
    with Holder() as holder:
        gone = threading.Event()

        def views() -> list[memoryview]:
            view = memoryview(bytearray(64 << 20))
            weakref.finalize(view, gone.set)
            return [view]

        holder.fresh = views
        if whole:
            with holder.line() as line:
                line.ask("fresh", SOON, memoryview(bytearray(64 << 20)))
                assert gone.wait(SOON)
        else:
            sock, meeting = raw(holder)
            sock.sendall(meeting.sender.frame({"ask": "fresh", "with": {}}))
            assert sock.recv(1)
            assert not gone.is_set()
            sock.close()
            assert gone.wait(SOON)
            wait_for(lambda: holder.counts().get("cut") == 1)
