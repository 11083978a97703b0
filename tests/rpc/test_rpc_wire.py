"""Handshake and frames: what was sent arrives in any pieces, and nothing else is ever accepted."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import struct
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.rpc import wire
from transom_cli.rpc.wire import CLIENT, SERVER, Channel, Endpoint, Receiver, Sender

SECRET, OTHER = bytes(range(32)), bytes(32)
WHO = "71.0/n1"
NONCES = b"l" * 32, b"a" * 32
KEY = b"k" * 32

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3), max_leaves=6
)
bodies = st.lists(st.dictionaries(st.text(), values, max_size=4), min_size=1, max_size=5)


def met(secret: bytes = SECRET, who: str = WHO, nonces: tuple[bytes, bytes] = NONCES) -> tuple[Channel, Channel]:
    """A client's and an server's side of one connection."""
    client, server = nonces
    return (
        Endpoint(CLIENT, secret, who).pair(client, server),
        Endpoint(SERVER, secret, who).pair(server, client),
    )


def line(limit: int = 4096) -> tuple[Sender, Receiver]:
    return Sender(KEY, limit), Receiver(KEY, limit)


def message(number: int, body: bytes, key: bytes = KEY) -> bytes:
    """A message by the description in `wire`, made without it."""
    signed = struct.pack(">Q", number) + body
    return struct.pack(">I", len(body)) + signed + hmac.new(key, signed, hashlib.sha256).digest()


def taken(receiver: Receiver, pieces: Iterable[bytes]) -> tuple[list[dict[str, object]], wire.WireError | None]:
    """All that a receiver takes of a connection which then ends, and what ended it."""
    found: list[dict[str, object]] = []
    try:
        for piece in pieces:
            receiver.feed(piece)
            while (body := receiver.next()) is not None:
                found.append(body)
        receiver.end()
    except wire.WireError as error:
        return found, error
    return found, None


def flipped(data: bytes, bit: int) -> bytes:
    spoilt = bytearray(data)
    spoilt[bit // 8] ^= 1 << bit % 8
    return bytes(spoilt)


# Who is who


def test_both_prove_themselves_and_each_reads_the_other() -> None:
    client, server = met()
    server.check(client.proof)
    client.check(server.proof)
    assert taken(server.receiver, [client.sender.frame({"ask": "probe"})]) == ([{"ask": "probe"}], None)
    assert taken(client.receiver, [server.sender.frame({"ok": True})]) == ([{"ok": True}], None)


def test_a_proof_sent_back_to_its_maker_is_refused() -> None:
    for side in met():
        with pytest.raises(wire.BadMac):
            side.check(side.proof)


@pytest.mark.parametrize(
    "stranger",
    [
        met(secret=OTHER),
        met(who="71.0/n2"),  # another node's server
        met(who="71.1/n1"),  # another attempt's
        met(nonces=(NONCES[0], b"b" * 32)),  # another connection
        met(nonces=(b"m" * 32, NONCES[1])),
    ],
    ids=["secret", "node", "attempt", "server's nonce", "client's nonce"],
)
def test_a_proof_for_anything_else_is_refused_and_so_are_its_messages(stranger: tuple[Channel, Channel]) -> None:
    client, server = met()
    with pytest.raises(wire.BadMac):
        server.check(stranger[0].proof)
    with pytest.raises(wire.BadMac):
        client.check(stranger[1].proof)
    found, error = taken(server.receiver, [stranger[0].sender.frame({"ask": "stop"})])
    assert found == [] and type(error) is wire.BadMac


def test_any_flipped_bit_of_a_handshake_is_refused() -> None:
    client, server = met()
    for bit in range(8 * wire.PROOF_BYTES):
        with pytest.raises(wire.BadMac):
            server.check(flipped(client.proof, bit))
    for bit in range(8 * wire.HELLO_BYTES):
        try:
            nonce = wire.read_hello(flipped(wire.hello(NONCES[0]), bit))
        except wire.Malformed:
            continue
        with pytest.raises(wire.BadMac):
            met(nonces=(nonce, NONCES[1]))[1].check(client.proof)


def test_a_proof_cut_short_is_refused() -> None:
    client, server = met()
    for proof in (b"", client.proof[:-1], client.proof + b"\0"):
        with pytest.raises(wire.BadMac):
            server.check(proof)


def test_a_hello_of_another_version_or_length_says_so() -> None:
    said = wire.hello(NONCES[0])
    assert wire.read_hello(said) == NONCES[0]
    with pytest.raises(wire.Malformed, match="version 3"):
        wire.read_hello(said[:4] + b"\0\3" + said[6:])
    for wrong in (said[:-1], said + b"\0", b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u2"):
        with pytest.raises(wire.Malformed):
            wire.read_hello(wrong)


def test_a_secret_that_is_none_is_not_used() -> None:
    for secret in (b"", b"short", bytes(33)):
        with pytest.raises(ValueError, match="32 bytes"):
            Endpoint(SERVER, secret, WHO)


# Messages


@settings(deadline=None, max_examples=60)
@given(bodies, st.lists(st.integers(0, 2000)))
def test_any_pieces_of_valid_messages_are_read(sent: list[dict[str, object]], cuts: list[int]) -> None:
    sender, receiver = line(65536)
    stream = b"".join(sender.frame(body) for body in sent)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert taken(receiver, pieces) == (sent, None)


@settings(deadline=None, max_examples=30)
@given(bodies)
def test_reading_what_is_wanted_takes_one_message_at_a_time(sent: list[dict[str, object]]) -> None:
    sender, receiver = line(65536)
    for body in sent:
        stream, at = sender.frame(body), 0
        while (found := receiver.next()) is None:
            wanted = receiver.wanted
            assert 0 < wanted <= len(stream) - at
            receiver.feed(stream[at : at + wanted])
            at += wanted
        assert (found, at) == (body, len(stream))
        receiver.end()


def test_a_message_is_as_described() -> None:
    assert line()[0].frame({"ask": "probe"}) == message(0, b'{"ask":"probe"}')
    assert taken(line()[1], [message(0, b'{"a": "\xc3\xa9"}'), message(1, b"{}")]) == ([{"a": "é"}, {}], None)


def test_any_flipped_bit_is_refused() -> None:
    sender, _ = line()
    first, second = sender.frame({"ask": "evidence", "launch": 1}), sender.frame({"ask": "end"})
    for bit in range(8 * len(first)):
        found, error = taken(line()[1], [flipped(first, bit) + second])
        assert found == [] and isinstance(error, (wire.BadMac, wire.Oversized, wire.Malformed)), bit
    for bit in range(8 * len(second)):
        found, error = taken(line()[1], [first + flipped(second, bit)])
        assert found == [{"ask": "evidence", "launch": 1}] and error is not None, bit


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_truncation_is_refused(data: st.DataObject) -> None:
    sender, receiver = line()
    stream = sender.frame({"n": 0}) + sender.frame({"n": 1})
    cut = data.draw(st.integers(1, len(stream) - 1).filter(lambda n: n != len(stream) // 2))
    found, error = taken(receiver, [stream[:cut]])
    assert found == [{"n": 0}][: cut // (len(stream) // 2)]
    assert type(error) is wire.Malformed


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 3), max_size=6))
def test_only_the_order_in_which_they_were_sent_is_taken(order: list[int]) -> None:
    sender, receiver = line()
    frames = [sender.frame({"n": n}) for n in range(4)]
    due = next((at for at, n in enumerate(order) if n != at), len(order))
    found, error = taken(receiver, [frames[n] for n in order])
    assert found == [{"n": n} for n in range(due)]
    assert type(error) is (type(None) if due == len(order) else wire.Replayed)


def test_a_message_sent_back_to_its_sender_is_refused() -> None:
    for side in met():
        found, error = taken(side.receiver, [side.sender.frame({"ok": True})])
        assert found == [] and type(error) is wire.BadMac


def test_a_length_above_the_limit_is_refused_by_itself() -> None:
    receiver = line(100)[1]
    receiver.feed(struct.pack(">I", 101))
    with pytest.raises(wire.Oversized):
        receiver.next()
    exact = json.dumps({"x": "y" * 91}).encode()
    assert len(exact) == 100
    assert taken(line(100)[1], [message(0, exact)]) == ([json.loads(exact)], None)


def test_each_direction_has_its_limit() -> None:
    client, server = met()
    most = {"x": "y" * (64 * 1024 - 8)}
    assert taken(server.receiver, [client.sender.frame(most)]) == ([most], None)
    with pytest.raises(wire.Oversized):
        client.sender.frame({"x": "y" * (64 * 1024 - 7)})
    more = {"x": "y" * (1024 * 1024 - 8)}
    assert taken(client.receiver, [server.sender.frame(more)]) == ([more], None)
    with pytest.raises(wire.Oversized):
        server.sender.frame({"x": "y" * (1024 * 1024 - 7)})


def test_what_cannot_be_sent_uses_up_no_number() -> None:
    sender, receiver = line(100)
    circle: dict[str, object] = {}
    circle["self"] = circle
    for wrong, kind in (
        ({"x": "y" * 200}, wire.Oversized),
        ({"x": object()}, wire.Malformed),
        ({"x": float("nan")}, wire.Malformed),
        (circle, wire.Malformed),
    ):
        with pytest.raises(kind):
            sender.frame(wrong)
    assert taken(receiver, [sender.frame({"n": 1})]) == ([{"n": 1}], None)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"{", b'{"a": NaN}', b'{"a": -Infinity}', b"\xff{}", b"\xef\xbb\xbf{}", b"[" * 4000],
    ids=["empty", "list", "null", "half", "nan", "infinity", "not utf-8", "byte order mark", "deep"],
)
def test_a_true_message_that_is_no_object_is_malformed(body: bytes) -> None:
    found, error = taken(line()[1], [message(0, body)])
    assert found == [] and type(error) is wire.Malformed


def test_utf_16_is_not_read_though_json_would() -> None:
    body = '{"a": 1}'.encode("utf-16-le")
    assert json.loads(body) == {"a": 1}
    assert type(taken(line()[1], [message(0, body)])[1]) is wire.Malformed


def test_after_an_error_nothing_more_is_read() -> None:
    _, receiver = line()
    receiver.feed(message(1, b"{}"))
    with pytest.raises(wire.Replayed):
        receiver.next()
    receiver.feed(message(0, b"{}"))
    with pytest.raises(wire.Replayed):
        receiver.next()
