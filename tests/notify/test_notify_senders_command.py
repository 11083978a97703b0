"""Commands and mail programs: real ones that fail, hang and print without end; a sendmail that records."""

from __future__ import annotations

import email
import email.policy
import json
import os
import threading
from pathlib import Path

import pytest
from notify_made import ABOUT, news, program, until

from transom_cli.notify.messages import COMMAND, MAIL, DeliveryError, Message, Target, environment, message
from transom_cli.notify.senders import run_command, sender

NEVER = threading.Event()
HOSTILE = "n3 lost\x1b[31m; $(touch /tmp/owned) `id`\n~!id\n.\nBcc: eve@example.org"


def told(target: Target, headline: str = "n3 lost", **more: object) -> Message:
    return message((news("i1/incident", headline=headline, **more),), ABOUT, target)


def failed(path: Path, timeout: float = 10.0, end: threading.Event = NEVER) -> str:
    with pytest.raises(DeliveryError) as caught:
        run_command((str(path),), b"{}", {}, timeout, end)
    return str(caught.value)


def test_a_command_gets_the_facts_on_stdin_and_in_its_environment(tmp_path: Path) -> None:
    path = program(tmp_path / "tell", f'cat > {tmp_path}/in; env > {tmp_path}/env; echo "$@" > {tmp_path}/args')
    target = Target("c", COMMAND, argv=(str(path), "a b", "$HOME", "*"))
    facts = (("step", 46), ("nodes", ("n3", "n4")), ("cause", HOSTILE))
    sent = told(target, HOSTILE, facts=facts)
    sender(target, tmp_path / "none", 10.0)(sent, NEVER)
    document = json.loads((tmp_path / "in").read_text())
    assert document == sent.document and document["facts"]["nodes"] == ["n3", "n4"]
    assert "\x1b" not in document["text"]
    lines = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert (lines["NOTIFY_EVENT"], lines["NOTIFY_STEP"], lines["NOTIFY_NODES"]) == ("incident", "46", "n3 n4")
    assert lines["NOTIFY_RUN"] == ABOUT.run_id and lines["PATH"] == os.environ["PATH"]
    assert (tmp_path / "args").read_text() == "a b $HOME *\n"
    assert not Path("/tmp/owned").exists()


def test_how_it_ended_is_reported(tmp_path: Path) -> None:
    assert failed(program(tmp_path / "a", "echo 'no such \033[31mpager' >&2; echo more >&2; exit 3")) == (
        r"a ended with exit code 3: no such \x1b[31mpager"
    )
    assert failed(program(tmp_path / "b", "kill -9 $$")) == "b ended with signal 9"


@pytest.mark.parametrize("make", ["gone", "not executable", "folder", "no interpreter"])
def test_what_cannot_be_started_is_given_up(tmp_path: Path, make: str) -> None:
    path = tmp_path / "x"
    if make == "not executable":
        path.write_text("#!/bin/sh\n")
    if make == "folder":
        path.mkdir()
    if make == "no interpreter":
        program(path, "").write_text("#!/no/such/interpreter\n")
    with pytest.raises(DeliveryError, match="x cannot be started") as caught:
        run_command((str(path),), b"", {}, 10.0, NEVER)
    assert not caught.value.again


def test_one_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    path = program(tmp_path / "x", f"sleep 300 & echo $! > {tmp_path}/child; trap '' TERM; sleep 300")
    assert failed(path, timeout=1.0) == "x did not end within 1 s"
    child = int((tmp_path / "child").read_text())
    until(lambda: _gone(child))


def test_one_is_cut_short_when_the_operator_leaves(tmp_path: Path) -> None:
    end = threading.Event()
    path = program(tmp_path / "x", f"touch {tmp_path}/began; sleep 300")
    threading.Thread(target=lambda: (until((tmp_path / "began").exists), end.set()), daemon=True).start()
    assert failed(path, timeout=300.0, end=end) == "x was aborted"


def test_one_that_prints_without_end_fills_nothing_and_ends_in_time(tmp_path: Path) -> None:
    assert failed(program(tmp_path / "x", "yes loud >&2"), timeout=1.0) == "x did not end within 1 s"
    much = "yes loud | head -c 5000000; yes | head -c 5000000 >&2"
    run_command((str(program(tmp_path / "y", much)),), b"", {}, 60.0, NEVER)


def test_command_may_ignore_its_stdin(tmp_path: Path) -> None:
    path = program(tmp_path / "x", f"touch {tmp_path}/ran; exit 0")
    run_command((str(path),), b"x" * (8 << 20), {}, 10.0, NEVER)
    assert (tmp_path / "ran").exists()


def test_what_a_good_command_leaves_behind_lives_on(tmp_path: Path) -> None:
    """A mail program may queue, and deliver from the background; with our stderr still open."""
    path = program(tmp_path / "x", f"(sleep 1; touch {tmp_path}/delivered) & exit 0")
    run_command((str(path),), b"", {}, 10.0, NEVER)
    until((tmp_path / "delivered").exists)


def sendmail(tmp_path: Path, name: str = "sendmail") -> Path:
    keep = f'for a in "$@"; do printf "%s\\n" "$a"; done > {tmp_path}/args; cat > {tmp_path}/mail'
    return program(tmp_path / name, keep)


def test_sendmail_gets_a_whole_mail(tmp_path: Path) -> None:
    target = Target(
        "m", MAIL, to=("ops@example.org", "root"), sender="transom@h", program=(str(sendmail(tmp_path)), "-X")
    )
    sender(target, tmp_path / "none", 10.0)(told(target, HOSTILE, details=("é 日本", HOSTILE)), NEVER)
    assert (tmp_path / "args").read_text().splitlines() == ["-X", "-i", "ops@example.org", "root"]
    mail = email.message_from_bytes((tmp_path / "mail").read_bytes(), policy=email.policy.default)
    assert (mail["To"], mail["From"], mail["Bcc"]) == ("ops@example.org, root", "transom@h", None)
    assert mail["Subject"].startswith("demo: n3 lost") and mail["X-Transom-Event"] == "incident"
    body = mail.get_content()  # type: ignore[attr-defined]
    assert "é 日本" in body and "\x1b" not in body and "\nBcc:" not in body


@pytest.mark.parametrize("name", ["mail", "mailx"])
def test_mail_gets_the_subject_as_an_argument_and_no_orders(tmp_path: Path, name: str) -> None:
    target = Target("m", MAIL, to=("ops",), program=(str(sendmail(tmp_path, name)),), text="~!id\n{words}")
    sender(target, tmp_path / "none", 10.0)(told(target, "-f eve", details=("~r /etc/passwd", "a")), NEVER)
    assert (tmp_path / "args").read_text().splitlines() == ["-s", "demo: -f eve", "ops"]
    assert (tmp_path / "mail").read_text() == " ~!id\n ~r /etc/passwd\na\n"


def test_no_variable_of_a_message_looks_like_a_setting() -> None:
    from transom_cli.config.sources import is_setting

    names = environment(told(Target("c", COMMAND)))
    assert names and not any(is_setting(name) for name in names)


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
