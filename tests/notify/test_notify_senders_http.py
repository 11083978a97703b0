"""Messages by HTTP: real servers on loopback that answer, refuse, hang, redirect and babble."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from notify_made import ABOUT, Answer, news, receiving, speaking, until

from transom_cli.notify.messages import SLACK, WEBHOOK, DeliveryError, Target, body, message
from transom_cli.notify.secrets import Secret
from transom_cli.notify.senders import post

SECRET = (("Authorization", "Bearer T0KEN-SECRET"),)


def failed(url: str, timeout: float = 5.0) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        post(Secret(url, SECRET), b"{}", "r/i1/incident", timeout)
    words = str(caught.value)
    assert "SECRET" not in words and "T0P" not in words and caught.value.__cause__ is None
    return caught.value


def test_slack_gets_its_json_and_others_ours() -> None:
    one = news("i1/incident", headline="n3 lost")
    with receiving() as server:
        for kind in (SLACK, WEBHOOK):
            found = message((one,), ABOUT, Target("t", kind))
            post(Secret(server.url(), SECRET), body(found, Target("t", kind)), found.id, 5.0)
    slack, ours = server.heard
    assert json.loads(slack.body)["text"].startswith("demo: n3 lost\n")
    document = json.loads(ours.body)
    assert (document["schema"], document["event"], document["run"]) == (1, "incident", ABOUT.run_id)
    assert document["id"] == f"{ABOUT.run_id}/i1/incident" == ours.headers["Idempotency-Key"]
    assert ours.headers["Authorization"] == "Bearer T0KEN-SECRET" and ours.path == "/services/T0P/SECRET-PATH"
    assert ours.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("answer", "words", "again"),
    [
        (Answer(500), "127.0.0.1 answered 500 Internal Server Error", True),
        (Answer(404, body=b"no_service"), "127.0.0.1 answered 404 Not Found (no_service)", False),
        (Answer(403, body=b"wrong token T0KEN-SECRET in /services/T0P/SECRET-PATH"), "answered 403 Forbidden", False),
        (Answer(408), "answered 408", True),
        (Answer(799), "answered 799", True),
    ],
)
def test_what_is_not_success_is_reported_and_only_tried_again_where_it_may_help(
    answer: Answer, words: str, again: bool
) -> None:
    with receiving(answer) as server:
        error = failed(server.url())
    assert words in str(error) and error.again is again


def test_a_server_that_asks_for_patience_gets_it() -> None:
    with receiving(Answer(429, {"Retry-After": "17"})) as server:
        assert failed(server.url()).after == 17.0
    with receiving(Answer(503, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"})) as server:
        assert failed(server.url()).after == 0.0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(status: int) -> None:
    with receiving() as elsewhere, receiving(Answer(status, {"Location": elsewhere.url()})) as server:
        error = failed(server.url())
        assert "a redirect, which is not followed" in str(error) and not error.again
        assert len(server.heard) == 1 and elsewhere.heard == []


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert str(failed(f"http://127.0.0.1:{port}/SECRET")) == "127.0.0.1: connection refused"


def test_a_name_that_does_not_exist() -> None:
    error = failed("http://no-such-host.invalid/SECRET")
    assert "no-such-host.invalid: " in str(error) and error.again


def silent(connection: socket.socket) -> None:
    connection.recv(1)
    time.sleep(1000)  # beyond the test's own limit


def dripping(connection: socket.socket) -> None:
    for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 10_000:
        connection.sendall(bytes([byte]))
        time.sleep(0.1)


def half(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
    time.sleep(30)


@pytest.mark.parametrize("talk", [silent, dripping])
def test_a_server_that_hangs_or_drips_costs_the_deadline_and_no_more(talk: object) -> None:
    with speaking(talk) as port:  # type: ignore[arg-type]
        error = failed(f"http://127.0.0.1:{port}/SECRET", timeout=0.5)
        assert "no answer within 0.5 s" in str(error) and error.again


def test_success_status_counts_without_waiting_for_the_body() -> None:
    with speaking(half) as port:
        began = time.monotonic()
        post(Secret(f"http://127.0.0.1:{port}/x"), b"{}", "k", 20.0)
        assert time.monotonic() - began < 15.0


def test_a_tls_handshake_that_hangs_ends_with_the_deadline() -> None:
    with speaking(silent) as port:
        error = failed(f"https://127.0.0.1:{port}/SECRET", timeout=0.5)
    assert "no answer within 0.5 s" in str(error)


def test_no_tls_where_it_is_requested() -> None:
    with receiving() as server:
        error = failed(server.url().replace("http:", "https:"))
    assert "TLS" in str(error) or "invalid response" in str(error)


def test_a_huge_answer_is_not_read() -> None:
    with receiving(Answer(200, body=b"x" * (64 << 20))) as server:
        post(Secret(server.url()), b"{}", "k", 10.0)
        assert len(server.heard) == 1


NO_ANSWERS = (
    b"\x00\xff nonsense\r\n\r\n",
    b"HTTP/1.1 \xff\xff\r\n\r\n",
    b"",
    b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 500,
)


@pytest.mark.parametrize("said", NO_ANSWERS)
def test_what_is_no_answer_of_http_is_undelivered(said: bytes) -> None:
    def talk(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(said)

    with speaking(talk) as port:
        assert failed(f"http://127.0.0.1:{port}/SECRET").again


def test_the_environments_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        post(Secret("http://hooks.invalid/x"), b"{}", "k", 5.0)
    assert proxy.heard[0].path == "http://hooks.invalid/x"


def test_files_and_other_schemes_are_never_opened(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    for url in (f"file://{tmp_path}/f", "ftp://127.0.0.1/x", "data:,x"):
        with pytest.raises(DeliveryError):
            post(Secret(url), b"{}", "k", 1.0)


def test_nothing_is_left_running_after_a_post() -> None:
    def timers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)}

    before = timers()
    with receiving() as server:
        for _ in range(5):
            post(Secret(server.url()), b"{}", "k", 60.0)
    until(lambda: timers() <= before)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Of our own making, for loopback: key and certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    words = ("-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost")
    files = ("-keyout", key, "-out", certificate, "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(["openssl", "req", "-x509", *words, *files], check=True, capture_output=True)
    return key, certificate


@pytest.fixture
def tls(certificate: tuple[Path, Path]) -> Iterator[tuple[int, Path]]:
    """An HTTPS server with that certificate: its port, and the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])

    def talk(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            received = b""
            while not received.endswith(b"{}"):
                received += secured.recv(65536)
            secured.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with speaking(talk) as port:
        yield port, certificate[1]


def test_a_certificate_that_nobody_vouches_for_is_not_accepted(tls: tuple[int, Path]) -> None:
    error = failed(f"https://127.0.0.1:{tls[0]}/SECRET")
    assert "127.0.0.1: its certificate was rejected: " in str(error) and "signed" in str(error)


def test_a_server_that_drips_behind_tls_costs_the_deadline_and_no_more(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[1]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])

    def talk(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            dripping(secured)

    with speaking(talk) as port:
        assert "no answer within 1 s" in str(failed(f"https://127.0.0.1:{port}/SECRET", timeout=1.0))


def test_own_authority_of_a_site_is_accepted_through_openssl(
    tls: tuple[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "certificate was rejected" in str(failed(f"https://127.0.0.1:{tls[0]}/x"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tls[1]))
    assert post(Secret(f"https://127.0.0.1:{tls[0]}/x"), b"{}", "k", 5.0) is None, "accepted"
