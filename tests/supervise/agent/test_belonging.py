"""Whose a process is, with real ones under the real wrapper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from agent_ranks import DAEMON, NODE, SLEEP, UP, WRAPPER, Ranks, wait_for

from transom_cli.supervise.agent import procfs
from transom_cli.supervise.agent.processes import Member, find

Row = tuple[int, str, int | None]


def rows(ranks: Ranks) -> list[Row]:
    return [row(m) for m in find(ranks.attempt, 2, NODE)]


def row(member: Member) -> Row:
    return member.pid, member.kind, member.rank


def test_wrapper_rank_and_what_it_started(ranks: Ranks) -> None:
    wrapper = ranks.start("child = os.fork() or time.sleep(600)\nup(os.getpid(), child)\ntime.sleep(600)")
    rank, child = ranks.pids
    assert rows(ranks) == [(wrapper, "wrapper", 3), (rank, "rank", 3), (child, "child", 3)]


def test_a_daemon_that_left_its_session_and_lost_its_parent(ranks: Ranks) -> None:
    wrapper = ranks.start(DAEMON % "")
    rank, daemon = ranks.pids
    assert sorted(rows(ranks)) == sorted([(wrapper, "wrapper", 3), (rank, "rank", 3), (daemon, "child", 3)])


def test_a_descendant_whose_environment_says_nothing(ranks: Ranks) -> None:
    start = "import subprocess; p = subprocess.Popen(['/bin/sleep', '600'], env={}); up(os.getpid(), p.pid); p.wait()"
    ranks.start(start)
    assert (ranks.pids[1], "child", 3) in rows(ranks)


def test_a_job_that_a_rank_submitted_is_another_one(ranks: Ranks) -> None:
    """sbatch hands the environment on, and the new job may run on a node of this one."""
    code = """
import subprocess
sleep = "import time; time.sleep(600)"
jobs = (os.environ | {"SLURM_JOB_ID": n} for n in ("12", "77"))
made = [subprocess.Popen([sys.executable, "-c", sleep], env=env, start_new_session=True) for env in jobs]
if os.fork():
    up(*(p.pid for p in made))
    os._exit(0)
time.sleep(600)
"""
    ranks.start(code)
    same, other = ranks.pids
    wait_for(lambda: all((process := procfs.read(pid)) is not None and process.ppid == 1 for pid in ranks.pids))
    pids = [pid for pid, _, _ in rows(ranks)]
    assert same in pids and other not in pids


def test_a_rank_behind_a_shell(ranks: Ranks) -> None:
    wrapper = ranks.command(["/bin/sh", "-c", '"$@"; exit 7', "sh", sys.executable, "-c", UP + SLEEP])
    (python,) = ranks.pids
    found = find(ranks.attempt, 2, NODE)
    assert [(m.kind, m.python) for m in found] == [("wrapper", False), ("rank", False), ("rank", True)]
    assert (found[0].pid, found[2].pid) == (wrapper, python)


def test_ranks_that_torchrun_started(ranks: Ranks) -> None:
    code = """
import subprocess
sleep = "import os, time; os.fork(); time.sleep(600)"
made = [subprocess.Popen([sys.executable, "-c", sleep], env=os.environ | {"RANK": n}) for n in ("6", "7")]
up(os.getpid(), *(p.pid for p in made))
made[0].wait()
"""
    wrapper = ranks.start(code, flags="--torchrun")
    launcher, six, seven = ranks.pids
    wait_for(lambda: len(rows(ranks)) == 6)
    found = rows(ranks)
    expected: list[Row] = [(wrapper, "wrapper", None), (launcher, "rank", None), (six, "rank", 6), (seven, "rank", 7)]
    assert [r for r in found if r[1] != "child"] == expected
    assert sorted(r[2] or 0 for r in found if r[1] == "child") == [6, 7]


def test_who_beats_is_the_rank(ranks: Ranks) -> None:
    """Also behind a launcher in Python that hands its own number on."""
    beat = UP + "from transom_cli import beat\nbeat(1)\nup()\ntime.sleep(600)"
    ranks.start(f"import subprocess\nsubprocess.run([sys.executable, '-c', {beat!r}])")
    found = find(ranks.attempt, 2, NODE)
    assert [(m.kind, m.beats) for m in found] == [("wrapper", False), ("rank", False), ("rank", True)]
    assert found[2].pid == ranks.pids[0]


def test_others_are_none_of_it(ranks: Ranks) -> None:
    ranks.start(SLEEP, attempt=ranks.attempt_dir("12.1"))
    ranks.start(SLEEP, node="nodeY")
    ranks.start(SLEEP, launch=3)
    as_agent = {"TRANSOM_ATTEMPT_DIR": str(ranks.attempt), "TRANSOM_LAUNCH": "2", "TRANSOM_ROLE": "agent"}
    ranks.plain([sys.executable, "-c", UP + SLEEP], **as_agent)
    # like an srun, which has the whole command of the wrapper in its own
    words = [
        sys.executable,
        "-I",
        "-S",
        str(WRAPPER),
        "--attempt-dir",
        str(ranks.attempt),
        "--launch",
        "2",
        "--",
        "true",
    ]
    ranks.plain([sys.executable, "-c", UP + SLEEP, *words])
    assert len(ranks.pids) == 5
    assert rows(ranks) == []


def test_the_caller_is_none_of_it(ranks: Ranks) -> None:
    """Even where its environment claims so, as that of an agent started from a rank's shell would."""
    look = (
        "from transom_cli.supervise.agent.processes import find; "
        "print([m.pid for m in find(*sys.argv[1:2], 2, 'nodeX')])"
    )
    claim = {"TRANSOM_ATTEMPT_DIR": str(ranks.attempt), "TRANSOM_LAUNCH": "2", "TRANSOM_ROLE": "rank"}
    words = [sys.executable, "-c", f"import sys; {look}", str(ranks.attempt)]
    env = {**os.environ, **claim, "PYTHONPATH": str(WRAPPER.parents[3])}
    assert subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_recycled_pid_is_somebody_else(ranks: Ranks) -> None:
    ranks.start(SLEEP)
    now = procfs.read(ranks.pids[0])
    assert now is not None
    assert not procfs.send(replace(now, start=now.start - 1), signal.SIGKILL)
    assert procfs.read(now.pid) is not None
    assert procfs.send(now, signal.SIGKILL)
    wait_for(lambda: procfs.read(now.pid) is None)
    assert not procfs.send(now, signal.SIGKILL)


def test_without_pidfds_the_start_time_still_guards(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused)
    ranks.start(SLEEP)
    now = procfs.read(ranks.pids[0])
    assert now is not None and not procfs.send(replace(now, start=now.start - 1), signal.SIGKILL)
    assert procfs.send(now, signal.SIGKILL)
    wait_for(lambda: procfs.read(now.pid) is None)


def test_a_zombie_is_gone_but_not_one_whose_threads_live(ranks: Ranks) -> None:
    """The kernel shows the first thread's state for the process, and that thread may end alone."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    wait_for(lambda: procfs._bytes(f"/proc/{ended.pid}/stat").rpartition(b")")[2].split()[0] == b"Z")
    assert procfs.read(ended.pid) is None
    ended.wait()
    thread = "threading.Thread(target=time.sleep, args=(600,)).start()\nup()\nctypes.CDLL(None).pthread_exit(None)"
    ranks.start(thread)
    (pid,) = ranks.pids
    wait_for(lambda: procfs._bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0] == b"Z")
    wait_for(lambda: (found := procfs.read(pid)) is not None and found.state == "S")  # its other thread sleeps
    assert (pid, "rank", 3) in rows(ranks)
    assert procfs.environ(pid)["TRANSOM_LAUNCH"] == "2"
