"""Who is to blame, by what launchers print about the end of their processes, and by labels of ranks and nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from transom_cli.diagnose.clue import Category, Culprit
from transom_cli.diagnose.logs.cause import Incident
from transom_cli.diagnose.logs.diagnosis import diagnose_logs
from transom_cli.diagnose.logs.grammar import record
from transom_cli.diagnose.logs.named import named
from transom_cli.diagnose.logs.rule_files import load
from transom_cli.diagnose.logs.rulebook import Rulebook

BOOK = Rulebook(load())
RAISED = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nValueError: bad shard\n'
LABELLED = "".join(f"[rank{{0}}]: {line}\n" for line in RAISED.splitlines()[:2]) + "[rank{0}]: {1}\n"
TERMINATING = "srun: Terminating StepId=7.0\n"
HYDRA = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
SPAWN = "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with "
NOTICED = "{0} noticed that process rank 5 with PID 4711 on node gpu3 exited on signal {1} ({2}).\n"
RAYLET = "(raylet) [2026-01-05 03:17:51,241 E 17 17] (raylet) node_manager.cc:3064: 2 Workers (tasks / actors) killed "
PADDLE = "Container rank 2 status failed cmd ['python', 'train.py'] code {0} log log/workerlog.2\n"
PMIX = (
    "slurmstepd: error:  mpi/pmix_v4: _errhandler: gpu{0} [0]: pmixp_client_v2.c:211: Error handler invoked: "
    "status = -61, source = [slurm.pmix.7.0:{0}]\n"
)
LOST = (
    "[rank{0}]: RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.{1}]:39271\n"
)
WAITS = (
    "[rank{0}]:[E] [PG ID 0 PG GUID {1} Rank {0}] Timeout at NCCL work: {2}, last enqueued NCCL work: {3}, last "
    "completed NCCL work: {4}.\n"
)
BARRIER = (
    "[rank{0}]: RuntimeError: Timed out initializing process group in store based barrier on rank: {0}, for key: "
    "store_based_barrier_key:1 (world_size=4, worker_count=3, timeout=0:30:00)\n"
)
LATE = "XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: b0. Timed out task names:\n"


def task(node: str, tasks: str, end: str = "Exited with exit code 1") -> str:
    return f"srun: error: {node}: task{'s' if '-' in tasks else ''} {tasks}: {end}\n"


def jax(*ranks: int) -> str:
    return "".join(f"/job:jax_worker/replica:0/task:{rank}\n" for rank in ranks)


def entry(number: int, rank: int, code: int, text: str = "") -> str:
    said = f"  exitcode  : {code} (pid: 4711)\n  error_file: <N/A>\n  traceback : {text or '-'}\n"
    return f"[{number}]:\n  host      : gpu1\n  rank      : {rank} (local_rank: {rank})\n{said}"


def box(*failures: str) -> str:
    head = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\ntrain.py FAILED\n----\nFailures:\n"
    )
    return head + "".join(failures[1:]) + "----\nRoot Cause (first observed failure):\n" + failures[0]


def first(tmp_path: Path, text: str) -> Incident:
    (tmp_path / "job.out").write_text(text)
    return diagnose_logs([tmp_path], BOOK).incidents[0]


WHO = [
    # who ends before srun ends the others, though the exception has no label
    (RAISED + task("gpu3", "3") + TERMINATING + task("gpu1", "0"), Category.USER_CODE, Culprit("gpu3", 3)),
    (RAISED + task("gpu3", "3") + task("gpu1", "0"), Category.USER_CODE, None),
    (task("gpu1", "0-1", "Bus error") + task("gpu2", "2-3", "Bus error"), Category.PROCESS_CRASH, None),
    # an abort of MPI: the rank that aborts exits last, the others are killed
    (
        "[gpu3:4711] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n"
        + task("gpu1", "0", "Killed")
        + task("gpu3", "1", "Exited with exit code 1"),
        Category.PROCESS_CRASH,
        Culprit("gpu3", 1),
    ),
    (
        "MPICH ERROR [Rank 3] [job id 7.0] [Mon Jan  5 03:17:51 2026] [nid0012] - Abort(2030) (rank 3 in comm 0): "
        "Fatal error in PMPI_Allreduce: Other MPI error, error stack:\n",
        Category.PROCESS_CRASH,
        Culprit("nid0012", 3),
    ),
    # what names the node or the rank in a line of its own
    (HYDRA + "=   PID 4711 RUNNING AT gpu3\n=   EXIT CODE: 139\n", Category.PROCESS_CRASH, Culprit("gpu3")),
    (
        HYDRA + "=   RANK 5 PID 4711 RUNNING AT gpu3\n=   KILLED BY SIGNAL: 9 (Killed)\n",
        Category.HOST_OOM,
        Culprit("gpu3", 5),
    ),
    (HYDRA + "=   PID 4711 RUNNING AT me@gpu3\n=   EXIT CODE: 9\n", Category.HOST_OOM, Culprit("gpu3")),
    (
        "mpirun detected that one or more processes exited with non-zero status, thus causing\n\n"
        "  Process name: [[29973,1],10]\n  Exit code:    3\n",
        Category.UNKNOWN,
        Culprit(rank=10),
    ),
    ("[gpu3:4711:0:4712] Caught signal 11 (Segmentation fault)\n" * 3, Category.PROCESS_CRASH, Culprit("gpu3")),
    (
        "[gpu3:4711:0:4712] Caught signal 11 (Segmentation fault)\n[gpu4:4711:0:4712] Caught signal 11 (Segmentation "
        "fault)\n",
        Category.PROCESS_CRASH,
        None,
    ),
    ("pdsh@head: worker-2: ssh exited with exit code 1\n", Category.UNKNOWN, Culprit("worker-2")),
    ("ssh: connect to host gpu3 port 22: No route to host\n", Category.NETWORK_FABRIC, Culprit("gpu3")),
    ("salloc: Prolog hung on node gpu3\n", Category.SLURM_LAUNCH, Culprit("gpu3")),
    # other launchers
    ("[2]<stderr>:" + RAISED.replace("\n", "\n[2]<stderr>:", 2), Category.USER_CODE, Culprit(rank=2)),
    ("x\nProcess 3 exit with status code 1.\n", Category.UNKNOWN, Culprit(rank=3)),
    (SPAWN + "signal SIGKILL\n", Category.HOST_OOM, Culprit(rank=1)),
    (SPAWN + "signal SIGSEGV\n", Category.PROCESS_CRASH, Culprit(rank=1)),
    (SPAWN + "signal SIGABRT\n", Category.PROCESS_CRASH, Culprit(rank=1)),
    (SPAWN + "exit code 3\n", Category.UNKNOWN, Culprit(rank=1)),
    (
        "[rank: 2] Child process with PID 4711 terminated with code 1. Forcefully terminating\n",
        Category.UNKNOWN,
        Culprit(rank=2),
    ),
    (PADDLE.format(-9), Category.HOST_OOM, Culprit(rank=2)),
    (PADDLE.format(1), Category.UNKNOWN, Culprit(rank=2)),
    (
        RAYLET + "due to memory pressure (OOM), 0 crashed at node (ID: 1a2b, IP: 10.0.0.7)\n",
        Category.HOST_OOM,
        Culprit("10.0.0.7"),
    ),
    (
        "WARNING worker.py:1462 -- The node with node id: 1a2b and ip: 10.0.0.7 has been marked dead because the "
        "detector has missed too many heartbeats from it.\nThe actor died unexpectedly before finishing this task.\n",
        Category.PROCESS_CRASH,
        Culprit("10.0.0.7"),
    ),
    # in the launcher's own words
    (NOTICED.format("mpirun", 11, "Segmentation fault"), Category.PROCESS_CRASH, Culprit("gpu3", 5)),
    (NOTICED.format("prterun", 6, "Aborted"), Category.PROCESS_CRASH, Culprit("gpu3", 5)),
    (
        "[gpu1:4711:0:4712] Caught signal 11 (Segmentation fault)\n"
        + NOTICED.format("prterun", 11, "Segmentation fault"),
        Category.PROCESS_CRASH,
        Culprit("gpu3", 5),
    ),
    (
        "Fatal error in PMPI_Allreduce: Other MPI error, error stack:\n"
        "gpu3.hsn.example: rank 5 exited with code 255\ngpu3.hsn.example: rank 4 died from signal 15\n",
        Category.PROCESS_CRASH,
        Culprit("gpu3.hsn.example", 5),
    ),
    ("gpu3.hsn.example: rank 5 died from signal 9\n", Category.HOST_OOM, Culprit("gpu3.hsn.example", 5)),
    (
        "9.4s: flux-shell[1]: ERROR: oom: Memory cgroup out of memory: killed 1 task on gpu3.\n"
        "39.1s: flux-shell[0]: FATAL: doom: rank 5 on host gpu3 exited and exit-timeout=30s has expired\n",
        Category.HOST_OOM,
        Culprit("gpu3", 5),
    ),
    ("Global rank 5 (PID 4711) exited with code 1\n", Category.UNKNOWN, Culprit(rank=5)),
    ("ERROR:composer.cli.launcher:Rank 5 crashed with exit code -9.\n", Category.HOST_OOM, Culprit(rank=5)),
    ("ERROR:composer.cli.launcher:Rank 5 crashed with exit code -7.\n", Category.PROCESS_CRASH, Culprit(rank=5)),
    (
        "ERROR:  One or more process (first noticed rank 5) terminated with signal 11\n",
        Category.PROCESS_CRASH,
        Culprit(rank=5),
    ),
    (
        "[gpu3:mpi_rank_5][error_sighandler] Caught error: Segmentation fault (signal 11)\n",
        Category.PROCESS_CRASH,
        Culprit("gpu3", 5),
    ),
    ("application called MPI_Abort(MPI_COMM_WORLD, 1) - process 5\n", Category.USER_CODE, Culprit(rank=5)),
    ("rank 5 in job 1  gpu3_4711   caused collective abort of all ranks\n", Category.PROCESS_CRASH, Culprit(rank=5)),
    ("[5]PETSC ERROR: Caught signal number 11 SEGV: Segmentation Violation\n", Category.PROCESS_CRASH, Culprit(rank=5)),
    (
        "ERROR 01-05 03:17:51 [multiproc_executor.py:140] Worker proc VllmWorker-5 died unexpectedly, shutting down.\n",
        Category.PROCESS_CRASH,
        Culprit(rank=5),
    ),
    (
        "Memory access fault by GPU node-9 (Agent handle: 0x2b) on address 0x7f. Reason: Unknown.\n"
        + task("gpu3", "5", "Aborted (core dumped)"),
        Category.CUDA_KERNEL_FAULT,
        Culprit("gpu3", 5),
    ),
    (
        "subprocess.CalledProcessError: Command 'ssh -o BatchMode=yes 10.0.0.7 hostname' returned non-zero exit "
        "status 255.\n",
        Category.UNKNOWN,
        Culprit("10.0.0.7"),
    ),
    ("1.7e+09 DEBUG events Pod: jobs.train-worker-2 exited with code 1\n", Category.UNKNOWN, Culprit("train-worker-2")),
    (
        "ray.exceptions.RayTaskError(RuntimeError): ray::Worker.run() (pid=17, ip=10.0.0.7, actor_id=1a)\n"
        '  File "w.py", line 3, in run\nRuntimeError: CUDA error: an illegal memory access was encountered\n',
        Category.CUDA_KERNEL_FAULT,
        Culprit("10.0.0.7"),
    ),
    (
        task("gpu1", "0")
        + "run.sh: line 12: 4711 Aborted                 (core dumped) ./train\n"
        + task("gpu2", "1", "Exited with exit code 134")
        + "gpu2:4711:4712 [0] misc/socket.cc:50 NCCL WARN Net : Connection closed by remote peer gpu1.x<45074>\n",
        Category.PROCESS_CRASH,
        Culprit("gpu1", 0),
    ),
    # in a framework's
    (
        "AssertionError: Rank 5: found NaN in local grad norm in backward pass. Device: 1, node: gpu3\n",
        Category.NUMERIC_DIVERGENCE,
        Culprit(rank=5),
    ),
    (
        "[rank5]: RuntimeError: Rank 5, node gpu3, device 1, step 7: Unexpected result nan (message='found NaN')\n",
        Category.NUMERIC_DIVERGENCE,
        Culprit("gpu3", 5),
    ),
    (
        "".join(f"AssertionError: Rank {n}: found NaN in local grad norm in backward pass\n" for n in (4, 5)),
        Category.NUMERIC_DIVERGENCE,
        None,
    ),
    # if all ranks report wrong arguments, no rank is blamed
    ("".join(f"[rank{n}]: train.py: error: unrecognized arguments: --x\n" for n in (1, 0)), Category.USER_CODE, None),
    (LABELLED.format(5, "ValueError: x") + LABELLED.format(0, "OSError: y"), Category.USER_CODE, Culprit(rank=5)),
    # who does not come: listed below the message; all but the first are rather not there at all
    (LATE + jax(3), Category.RENDEZVOUS_PORT, Culprit(rank=3)),
    (LATE + jax(1, 3, 2), Category.RENDEZVOUS_PORT, None),
    (
        "DistStoreError: Timed out waiting on barrier on rank 0, for key prefix: x (world_size=8, missing_ranks=[5])\n",
        Category.RENDEZVOUS_PORT,
        Culprit(rank=5),
    ),
    # of torchrun's box, the root cause tells: torchrun itself kills ranks that do not end
    (
        box(entry(0, 1, 1), entry(1, 0, -9, "Signal 9 (SIGKILL) received by PID 17")),
        Category.UNKNOWN,
        Culprit("gpu1", 1),
    ),
    (box(entry(0, 1, -9), entry(1, 0, 1)), Category.HOST_OOM, Culprit("gpu1", 1)),
    ("".join(f"stderr: {line}\n" for line in box(entry(0, 1, 1)).splitlines()), Category.UNKNOWN, Culprit("gpu1", 1)),
    (SPAWN + "signal SIGTERM\n", Category.UNKNOWN, Culprit(rank=1)),
    (
        "ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, "
        "ray::policy-0-2:Worker.__init__() (pid=17, ip=10.0.0.7, actor_id=1a, repr=Worker[rank=2])\n",
        Category.PROCESS_CRASH,
        Culprit("10.0.0.7", 2),
    ),
    # the task that srun did not have to end
    (
        RAISED + task("gpu1", "0-2", "Terminated") + task("gpu2", "4-7", "Terminated"),
        Category.USER_CODE,
        Culprit(rank=3),
    ),
    # Slurm's PMIx plugin: the task that it lost, if it is one, and if none has ended by itself
    (PMIX.format(3) + task("gpu1", "0-1", "Killed"), Category.PROCESS_CRASH, Culprit("gpu3", 3)),
    (PMIX.format(3) + PMIX.format(2), Category.PROCESS_CRASH, None),
    (
        "srun: Job step aborted: Waiting up to 62 seconds for job step to finish.\n"
        + PMIX.format(3)
        + task("gpu1", "0", "Exited with exit code 1"),
        Category.PROCESS_CRASH,
        Culprit("gpu1", 0),
    ),
    ("[cli_5]: aborting job:\nFatal error in MPI_Allreduce:\n", Category.PROCESS_CRASH, Culprit(rank=5)),
    (
        'prterun has exited due to process rank 5 with PID 0 on node gpu3 calling "abort". This may have caused\n',
        Category.PROCESS_CRASH,
        Culprit("gpu3", 5),
    ),
    (
        "_pmiu_daemon(SIGCHLD): [NID 00293] [c1-0c0s9n1] [Mon Jan  5 03:17:51 2026] PE RANK 37 exit signal "
        "Segmentation fault\n",
        Category.PROCESS_CRASH,
        Culprit("nid00293", 37),
    ),
    # who does not come, by PyTorch's own words
    (
        "\t - To our best knowledge, ranks [3] are the lagging ranks that caused this timeout. They never joined any\n",
        Category.NCCL_HANG,
        Culprit(rank=3),
    ),
    ("missing ranks: {3}\n", Category.NCCL_HANG, Culprit(rank=3)),
    ("Missing ranks:\n3: [DistributedAdam_Allreduce/cond/HorovodAllreduce_0]\n", Category.NCCL_HANG, Culprit(rank=3)),
    ("[1,0]<stderr>:3: [allreduce.grad.0, allreduce.grad.1]\n", Category.NCCL_HANG, Culprit(rank=3)),
    ("".join(map(BARRIER.format, (0, 1, 3))), Category.RENDEZVOUS_PORT, Culprit(rank=2)),
    ("".join(map(BARRIER.format, (0, 1))), Category.RENDEZVOUS_PORT, None),
    (
        "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv "
        "from rank 0. Please check rank 0 logs.\n[Rank 0]: Rank 3 failed to pass monitoredBarrier in 30 ms\n",
        Category.NCCL_HANG,
        Culprit(rank=3),
    ),
    # counts of one group say who has not launched what another rank waits for; those of two groups do not
    (WAITS.format(1, "0", 7, 9, 6) + WAITS.format(2, "0", 6, 6, 5), Category.NCCL_HANG, Culprit(rank=2)),
    (WAITS.format(1, "0", 7, 9, 6) + WAITS.format(2, "0", 7, 8, 6), Category.NCCL_HANG, None),
    (WAITS.format(1, "3", 7, 9, 6) + WAITS.format(2, "5", 6, 6, 5), Category.NCCL_HANG, None),
    # the node with which all have lost their connections
    (LOST.format(0, 5) + LOST.format(1, 5), Category.NETWORK_FABRIC, Culprit("10.0.0.5")),
    (LOST.format(0, 5) + LOST.format(1, 6), Category.NETWORK_FABRIC, None),
    (LOST.format(0, 5), Category.NETWORK_FABRIC, Culprit("10.0.0.5")),
    (LOST.format(0, 5).replace("10.0.0.5", "127.0.0.1"), Category.NETWORK_FABRIC, None),
    (
        "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:799] connect [10.0.0.3]:35017: No route to host\n",
        Category.NETWORK_FABRIC,
        Culprit("10.0.0.3"),
    ),
    (
        "ORTE has lost communication with its daemon located on node:\n\n  hostname:  gpu3.cluster\n\nThis\n",
        Category.NETWORK_FABRIC,
        Culprit("gpu3.cluster"),
    ),
    (
        HYDRA + "=   EXIT CODE: 139\n[proxy:0:0@gpu3] main (pmip.c:210): demux engine error waiting for event\n",
        Category.PROCESS_CRASH,
        Culprit("gpu3"),
    ),
    (
        HYDRA + "=   EXIT CODE: 139\n[proxy:0:0@gpu3] main (pmip.c:210): x\n[proxy:0:1@gpu4] main (pmip.c:210): x\n",
        Category.PROCESS_CRASH,
        None,
    ),
    # in an exception's own words
    (RAISED.replace("bad shard", "[rank 5] bad shard"), Category.USER_CODE, Culprit(rank=5)),
    (RAISED.replace("bad shard", "bad shard on rank 5"), Category.USER_CODE, Culprit(rank=5)),
    (RAISED.replace("bad shard", "no answer from rank 5 on rank 3"), Category.USER_CODE, None),
    (
        RAISED.replace("ValueError: bad shard", "DeadlockDetectedException: DeadLock detected from rank: 1 "),
        Category.USER_CODE,
        Culprit(rank=1),
    ),
    (
        "".join(f"[pod/train-worker-3/pytorch] {line}\n" for line in RAISED.splitlines()),
        Category.USER_CODE,
        Culprit("train-worker-3"),
    ),
    (
        "train-master-0   1/1   Running     0   3h\ntrain-worker-3   0/1   OOMKilled   0   3h\n",
        Category.HOST_OOM,
        Culprit("train-worker-3"),
    ),
    ("Pod train-worker-3 was OOMKilled\n", Category.HOST_OOM, Culprit("train-worker-3")),
    # a spawned process, by a line of its exception that is no exception
    (
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 3 terminated with the following error:\n"
        + RAISED.replace(
            "ValueError: bad shard", "torch.distributed.DistBackendError: NCCL error in: x.cpp:133, unhandled"
        )
        + "Last error:\nCuda failure 'out of memory'\n",
        Category.CUDA_OOM,
        Culprit(rank=3),
    ),
    # the only rank that has a traceback, in which the log ends
    (
        "RuntimeError: CUDA error: device-side assert triggered\n" + LABELLED.format(5, "").rsplit("\n", 2)[0] + "\n",
        Category.USER_CODE,
        Culprit(rank=5),
    ),
    (
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tip: 10.0.0.7\n"
        "The actor is dead because its owner has died. Owner Id: 01 Owner Ip address: 10.0.0.7 Owner worker exit\n",
        Category.PROCESS_CRASH,
        Culprit("10.0.0.7"),
    ),
    (
        "Mon Jan  5 03:17:51 2026[1,5]<stdout>:gpu3:4711:4799 [0] transport.cc:154 NCCL WARN Cuda failure 'invalid "
        "argument'\n",
        Category.CUDA_KERNEL_FAULT,
        Culprit("gpu3", 5, "0"),
    ),
    ("Process name: gpu3[0]\nExit code: 137\n", Category.HOST_OOM, Culprit("gpu3")),
    ("[ERROR] ME(17:28,MainProcess): Time out nodes are ['5']\n", Category.PROCESS_CRASH, Culprit(rank=5)),
    # a rank that complains waits, also if it is the only one, or ends first
    (WAITS.format(1, "0", 7, 9, 6), Category.NCCL_HANG, None),
    (WAITS.format(1, "0", 7, 9, 6) + WAITS.format(2, "0", 7, 8, 6) + box(entry(0, 1, -6)), Category.NCCL_HANG, None),
]


@pytest.mark.parametrize(("text", "category", "who"), WHO, ids=range(len(WHO)))
def test_who_is_to_blame(tmp_path: Path, text: str, category: Category, who: Culprit | None) -> None:
    told = first(tmp_path, text)
    assert (told.category, told.culprits) == (category, (who,) if who else ())


def test_in_two_boxes_the_killed_rank_is_not_swept_by_the_other_agents_root_cause(tmp_path: Path) -> None:
    told = first(tmp_path, box(entry(0, 1, -9)) + box(entry(0, 4, 1)))
    assert told.category is Category.HOST_OOM


NOBODY = [
    "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.",
    "RuntimeError: DataLoader worker 3 exited unexpectedly",
    "Sending process 4711 closing signal SIGTERM",
    "rank 3 waits since rank 5 does not answer",
    "ValueError: a tensor of rank 3 failed the check",
    "RuntimeError: failed to allocate on host memory",
    "Abort on node 3",
    "all 8 ranks have exited",
]


@pytest.mark.parametrize("text", NOBODY)
def test_a_line_without_a_rank_that_ended_names_nobody(text: str) -> None:
    assert named(text) == Culprit()


@pytest.mark.parametrize(
    "label",
    [
        "[2026-01-05 03:17:51 TP5] ",
        "[2026-01-05 03:17:51 DP1 TP5 EP5] ",
        "(VllmWorker rank=5 pid=17) ",
        "(Worker_TP5 pid=17) ",
        "[RANK: 5] ",
        "[rank 5/8] ",
        "[Rank-5]: ",
        "# [rank5]: ",
        "(rank 5) ",
        "<Rank 5>: ",
        "rank=5 ",
        "RANK_5 | ",
        "2026-01-05 03:17:51.376 | ERROR    | rank=5 | ",
        "stderr: [rank5]: ",
    ],
)
def test_frameworks_label_their_ranks(label: str) -> None:
    assert (record(label + "ValueError: x").rank, record(label + "ValueError: x").text) == (5, "ValueError: x")


def test_a_ray_actor_whose_name_has_brackets_has_a_node() -> None:
    assert record("(ActorWorker(train-1) pid=17, ip=10.0.0.7) ValueError: x").node == "10.0.0.7"


@pytest.mark.parametrize("code", [79, 149])
def test_xid_45_is_judged_by_the_xid_before_it(tmp_path: Path, code: int) -> None:
    line = f"gpu3 kernel: NVRM: Xid (PCI:0000:65:00): 45, pid=4711, name=python, caused by previous Xid {code}\n"
    told = first(tmp_path, line)
    assert (told.category, [one.node for one in told.culprits]) == (Category.GPU_HARDWARE, ["gpu3"])


def test_an_error_of_the_fabric_is_no_error_of_the_storage(tmp_path: Path) -> None:
    text = "MPIDI_OFI_handle_cq_error(1062): OFI poll failed (ofi_events.c:1064:f:Input/output error - UNDELIVERABLE)\n"
    assert first(tmp_path, text).category is Category.NETWORK_FABRIC
