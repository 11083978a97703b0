"""Which process is which rank, as lines that are no failures say: who failed if the failure names only a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from transom_cli.diagnose.clue import Culprit
from transom_cli.diagnose.logs.diagnosis import diagnose_logs
from transom_cli.diagnose.logs.rule_files import load
from transom_cli.diagnose.logs.rulebook import Rulebook

BOOK = Rulebook(load())
RAISED = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nValueError: bad shard\n'
INIT = (
    "gpu{0}:{1}:{1} [{2}] NCCL INFO ncclCommInitRank comm 0x5{3} rank {3} nranks {4} cudaDev {2} nvmlDev {2} "
    "busId {5}b000 commId 0x{6} - Init START\n"
)
FOUR = "".join(INIT.format(n // 2 + 1, 800 + n, n % 2, n, 4, n % 2 + 1, 1) for n in range(4))
CHANNELS = "".join(f"gpu1:{800 + n}:{900 + n} [{n}] NCCL INFO Channel 00/0 : 0[0] -> 1[1]\n" for n in range(4))
SIGNAL = "[gpu2:803:0:811] Caught signal 11 (Segmentation fault)\n"
KERNEL = "Jan  5 03:17:51 gpu2 kernel: "
WATCHDOG = (
    "[rank{0}]:[E] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, "
    "Timeout(ms)=600000) ran for 600043 milliseconds before timing out.\n"
)
THREE = "".join(map(WATCHDOG.format, range(3)))
LAUNCHED = (
    "[2026-01-05 03:17:51,376] [INFO] [launch.py:253:main] process 80{0} spawned with command: ['python', 'train.py', "
    "'--local_rank={0}']\n"
)
ENDED = "[2026-01-05 03:18:51,376] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 80{0}\n"
DEEPSPEED = (
    "[ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py', '--local_rank=3'] exits with return code = -11\n"
)
FAILED = "failed (exitcode: 1) local_rank: 1 (pid: 4711) of binary: /usr/bin/python\n"
BOX = "  host      : gpu2\n  rank      : 5 (local_rank: 1)\n  exitcode  : -9 (pid: 803)\n"
OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.11 GiB"
ASCEND = "[ERROR] 2026-01-05-03:17:51 (PID:4711, Device:3, RankID:{}) ERR00100 PTA call acl api failed.\n"
CLOSED = "gpu1:80{0}:900 [{0}] NCCL INFO [Service thread] Connection closed by localRank {1}\n"


def box(second: int, rank: int, code: int = 1) -> str:
    """The report of the agent on one node."""
    head = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \nRoot Cause (first observed failure):\n"
    where = f"  host      : gpu{rank // 4}\n  rank      : {rank} (local_rank: 0)\n"
    ended = f"  exitcode  : {code} (pid: 70{rank})\n  error_file: <N/A>\n  traceback : -\n"
    return f"{head}[0]:\n  time      : 2026-01-05_03:17:{second:02d}\n{where}{ended}"


def alike(*ranks: int) -> str:
    """One report of several ranks, with the same exit code and time."""
    where = "  time      : 2026-01-05_03:17:51\n  host      : gpu1\n"
    return "".join(f"{where}  rank      : {n} (local_rank: {n})\n  exitcode  : 1 (pid: 70{n})\n" for n in ranks)


def local(text: str) -> str:
    return "".join(f"[default1]:{line}\n" for line in text.splitlines())


WHO = [
    # NCCL's lines about its communicators
    (FOUR + SIGNAL, Culprit("gpu2", 3)),
    (FOUR + KERNEL + "Out of memory: Killed process 803 (python) total-vm:1kB, anon-rss:2kB\n", Culprit("gpu2", 3)),
    (FOUR + KERNEL + "Killed process 803 (python), UID 1000, total-vm:1kB, anon-rss:2kB\n", Culprit("gpu2", 3)),
    (FOUR + KERNEL + "Out of memory: Killed process 999 (python) total-vm:1kB, anon-rss:2kB\n", Culprit("gpu2")),
    (
        FOUR + KERNEL + "python[802]: segfault at 18 ip 00007f sp 00007f error 4 in libtorch.so[7f+1]\n",
        Culprit("gpu2", 2),
    ),
    (
        FOUR + KERNEL + "NVRM: Xid (PCI:0000:2b:00): 79, pid=1, GPU has fallen off the bus.\n",
        Culprit("gpu2", 3, "0000:2b:00.0"),
    ),
    (FOUR + "gpu2:803:900 [1] NCCL WARN NET/IB : mlx5_2:1 Got async event : port error\n", Culprit("gpu2", 3, "1")),
    # smaller communicators count their own numbers
    (FOUR + INIT.format(2, 803, 1, 1, 2, 2, 2) + SIGNAL, Culprit("gpu2", 3)),
    (INIT.format(1, 800, 0, 0, 1, 1, 1) + INIT.format(2, 803, 1, 0, 1, 2, 2) + SIGNAL, Culprit("gpu2")),
    (FOUR + INIT.format(3, 804, 0, 0, 2, 1, 2) + SIGNAL, Culprit("gpu2")),
    # without them: on one node, the device is the rank
    (
        CHANNELS + "gpu1:802:950 [2] include/alloc.h:65 NCCL WARN Cuda failure 2 'out of memory'\n",
        Culprit("gpu1", 2, "2"),
    ),
    # launchers
    ("".join(map(LAUNCHED.format, range(4))) + "[gpu1:802:0:811] Caught signal 11\n", Culprit("gpu1", 2)),
    ("nnodes=2\n" + "".join(map(LAUNCHED.format, range(4))) + "[gpu1:802:0:811] Caught signal 11\n", Culprit("gpu1")),
    (DEEPSPEED, None),  # DeepSpeed prints the command that it has started last
    (LAUNCHED.format(0) + RAISED, Culprit(rank=0)),
    (BOX + "Memory cgroup out of memory: Killed process 803 (python) total-vm:1kB\n", Culprit("gpu2", 5)),
    ("(Worker_TP2 pid=802) started\nOut of memory: Killed process 802 (python) total-vm:1kB\n", Culprit(rank=2)),
    ("pid 802, rank 2\nOut of memory: Killed process 802 (python) total-vm:1kB\n", Culprit(rank=2)),
    (
        "[gpu3:04711] *** reported by process [29973,5]\n[gpu3:04711] *** MPI_ERRORS_ARE_FATAL (processes in this\n",
        Culprit("gpu3", 5),
    ),
    ("#  Rank  1 Group  0 Pid   803 on     gpu2 device  0 [0x1b] NVIDIA H100\n" + SIGNAL, Culprit("gpu2", 1)),
    # a local rank is the rank on one node; on several, if the log shows which one
    (local(RAISED), Culprit(rank=1)),
    ("world_size=16\n" + local(RAISED), None),
    ("--nnodes=2\n" + local(RAISED), None),
    (
        "  host      : gpu2\n  rank      : 8 (local_rank: 0)\n  exitcode  : -15 (pid: 8)\n" + local(RAISED),
        Culprit("gpu2", 8),
    ),
    (RAISED + FAILED, Culprit(rank=1)),
    ("local_ranks=[0, 1]\nglobal_ranks=[2, 3]\n" + RAISED + FAILED, Culprit(rank=3)),
    ("global_ranks=[0, 1]\nglobal_ranks=[2, 3]\n" + RAISED + FAILED, None),
    (RAISED.replace("bad shard", OOM) + "".join(map(ENDED.format, range(4))), Culprit(rank=3)),
    (RAISED.replace("bad shard", OOM), None),
    (RAISED + ASCEND.format(5), Culprit(rank=5)),
    (RAISED + ASCEND.format(-1), Culprit(rank=3, device="3")),
    # of several agents, the one that reports the earliest failure
    (RAISED + box(55, 0) + box(51, 8), Culprit("gpu2", 8)),
    (RAISED + box(51, 8) + box(55, 0), Culprit("gpu2", 8)),
    (box(55, 0) + box(51, 8), Culprit("gpu2", 8)),
    (box(51, 8, -9) + box(55, 0), Culprit("gpu2", 8)),
    (box(1, 8) + box(55, 0).replace("03:17", "03:19"), Culprit("gpu0", 0)),  # a later launch
    # if all raised alike at once, the one that it saw first is any
    (RAISED + alike(0, 1, 2), None),
    (RAISED + "Sending process 4711 closing signal SIGTERM\n" + alike(0, 1, 2), Culprit("gpu1", 2)),
    (RAISED + alike(0, 1), Culprit("gpu1", 1)),
    ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n" + alike(0, 1, 2), Culprit("gpu1", 2)),
    # who has closed its connections first
    (RAISED + CLOSED.format(0, 1) + CLOSED.format(2, 1) + CLOSED.format(2, 0), Culprit(rank=1)),
    (2 * RAISED + CLOSED.format(0, 1), None),  # all ranks raise it
    # who does not cry
    (THREE, None),
    ("world_size: 4\n" + THREE, Culprit(rank=3)),
    ("local_world_size: 4\n" + THREE, None),
    ("[rank3]: epoch begins\n" + THREE, Culprit(rank=3)),
    ("world size 64\n" + THREE, None),
    # headings
    ("==> logs/rank-2.log <==\nstep 1\n==> logs/rank-3.log <==\nstep 1\n" + RAISED, Culprit(rank=3)),
    ("==> train_gpu3.log <==\n" + RAISED, Culprit("gpu3")),
    ("----------Begin global rank 3 STDERR----------\n" + RAISED, Culprit(rank=3)),
    ("# rank 1\nstep 1\n# rank 2\nstep 1\n" + RAISED, Culprit(rank=2)),
    ("rank: 3,\nrank=3\n- rank: 3\nrank 3\n" + RAISED, None),
]


@pytest.mark.parametrize(("text", "who"), WHO, ids=range(len(WHO)))
def test_who_is_to_blame(tmp_path: Path, text: str, who: Culprit | None) -> None:
    (tmp_path / "job.out").write_text(text)
    assert diagnose_logs([tmp_path], BOOK).incidents[0].culprits == ((who,) if who else ())


@pytest.mark.parametrize("why", ["DUE TO TIME LIMIT ***", "DUE TO PREEMPTION ***", "***"])
def test_nobody_is_to_blame_for_an_end_from_outside(tmp_path: Path, why: str) -> None:
    end = f"slurmstepd: error: *** JOB 7 ON gpu1 CANCELLED AT 2026-01-05T03:17:51 {why}\n"
    (tmp_path / "job.out").write_text(FOUR + end + CLOSED.format(0, 1) + "srun: error: gpu2: task 3: Terminated\n")
    assert diagnose_logs([tmp_path], BOOK).incidents[0].culprits == ()
