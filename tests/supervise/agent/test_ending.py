"""A launch ended on its node: nothing of it is left, and nothing else is touched."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_ranks import DAEMON, DEAF, NODE, SLEEP, UP, Ranks, wait_for

from transom_cli.supervise.agent import procfs, termination
from transom_cli.supervise.agent.processes import find
from transom_cli.supervise.agent.termination import Ended, end_launch, kill_ranks

SOON, AMPLE = 0.3, 60.0  # a grace that is to pass, and one that is not


def end(ranks: Ranks, grace: float = AMPLE) -> Ended:
    ended = end_launch(ranks.attempt, 2, NODE, grace)
    assert find(ranks.attempt, 2, NODE) == []
    assert [pid for pid in ranks.pids if procfs.read(pid)] == []
    return ended


def exit_record(ranks: Ranks, rank: int = 3) -> dict[str, Any]:
    return dict(json.loads((ranks.attempt / "exits" / "2" / f"rank-{rank}.json").read_text()))


def killed(ended: Ended) -> list[tuple[int, str]]:
    return [(x.pid, x.kind) for x in ended.killed]


def test_ranks_that_end_when_asked(ranks: Ranks) -> None:
    ranks.start(SLEEP, rank=3)
    saves = """
def save(*_):
    time.sleep(0.3)
    os._exit(17)
signal.signal(signal.SIGTERM, save)
up()
time.sleep(600)
"""
    ranks.start(saves, rank=4)
    assert end(ranks) == Ended((), ())
    assert (exit_record(ranks)["signal"], exit_record(ranks, 4)["code"]) == (signal.SIGTERM, 17)


def test_one_that_will_not_is_killed_and_its_end_recorded(ranks: Ranks) -> None:
    ranks.start(DEAF)
    assert killed(end(ranks, SOON)) == [(ranks.pids[0], "rank")]
    assert exit_record(ranks)["signal"] == signal.SIGKILL


def test_no_grace_at_all(ranks: Ranks) -> None:
    ranks.start(DEAF)
    assert killed(end(ranks, 0.0)) == [(ranks.pids[0], "rank")]


def test_a_stopped_one_gets_to_see_its_signal(ranks: Ranks) -> None:
    ranks.start("signal.signal(signal.SIGTERM, lambda *_: os._exit(17))\nup()\nwhile True: time.sleep(0.01)")
    os.kill(ranks.pids[0], signal.SIGSTOP)
    assert end(ranks) == Ended((), ())
    assert exit_record(ranks)["code"] == 17


def test_a_stopped_one_that_is_deaf_dies_with_its_stopped_wrapper(ranks: Ranks) -> None:
    wrapper = ranks.start(DEAF)
    os.kill(ranks.pids[0], signal.SIGSTOP)
    os.kill(wrapper, signal.SIGSTOP)
    assert killed(end(ranks, SOON)) == [(ranks.pids[0], "rank")]
    assert exit_record(ranks)["signal"] == signal.SIGKILL


def test_only_the_wanted_ranks_are_killed(ranks: Ranks) -> None:
    ranks.start(SLEEP, rank=3)
    os.kill(ranks.pids[0], signal.SIGSTOP)
    ranks.start(SLEEP, rank=4)
    assert killed(kill_ranks(ranks.attempt, 2, NODE, [3, 7])) == [(ranks.pids[0], "rank")]
    assert exit_record(ranks)["signal"] == signal.SIGKILL
    assert {member.rank for member in find(ranks.attempt, 2, NODE)} == {4}
    assert kill_ranks(ranks.attempt, 2, NODE, [3, 7]) == Ended((), ())


def test_a_daemon_is_asked_once_its_rank_is_gone(ranks: Ranks) -> None:
    ranks.start(DAEMON % "")
    assert end(ranks) == Ended((), ())


def test_no_orphan_is_left(ranks: Ranks) -> None:
    ranks.start(DAEMON % "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    assert killed(end(ranks, SOON)) == [(ranks.pids[1], "child")]


def test_workers_are_not_asked_while_their_rank_saves(ranks: Ranks) -> None:
    """A trainer that loses its data workers fails in the middle of its save."""
    code = """
import subprocess
worker = subprocess.Popen(["/bin/sleep", "600"])
def save(*_):
    time.sleep(0.5)
    os._exit(17 if worker.poll() is None else 1)
signal.signal(signal.SIGTERM, save)
up(os.getpid(), worker.pid)
time.sleep(600)
"""
    ranks.start(code)
    assert end(ranks) == Ended((), ())
    assert exit_record(ranks)["code"] == 17


def test_a_rank_behind_a_shell_is_asked_too(ranks: Ranks) -> None:
    told = (
        "signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1], 'x').close(), os._exit(0)))\nup()\ntime.sleep(600)"
    )
    path = str(ranks.folder / "saved")
    ranks.command(["/bin/sh", "-c", '"$@"; exit 7', "sh", sys.executable, "-c", UP + told, path])
    assert end(ranks) == Ended((), ())
    assert Path(path).exists()


def test_threads_that_outlive_their_first(ranks: Ranks) -> None:
    ranks.start(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\nup()\nctypes.CDLL(None).pthread_exit(None)"
    )
    assert killed(end(ranks, SOON)) == [(ranks.pids[0], "rank")]


def test_what_forks_all_the_time(ranks: Ranks) -> None:
    chain = """
if os.fork():
    time.sleep(600)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
up()
for _ in range(5000):
    time.sleep(0.002)
    if os.fork():
        os._exit(0)
"""
    ranks.start(chain)
    assert end_launch(ranks.attempt, 2, NODE, SOON).survivors == ()
    assert find(ranks.attempt, 2, NODE) == []


def test_others_are_not_touched(ranks: Ranks) -> None:
    ranks.start(SLEEP, launch=1)
    ranks.start(SLEEP, attempt=ranks.attempt_dir("12.1"))
    ranks.start(SLEEP, node="nodeY")
    ranks.plain([sys.executable, "-c", UP + SLEEP])
    others = list(ranks.pids)
    ranks.start(SLEEP)
    assert end_launch(ranks.attempt, 2, NODE, AMPLE) == Ended((), ())
    assert [procfs.read(pid) is not None for pid in others] == [True] * 4
    wait_for(lambda: procfs.read(ranks.pids[4]) is None)


def test_nothing_to_end(ranks: Ranks) -> None:
    looks: list[float] = []
    assert end_launch(ranks.attempt, 2, NODE, AMPLE, sleep=looks.append) == Ended((), ())
    assert looks == [termination.TURN], "two looks, and nothing waited for"


@pytest.mark.long
def test_what_will_not_die_is_told(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that hangs in the kernel: the signal is sent, and nothing comes of it."""
    wrapper = ranks.start(SLEEP)
    sent: list[tuple[int, int]] = []

    def send(process: procfs.Process, number: int) -> bool:
        sent.append((process.pid, number))
        return True

    monkeypatch.setattr(procfs, "send", send)
    now = [0.0]
    ended = end_launch(
        ranks.attempt, 2, NODE, 2.0, clock=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s)
    )
    rank = ranks.pids[0]
    assert [(x.pid, x.kind, x.rank, x.state) for x in ended.survivors] == [
        (wrapper, "wrapper", 3, "S"),
        (rank, "rank", 3, "S"),
    ]
    assert ended.survivors[1].comm.startswith("python")
    assert killed(ended) == [(rank, "rank"), (wrapper, "wrapper")], "the wrapper last"
    assert sent[0] == (rank, signal.SIGTERM) and (wrapper, signal.SIGTERM) not in sent
    assert 2.0 + termination.KILL_WAIT <= now[0] < 2.5 + termination.KILL_WAIT
