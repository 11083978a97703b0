"""A run that is shared with a group: its members read it, those on call act on it, and nobody else does either."""

from __future__ import annotations

import grp
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from slurm_support import OrdinaryUser

from transom_cli.cli.common import run_to_request
from transom_cli.config.load import load
from transom_cli.core import events as ev
from transom_cli.core.operator.state import Policy
from transom_cli.errors import NotPermitted, UsageError
from transom_cli.files import publish_text, replace_text
from transom_cli.layout import RunDir
from transom_cli.modes import make_folder
from transom_cli.rpc.secret import make
from transom_cli.submit.rundir import new_run
from transom_cli.submit.sharing import check_sharing
from transom_cli.submit.submission import SubmissionRecord
from transom_cli.supervise.journal import Journal, read_events, write_header
from transom_cli.supervise.lease import Lease
from transom_cli.supervise.operator import request_socket
from transom_cli.supervise.operator.request_socket import LIMIT, MOST, RequestSocket, send_request

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as other users")

GROUP = f"transomcall{os.getpid()}"


@pytest.fixture(scope="module")
def group(ordinary_user: OrdinaryUser) -> Iterator[int]:
    """A group that has `ordinary_user` as a member, but not `other_user`."""
    subprocess.run(["groupadd", GROUP], check=True)
    subprocess.run(["usermod", "-aG", GROUP, ordinary_user.name], check=True)
    yield grp.getgrnam(GROUP).gr_gid
    subprocess.run(["groupdel", GROUP], check=False)


def _make(folder: Path, *on_call: str, name: str = "shared") -> RunDir:
    """A shared run of root's, with files as operator, launcher and agents write them."""
    flags = {"run.share": f"group:{GROUP}", "run.on_call": list(on_call)}
    settings = load(None, flags, site=None, user=Path("/nonexistent"))
    when = datetime(2026, 3, 4, tzinfo=timezone.utc)
    run = new_run(folder / "runs", name, when, settings, "#!/bin/bash\nexport WANDB_API_KEY=hunter2\n")
    SubmissionRecord(chdir="/").save(run)
    write_header(run.journal, Policy(), 1)
    attempt = run.attempt(7, 0)
    for made in (attempt.nodes, attempt.logs(0), attempt.evidence("i1")):
        make_folder(made)
    publish_text(attempt.outcome, "{}")
    replace_text(attempt.launcher_alive, "1")
    make(run.secret)
    return run


@pytest.fixture
def folder(short_dir: Path, tmp_path: Path) -> Path:
    made = short_dir / tmp_path.name
    made.mkdir(mode=0o755)
    return made


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_the_group_reads_a_shared_run_whatever_the_umask_and_never_writes(
    folder: Path, group: int, ordinary_user: OrdinaryUser, other_user: OrdinaryUser, umask: int
) -> None:
    kept = os.umask(umask)
    try:
        run = _make(folder)
    finally:
        os.umask(kept)
    private = {run.secret, run.script, run.submission}
    for path in (run.path, *run.path.rglob("*")):
        status = path.stat()
        assert not status.st_mode & 0o027 or status.st_mode & 0o7777 in (0o2750, 0o644, 0o640), path
        assert not status.st_mode & 0o022, path
        assert status.st_gid == group
        readable = bool(status.st_mode & 0o040)
        assert readable is (path not in private), path

    def member() -> None:
        assert read_events(run.journal) == ()
        assert (run.attempt(7, 0).outcome).read_text() == "{}"
        for path in private:
            with pytest.raises(PermissionError):
                path.read_text()
        for path in (run.path, run.attempts, run.attempt(7, 0).path):
            with pytest.raises(PermissionError):
                (path / "planted").write_text("")

    def stranger() -> None:
        with pytest.raises(PermissionError):
            run.settings.read_text()

    call_as(ordinary_user, member, group)
    call_as(other_user, stranger)


def call_as(user: OrdinaryUser, function: Callable[[], None], *groups: int) -> None:
    """Call a function as this user with these further groups, in a forked process."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups(list(groups))
            os.setgid(user.gid)
            os.setuid(user.uid)
            os.environ["HOME"] = str(user.home)
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def test_secrets_in_the_settings_are_not_shared(group: int, tmp_path: Path) -> None:
    flags = {
        "run.share": f"group:{GROUP}",
        "root": str(tmp_path),
        "job.env": {"WANDB_API_KEY": "hunter2", "STEPS": "3"},
    }
    with pytest.raises(UsageError) as refused:
        check_sharing(load(None, flags, site=None, user=Path("/nonexistent")))
    assert "job.env.WANDB_API_KEY" in str(refused.value) and "hunter2" not in str(refused.value)


def test_share_is_refused_for_unknown_groups_and_warns_of_a_closed_folder(
    group: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="no group `nosuch`"):
        check_sharing(load(None, {"run.share": "group:nosuch"}, site=None, user=Path("/nonexistent")))
    with pytest.raises(UsageError, match="group:NAME"):
        load(None, {"run.share": "world"}, site=None, user=Path("/nonexistent"))
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    flags = {"run.share": f"group:{GROUP}", "root": str(closed / "runs"), "run.on_call": ["nosuchuser"]}
    check_sharing(load(None, flags, site=None, user=Path("/nonexistent")))
    warned = capsys.readouterr().err
    assert f"may not enter {closed}" in warned and "nosuchuser (run.on_call) is not known as a member" in warned


# --- requests ---


class Operated:
    def __init__(self, run: RunDir) -> None:
        self.run_dir = run
        self.inbox: queue.SimpleQueue[ev.Event] = queue.SimpleQueue()

    def now(self) -> float:
        return 1000.0

    def post(self, event: ev.Event) -> None:
        self.inbox.put(event)

    def posted(self) -> list[ev.Event]:
        found = []
        while not self.inbox.empty():
            found.append(self.inbox.get())
        return found


@pytest.fixture
def operated(folder: Path, group: int, ordinary_user: OrdinaryUser) -> Iterator[Operated]:
    one = Operated(_make(folder, ordinary_user.name))
    lease = Lease.take(one.run_dir)
    served = RequestSocket()
    served.add(one)
    yield one
    served.close()
    lease.give_up()


def test_requests_of_a_user_on_call_reach_the_operator_with_the_kernels_name_for_the_author(
    operated: Operated, ordinary_user: OrdinaryUser, group: int
) -> None:
    def ask() -> None:
        os.environ["USER"] = "root"  # a claim that nobody reads
        for kind in ("requeue", "resume", "stop"):
            assert send_request(operated.run_dir, kind).endswith(f"uid{ordinary_user.uid}")
        send_request(operated.run_dir, "lift", nodes=["n1", "n2"])

    call_as(ordinary_user, ask, group)
    posted = operated.posted()
    assert [type(e) for e in posted] == [ev.RequeueRequested, ev.ResumeRequested, ev.StopRequested, ev.LiftRequested]
    assert {e.who for e in posted} == {f"{ordinary_user.name} (uid {ordinary_user.uid})"}  # type: ignore[attr-defined]
    assert posted[-1].nodes == ("n1", "n2")  # type: ignore[attr-defined]


def test_a_member_who_is_not_on_call_is_refused(operated: Operated, other_user: OrdinaryUser, group: int) -> None:
    def ask() -> None:
        with pytest.raises(NotPermitted, match="refuses the request") as refused:
            send_request(operated.run_dir, "stop")
        assert f"{other_user.name} (uid {other_user.uid}) is not on call" in refused.value.why

    call_as(other_user, ask, group)
    assert operated.posted() == []


def test_a_user_on_call_for_one_run_cannot_act_on_another(
    operated: Operated, folder: Path, ordinary_user: OrdinaryUser, other_user: OrdinaryUser, group: int
) -> None:
    second = Operated(_make(folder, other_user.name, name="second"))
    served = RequestSocket()
    served.add(operated)
    served.add(second)
    lease = Lease.take(second.run_dir)

    def ask() -> None:
        with pytest.raises(NotPermitted, match="refuses the request"):
            send_request(second.run_dir, "stop")
        send_request(operated.run_dir, "resume")

    try:
        call_as(ordinary_user, ask, group)
    finally:
        served.close()
        lease.give_up()
    assert second.posted() == [] and len(operated.posted()) == 1


def _raw(run: RunDir, data: bytes) -> dict[str, object]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(10)
        peer.connect("\0" + run.request_address.read_text().strip())
        if data:
            peer.send(data)
        return dict(json.loads(peer.recv(LIMIT)))


def test_malformed_large_slow_and_many_requests_are_refused_and_the_next_one_is_served(
    operated: Operated, ordinary_user: OrdinaryUser, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_socket, "READ", 0.3)
    run = operated.run_dir

    def ask() -> None:
        for data in (
            b"{",
            b"[]",
            b"[" * 60_000,
            b'{"ask": "rm"}',
            b"x" * (LIMIT + 100),
            b'{"ask": "lift", "nodes": [1]}',
        ):
            assert _raw(run, data)["ok"] is False, data[:20]
        head = {"run": run.run_id, "ask": "lift"}
        assert _raw(run, json.dumps({**head, "nodes": ["n"] * 5000}).encode())["ok"] is False
        assert "no request came" in str(_raw(run, b"")["why"])
        for _ in range(MOST):
            send_request(run, "resume")
        with pytest.raises(NotPermitted) as refused:
            send_request(run, "resume")
        assert f"{MOST} requests within a minute" in refused.value.why

    call_as(ordinary_user, ask, group)
    assert len(operated.posted()) == MOST


def test_strangers_who_hold_connections_do_not_keep_a_user_on_call_out(
    operated: Operated, ordinary_user: OrdinaryUser, other_user: OrdinaryUser, group: int
) -> None:
    name = "\0" + operated.run_dir.request_address.read_text().strip()

    def hold() -> None:
        held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(300)]
        for peer in held:
            peer.settimeout(20.0)  # the operator has ended
            request_socket._connect(peer, name)  # and never send

    stranger = threading.Thread(target=call_as, args=(other_user, hold))
    stranger.start()
    call_as(ordinary_user, lambda: print(send_request(operated.run_dir, "stop")), group)
    stranger.join()
    assert [type(e) for e in operated.posted()] == [ev.StopRequested]


def test_a_socket_that_another_user_holds_under_the_published_name_gets_nothing(
    operated: Operated, ordinary_user: OrdinaryUser, group: int
) -> None:
    """The operator has died, and somebody has taken its name."""
    run = operated.run_dir
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rogue:
        rogue.bind(f"\0transom-rogue-{os.getpid()}")
        rogue.listen(4)
        publish_text(run.request_address, f"transom-rogue-{os.getpid()}\n")
        for path in (run.path, run.request_address):  # the run is now ordinary_user's, the socket is root's
            os.chown(path, ordinary_user.uid, group)
        with pytest.raises(NotPermitted, match="not its owner's"):
            send_request(run, "stop")
        peer, _ = rogue.accept()
        with peer:
            assert peer.recv(100) == b""


def test_from_another_host_the_command_names_the_host_to_use(
    operated: Operated, ordinary_user: OrdinaryUser, group: int
) -> None:
    holder = json.loads(operated.run_dir.lease.read_text())
    publish_text(operated.run_dir.lease, json.dumps({**holder, "host": "login7", "boot": "another"}))

    def ask() -> None:
        with pytest.raises(NotPermitted) as refused:
            send_request(operated.run_dir, "stop")
        assert "is on login7" in refused.value.what and "ssh login7" in refused.value.hint

    call_as(ordinary_user, ask, group)


def test_without_a_live_operator_or_users_on_call_the_command_says_whom_to_ask(
    operated: Operated, folder: Path, ordinary_user: OrdinaryUser, group: int
) -> None:
    nobody, waiting = _make(folder, name="nobody"), _make(folder, ordinary_user.name, name="waiting")

    def ask() -> None:
        with pytest.raises(NotPermitted, match=f"The operator of the run `{waiting.run_id}` is not running"):
            send_request(run_to_request(folder / "runs", "waiting"), "stop")
        with pytest.raises(NotPermitted, match="takes requests from nobody else"):
            send_request(nobody, "stop")

    call_as(ordinary_user, ask, group)
    assert not nobody.request_address.exists()


def test_status_and_journal_show_who_requested_what(operated: Operated) -> None:
    from transom_cli.view.read import read_view
    from transom_cli.view.status import status_lines

    run = operated.run_dir
    journal = Journal(run.journal, 1)
    journal.append(ev.Started(1.0, 1))
    journal.append(ev.RequeueRequested(2.0, "bob (uid 1002)", "requeue-1-uid1002"))
    journal.close()
    lines = "\n".join(status_lines(read_view(run), 120))
    assert "requeue by bob (uid 1002)" in lines and "refused: no job is running" in lines
