"""The question `flush`, over a real connection, to ranks that are real processes."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_ranks import DEAF, NODE, UP, Ranks, wait_for

from transom_cli.layout import AttemptDir
from transom_cli.rpc.client import Client, Failed
from transom_cli.rpc.server import Server
from transom_cli.supervise.agent import procfs
from transom_cli.supervise.agent.monitor import Monitor
from transom_cli.supervise.agent.snapshot_daemon import SnapshotDaemon
from transom_cli.supervise.agent.termination import Ended, end_launch
from transom_cli.supervise.agent.verbs import Answers

LISTENS = """
from transom_cli.ckpt.save import final_checkpoint
final_checkpoint.REQUEST_WAIT = 600.0
ear = final_checkpoint.listen()
ear.at(%d)
"""
TRAINS = LISTENS + "up()\ntime.sleep(600)\n"
STUCK = (
    LISTENS
    + """
lock, held = ctypes.PyDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
lock(held)
up()
lock(held)  # for ever, and holding the GIL
"""
)


@pytest.fixture
def line(ranks: Ranks) -> Iterator[Client]:
    secret = os.urandom(32)
    ranks.beats.mkdir(mode=0o700)
    attempt, beats = AttemptDir(ranks.attempt), str(ranks.beats)
    answers = Answers(
        attempt, NODE, beats, Monitor(attempt, NODE, beats, tuple), SnapshotDaemon(beats, attempt.path, print)
    )
    server = Server(secret, f"12.0/{NODE}", frozenset({"127.0.0.1"}), answers)
    with Client.connect("127.0.0.1", server.start(), secret, f"12.0/{NODE}", 20.0) as client:
        yield client
    server.stop()


def ask(line: Client, step: object = -1, launch: int = 2) -> dict[str, object]:
    return line.call("flush", 20.0, launch=launch, step=step)


def told(listening: list[int], reached: int, keeps: list[int], ordered: int = -1) -> dict[str, object]:
    return {"listening": listening, "reached": reached, "keeps": keeps, "ordered": ordered}


def test_nobody_listens(line: Client, ranks: Ranks) -> None:
    ranks.start("up(); time.sleep(600)")
    assert ask(line) == told([], -1, []) | {"warned": False}


def test_who_handles_the_warning_before_the_limit_by_itself(line: Client, ranks: Ranks) -> None:
    handles = "signal.signal(signal.SIGUSR2, lambda *_: None)\nup(); time.sleep(600)"
    ranks.start(handles, rank=3)
    assert ask(line)["warned"] is True
    ranks.start("up(); time.sleep(600)", rank=4)
    assert ask(line)["warned"] is False, "one of them knows nothing of it"


def test_those_who_listen_and_how_far_they_are(line: Client, ranks: Ranks) -> None:
    ranks.start(TRAINS % 40, rank=3)
    ranks.start("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + TRAINS % 42, rank=11)
    ranks.start(TRAINS % 99, rank=4, launch=1)
    ranks.start(TRAINS % 99, rank=5)
    os.kill(ranks.pids[3], signal.SIGKILL)
    wait_for(lambda: procfs.read(ranks.pids[3]) is None)
    assert ask(line) == told([3, 11], 42, [3])


def test_an_order_only_grows_and_is_of_one_launch(line: Client, ranks: Ranks) -> None:
    ranks.start(TRAINS % 40)
    assert ask(line, 50) == told([3], 40, [3], 50)
    assert ask(line, 45) == told([3], 40, [3], 50)
    assert ask(line, 60) == told([3], 40, [3], 60)
    assert ask(line) == told([3], 40, [3], 60), "a question changes nothing"
    assert ask(line, launch=3) == told([], -1, []) | {"warned": False}


def test_a_rank_that_has_passed_the_step_is_told(line: Client, ranks: Ranks) -> None:
    ranks.start(TRAINS % 40)
    answer = ask(line, 40)
    assert answer["ordered"] == answer["reached"] == 40, "not certain: another step is to be ordered"


@pytest.mark.parametrize("step", [-2, 1.5, True, "7", None, 2**60])
def test_a_step_that_makes_no_sense(line: Client, step: object) -> None:
    with pytest.raises(Failed, match=rf"step is .*{re.escape(repr(step))}, (not int|neither a step nor -1)"):
        ask(line, step)


def test_a_launch_that_is_ended_takes_no_order(line: Client, ranks: Ranks) -> None:
    ranks.start(TRAINS % 40)
    assert line.call("end", 100.0, launch=2, grace=60.0) == {"killed": [], "survivors": [], "dumps": []}
    with pytest.raises(Failed, match="launch 2 is being ended"):
        ask(line, 50)


def end(ranks: Ranks, grace: float) -> Ended:
    return end_launch(ranks.attempt, 2, NODE, grace, str(ranks.beats))


def test_a_rank_that_keeps_costs_no_grace(ranks: Ranks) -> None:
    """It would wait 600 s for an order, and no more than the 60 s of grace would be waited for it."""
    ranks.start(TRAINS % 40)
    os.kill(ranks.pids[0], signal.SIGTERM)  # srun's, before ours
    assert end(ranks, 60.0) == Ended((), ())


def test_stuck_with_the_lock_of_python_it_is_killed(ranks: Ranks) -> None:
    ranks.start(STUCK % 40)
    asleep = Path(f"/proc/{ranks.pids[0]}/stat")  # of its main thread: a signal before that is heard by Python
    while asleep.read_text().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.01)
    assert [(x.pid, x.kind) for x in end(ranks, 0.5).killed] == [(ranks.pids[0], "rank")]


def test_a_folder_that_has_gone_costs_the_grace_only(ranks: Ranks) -> None:
    ranks.start(DEAF)
    assert end_launch(ranks.attempt, 2, NODE, 0.3, str(ranks.folder / "gone")).survivors == ()


def test_a_second_process_of_a_rank_does_not_take_its_place(line: Client, ranks: Ranks) -> None:
    asks = "import subprocess\nsubprocess.run([sys.executable, '-c', sys.argv[1]], check=True)\n"
    other = "from transom_cli.ckpt.save import final_checkpoint; assert final_checkpoint.listen() is None"
    ranks.command([sys.executable, "-c", UP + LISTENS % 40 + asks + "up()\ntime.sleep(600)", other])
    assert ask(line) == told([3], 40, [3])
