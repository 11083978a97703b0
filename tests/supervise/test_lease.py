"""Who is the operator: exactly one, a dead one's place is free at once, a replaced one knows it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from transom_cli.errors import OperatorAlive
from transom_cli.files import publish_text
from transom_cli.layout import RunDir
from transom_cli.supervise import lease
from transom_cli.supervise.lease import Holder, Lease, highest_epoch, operator_alive, read_holder

HOLD = """
import sys, pathlib
from transom_cli.layout import RunDir
from transom_cli.supervise.lease import Lease
Lease.take(RunDir(pathlib.Path(sys.argv[1])))
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


@pytest.fixture
def holder(run: RunDir) -> subprocess.Popen[str]:
    """Another process that is the operator."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    yield process  # type: ignore[misc]
    process.kill()
    process.wait()


def never(_seconds: float) -> None:
    raise AssertionError("no need to wait")


def write(run: RunDir, holder: Holder) -> None:
    publish_text(run.lease, lease.json.dumps(asdict(holder)))


def test_a_live_operator_is_not_replaced(run: RunDir, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(OperatorAlive) as caught:
        Lease.take(run)
    assert f"process {holder.pid} on" in caught.value.why
    assert caught.value.exit_code == 11
    assert highest_epoch(run) == 1


def test_a_dead_one_is_replaced_at_once(run: RunDir, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    assert operator_alive(run, sleep=never) is None
    assert Lease.take(run).epoch == 2


def test_a_stopped_one_counts_as_alive(run: RunDir, holder: subprocess.Popen[str]) -> None:
    """SIGSTOP may end at any moment: two hands on one job would be worse than a pause. `kill` it to replace it."""
    holder.send_signal(signal.SIGSTOP)
    os.waitpid(holder.pid, os.WUNTRACED)
    assert operator_alive(run, sleep=never) is not None
    with pytest.raises(OperatorAlive):
        Lease.take(run)


def test_a_recycled_pid_is_somebody_else(run: RunDir) -> None:
    mine = Lease.take(run)
    told = read_holder(run)
    assert told is not None and told.pid == os.getpid()
    write(run, replace(told, start=told.start - 1))
    assert operator_alive(run, sleep=never) is None
    assert Lease.take(run).epoch == mine.epoch + 1


def test_two_that_start_together_are_not_both_it(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rival comes between the question who lives and the taking."""
    asked = lease.operator_alive
    rivals: list[Lease] = []

    def and_then_a_rival(run: RunDir) -> Holder | None:
        answer = asked(run)
        monkeypatch.setattr(lease, "operator_alive", asked)
        rivals.append(Lease.take(run))
        return answer

    monkeypatch.setattr(lease, "operator_alive", and_then_a_rival)
    with pytest.raises(OperatorAlive, match="has just started"):
        Lease.take(run)
    assert [r.epoch for r in rivals] == [1]
    assert not rivals[0].fenced()


def test_of_many_one_wins(run: RunDir) -> None:
    barrier, won, lost = threading.Barrier(8), [], []

    def start() -> None:
        barrier.wait()
        try:
            won.append(Lease.take(run))
        except OperatorAlive as error:
            lost.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 7)


def test_a_replaced_operator_knows_it_and_leaves_the_lease_alone(run: RunDir) -> None:
    old = Lease.take(run)
    assert not old.fenced()
    told = read_holder(run)
    assert told is not None
    write(run, replace(told, start=told.start - 1))
    new = Lease.take(run)
    assert old.fenced() and not new.fenced()
    old.give_up()
    after = read_holder(run)
    assert after is not None and (after.epoch, after.released) == (2, False)


def test_what_is_given_up_is_free_at_once(run: RunDir) -> None:
    Lease.take(run).give_up()
    assert operator_alive(run, sleep=never) is None
    assert Lease.take(run).epoch == 2


def test_from_another_host_the_renewals_tell(run: RunDir) -> None:
    Lease.take(run)
    told = read_holder(run)
    assert told is not None
    far = replace(told, boot="another boot", host="login2", pid=1, start=1)
    write(run, far)
    assert operator_alive(run, patience=0.0) is None, "it renews no more"
    beats = iter(range(1, 9))
    alive = operator_alive(run, sleep=lambda _s: write(run, replace(far, renewals=next(beats))), patience=60.0)
    assert alive is not None and alive.host == "login2"


def test_one_that_died_before_it_wrote_its_lease(run: RunDir) -> None:
    run.epochs.mkdir()
    (run.epochs / "1").touch()
    assert operator_alive(run, patience=0.0) is None


FENCED = """
import sys, pathlib
from transom_cli.layout import RunDir
from transom_cli.supervise.lease import Lease
lease = Lease.take(RunDir(pathlib.Path(sys.argv[1])))
print(lease.fenced(), flush=True)
for _line in sys.stdin:
    print(lease.fenced(), flush=True)
"""


def test_over_nfs_one_that_is_replaced_from_another_host_soon_knows_it(run: RunDir) -> None:
    """Its client believes for long that there is no newer epoch: it looked for one, and there was none."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists() or shutil.which("unshare") is None:
        pytest.skip("needs root, FUSE and unshare")
    pytest.importorskip("mfusepy")
    view = [sys.executable, "-m", "transom_cli.sandbox.stale_view", "nfs=600", str(run.path), "-"]
    command = [*view, sys.executable, "-c", FENCED, str(run.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as replaced:
        assert replaced.stdin is not None and replaced.stdout is not None
        assert replaced.stdout.readline() == "False\n"
        (run.epochs / "2").touch()
        deadline = time.monotonic() + 60.0
        told = ""
        while told != "True\n":
            assert time.monotonic() < deadline
            time.sleep(0.2)
            replaced.stdin.write("\n")
            replaced.stdin.flush()
            told = replaced.stdout.readline()
        replaced.stdin.close()


def test_operator_whose_epoch_was_purged_is_not_replaced(run: RunDir, holder: subprocess.Popen[str]) -> None:
    """What was seen: epochs are written once, so a purge of old files deletes them. A second operator took the run."""
    shutil.rmtree(run.epochs)
    with pytest.raises(OperatorAlive):
        Lease.take(run)


def test_next_epoch_follows_the_journal_if_nothing_else_is_left(run: RunDir) -> None:
    assert Lease.take(run, 6).epoch == 7, "records of an older epoch would not count"
