"""Signals of a Slurm step that reach the rank's wrapper alone, with real processes in told control groups."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from rank_place import Place, wait_for

from transom_cli.heartbeat.local_table import process
from transom_cli.supervise.agent.forwarding import only_tasks_are_signalled

V2 = "0::/system.slice/slurmstepd.scope/job_1392969/step_0/user/task_0\n"
V2_SEVERAL_SLURMD = "0::/system.slice/slurm-worker-1_slurmstepd.scope/job_4749/step_0/user/task_0\n"
# Slurm 21 with proctrack/cgroup and no task/cgroup
V1 = """13:freezer:/slurm/uid_7319/job_748468/step_0
12:cpu,cpuacct:/system.slice/slurmd.service
9:devices:/system.slice/slurmd.service
7:cpuset:/
2:memory:/system.slice/slurmd.service
1:name=systemd:/system.slice/slurmd.service
"""
V1_WITH_TASKS = """12:rdma:/
11:freezer:/slurm/uid_961166/job_62238108/step_0
10:cpuset:/slurm/uid_961166/job_62238108/step_0/task_0
8:devices:/slurm/uid_961166/job_62238108/step_0/task_0
5:pids:/system.slice/slurmd.service
4:memory:/slurm/uid_961166/job_62238108/step_0/task_0
1:name=systemd:/system.slice/slurmd.service
"""
V1_TASKS_ALONE = V1_WITH_TASKS.replace("freezer:/slurm/uid_961166/job_62238108/step_0", "freezer:/")
LINUXPROC = """10:perf_event:/
9:cpuset:/
8:memory:/system.slice/slurmd.service
7:freezer:/
1:name=systemd:/system.slice/slurmd.service
0::/system.slice/slurmd.service
"""
LOGIN = "0::/user.slice/user-1000.slice/session-3.scope\n"
NOT_SLURM = "0::/build.slice/job_12/steps/job_x/step_1/my_job_3/step_2/job_/step_4\n"


@pytest.mark.parametrize("groups", [V2, V2_SEVERAL_SLURMD, V1, V1_WITH_TASKS])
def test_in_a_step_of_proctrack_cgroup(groups: str) -> None:
    assert only_tasks_are_signalled(groups)


@pytest.mark.parametrize("groups", [V1_TASKS_ALONE, LINUXPROC, LOGIN, NOT_SLURM, "0::/\n", "", "no colons\n::\n"])
def test_anywhere_else(groups: str) -> None:
    assert not only_tasks_are_signalled(groups)


COUNTS = """
import signal, sys
def heard(number, _): print(signal.Signals(number).name, flush=True)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, heard)
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
print("ready", flush=True)
for line in sys.stdin:
    sys.exit(int(line))
"""


def line(rank: subprocess.Popen[str]) -> str:
    assert rank.stdout is not None
    return rank.stdout.readline()


@pytest.mark.parametrize("groups", [V1, V2])
def test_what_the_wrapper_alone_gets_reaches_the_rank_once(place: Place, groups: str) -> None:
    rank = place.python_in(groups, COUNTS)
    assert line(rank) == "ready\n"
    names = ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGTERM"]
    for name in names:
        wait_for(lambda: process(place.record().child)[0] == "S")  # it reads: see below
        os.kill(rank.pid, signal.Signals[name])
        assert line(rank) == f"{name}\n"
    out, err = rank.communicate("7")
    assert (rank.returncode, out, err) == (7, "", ""), "each came once"
    assert (place.exit()["code"], place.exit()["signal"]) == (7, None)


def test_rank_killed_by_a_signal_is_recorded(place: Place) -> None:
    rank = place.python_in(V2, "import time; print('ready', flush=True); time.sleep(600)")
    assert line(rank) == "ready\n"
    os.kill(rank.pid, signal.SIGTERM)
    rank.wait()
    assert rank.returncode == -signal.SIGTERM
    assert (place.exit()["code"], place.exit()["signal"]) == (None, signal.SIGTERM)


def test_rank_without_a_handler_survives_the_warning(place: Place) -> None:
    rank = place.python_in(V2, "print('ready', flush=True); input(); print('went on')")
    assert line(rank) == "ready\n"
    os.kill(rank.pid, signal.SIGUSR2)
    out, _ = rank.communicate("\n")
    assert (rank.returncode, out) == (0, "went on\n")


ENDS = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.write(1, b'ready\\n')"


def test_a_storm_of_signals_while_the_rank_ends(place: Place) -> None:
    """No pid is signalled once it is reaped, no end goes unrecorded."""
    for turn in range(10):
        rank = place.python_in(V2, ENDS)
        assert line(rank) == "ready\n"
        while rank.poll() is None:
            os.kill(rank.pid, signal.SIGTERM)
        assert (rank.returncode, place.exit()["code"], rank.stderr and rank.stderr.read()) == (0, 0, ""), turn
        (place.attempt.exits(2) / "rank-3.json").unlink()


def test_rank_that_stops_and_continues_has_not_ended(place: Place) -> None:
    rank = place.python_in(V2, COUNTS)
    assert line(rank) == "ready\n"
    child = place.record().child
    wait_for(lambda: process(child)[0] == "S")  # it reads: Python hears a signal just before that only with the next
    os.kill(child, signal.SIGSTOP)
    wait_for(lambda: process(child)[0] == "T")
    os.kill(rank.pid, signal.SIGTERM)
    os.kill(child, signal.SIGCONT)
    assert line(rank) == "SIGTERM\n"
    rank.communicate("0")
    assert rank.returncode == 0


@pytest.mark.parametrize("groups", [LINUXPROC, V1_TASKS_ALONE, LOGIN, None])
def test_wrapper_outside_a_job_writes_nothing(place: Place, groups: str | None) -> None:
    rank = place.python_in(groups, COUNTS)
    assert line(rank) == "ready\n"
    os.kill(rank.pid, signal.SIGTERM)
    wait_for(lambda: not pending(rank.pid, signal.SIGTERM))
    os.kill(place.record().child, signal.SIGUSR1)
    assert line(rank) == "SIGUSR1\n"
    out, _ = rank.communicate("0")
    assert (rank.returncode, out) == (0, "")


def pending(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.split("ShdPnd:")[1].split()[0], 16) & 1 << (number - 1))
