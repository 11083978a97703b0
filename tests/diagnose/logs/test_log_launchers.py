"""The forms in which launchers, schedulers, accelerators and simulation codes report a failure: category, and who."""

from __future__ import annotations

from pathlib import Path

import pytest

from transom_cli.diagnose.clue import Category, Culprit
from transom_cli.diagnose.logs.diagnosis import diagnose_logs
from transom_cli.diagnose.logs.rule_files import load
from transom_cli.diagnose.logs.rulebook import Rulebook

BOOK = Rulebook(load())
RAISED = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n'
NPU = "[ERROR] 2026-01-05-03:17:51 (PID:4711, Device:3, RankID:3) ERR00100 PTA call acl api failed\n"
WAITS = (
    "[rank{0}]:[E105 03:17:55.10 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType={1}, NumelIn={2}, NumelOut=8, Timeout(ms)=600000) ran for 600043 milliseconds\n"
)
TRAINS = "".join(f"step {n}0 loss 2.{9 - n}\n" for n in range(8))


def entry(number: int, rank: int) -> str:
    place = f"[{number}]:\n  time      : 2026-01-05_03:17:5{rank}\n  host      : gpu3\n"
    return f"{place}  rank      : {rank} (local_rank: {rank})\n  exitcode  : 1 (pid: 471{rank})\n"


LABELLED = "".join(f"[rank{{0}}]: {line}\n" for line in (RAISED + "ValueError: bad shard").splitlines())
BOX = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\ntrain.py FAILED\n----\nFailures:\n"
RUN = "slurmstepd: error: *** STEP 7.0 ON gpu1 CANCELLED AT 2026-01-05T03:20:51 ***\n"
HOROVOD = "RuntimeError: Horovod has been shut down. This was caused by an exception on one of the ranks\n"
MPIRUN = (
    "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated.\n"
)

FORMS = [
    # launchers
    (BOX + entry(1, 5) + entry(2, 6), Category.UNKNOWN, None),
    (BOX + entry(1, 5) + "Root Cause (first observed failure):\n" + entry(0, 4), Category.UNKNOWN, Culprit("gpu3", 4)),
    (
        "srun: First task exited 180s ago\nsrun: StepId=7.0 tasks 0-24,26: running\nsrun: StepId=7.0 tasks 25: exited\n"
        "srun: launch/slurm: _step_signal: Terminating StepId=7.0\n" + RUN,
        Category.UNKNOWN,
        Culprit(rank=25),
    ),
    ("[1,1]<stderr>:" + HOROVOD + MPIRUN + "  Process name: [[5,1],0]\n", Category.UNKNOWN, Culprit(rank=0)),
    (
        "<info>    [2026-01-05 03:17:51] 087c0ee7 || RuntimeError: Horovod detected that one or more processes exited "
        "with non-zero status, thus causing the job to be terminated. The first process to do so was:\n"
        "<>        [2026-01-05 03:17:51] 087c0ee7 || Exit code: 1\n"
        "<>        [2026-01-05 03:17:51] 087c0ee7 || Process name: 1\n"
        "<info>    [2026-01-05 03:17:53] ef45fdce || INFO: container failed:  (exit code 137)\n",
        Category.UNKNOWN,
        Culprit(rank=1),
    ),
    ("iter 3 loss 2.1\n^Cmpirun: killing job...\n", Category.SLURM_CANCELLED, None),
    (
        "12/90 [4:44:35<35:03,  1.35s/it, lr=['0.1'], loss=0.97]WARNING:torch.distributed.elastic.rendezvous."
        "dynamic_rendezvous:The node 'gpu3_4711_0' has failed to send a keep-alive heartbeat to the rendezvous '7' due "
        "to an error of type RendezvousTimeoutError.\nERROR:torch.distributed.elastic.multiprocessing.api:failed "
        "(exitcode: -9) local_rank: 1 (pid: 4711) of binary: /usr/bin/python\n",
        Category.HOST_OOM,
        Culprit(rank=1),
    ),
    ("# -- Process 3 terminated with the following error:\n# ValueError: bad\n", Category.USER_CODE, Culprit(rank=3)),
    (
        "[NID 00012] 2026-01-05 03:17:51 Apid 4711: OOM killer terminated this process.\n",
        Category.HOST_OOM,
        Culprit("nid00012"),
    ),
    (
        "x1001c3s2b0n0.hostmgmt1001.site 17: Abort(203549327) on node 17: Fatal error in internal_Get: Other\n",
        Category.PROCESS_CRASH,
        Culprit("x1001c3s2b0n0.hostmgmt1001.site", 17),
    ),
    ("[mpiexec@a] x (y.c:7): unable to run bstrap_proxy on gpu3 (pid 1)\n", Category.SLURM_LAUNCH, Culprit("gpu3")),
    ("submitit.core.utils.FailedJobError: Job (task=3) failed during processing with trace:\n----\n" + RAISED
     + "ValueError: bad shard\n", Category.USER_CODE, Culprit(rank=3)),
    ("ERROR: Job 1 failed with return code list: [0, 1, 0]\n", Category.UNKNOWN, None),
    ("slurmstepd: error: get_exit_code task 3 died by signal: 11\n", Category.PROCESS_CRASH, Culprit(rank=3)),
    # who, if several report the same
    (LABELLED.format(1) + LABELLED.format(0), Category.USER_CODE, None),
    (LABELLED.format(3) + LABELLED.format(0), Category.USER_CODE, Culprit(rank=3)),
    (
        (RAISED + "ValueError: bad shard\n") * 2 + "Sending process 4710 closing signal SIGTERM\nSending process 4711 "
        "closing signal SIGTERM\nfailed (exitcode: 1) local_rank: 2 (pid: 4712) of binary: /usr/bin/python\n",
        Category.USER_CODE,
        None,
    ),
    (
        "RuntimeError: DataLoader worker (pid 17) is killed by signal: Killed.\nslurmstepd: error: *** JOB 7 ON gpu3 "
        "CANCELLED AT 2026-01-05T03:17:51 ***\nslurmstepd: error: Detected 1 oom_kill event in StepId=7.batch. Some of "
        "the step tasks have been OOM Killed.\n",
        Category.HOST_OOM,
        Culprit("gpu3"),
    ),
    (
        "[me@gpu3 ~]$ nvidia-smi\nUnable to determine the device handle for GPU0000:03:00.0: Unknown Error\n",
        Category.GPU_HARDWARE,
        Culprit("gpu3", None, "0000:03:00.0"),
    ),
    (
        TRAINS + "[1,0]<stderr>:Stalled ranks:\n[1,0]<stderr>:6: [horovod_allreduce.0, horovod_allreduce.1 ...]\n",
        Category.NCCL_HANG,
        Culprit(rank=6),
    ),
    (
        "The actor died unexpectedly before finishing this task.\n\tip: 127.0.0.1\nThe actor died because its node has "
        "died.\n\tthe actor's node was preempted: drained\n",
        Category.SLURM_PREEMPTED,
        None,
    ),
    (
        "[gpu1][[5,0],0][btl_tcp_endpoint.c:668:mca_btl_tcp_endpoint_recv_connect_ack] received unexpected process "
        "identifier: got [[5,0],3] expected [[5,0],4]\nsrun: Job step aborted: Waiting up to 32 seconds\n" + RUN,
        Category.NETWORK_FABRIC,
        None,
    ),
    (
        RAISED + "RuntimeError: Step 1 exited with non-zero status 1\nOutOfMemoryError: CUDA out of memory. Tried to "
        "allocate 786.00 MiB (GPU 0; 39.56 GiB total capacity; 38.49 GiB already allocated)\n",
        Category.CUDA_OOM,
        None,
    ),
    # schedulers
    ("0.3s: job.exception type=node-failure severity=0 lost contact with gpu3 (rank 3)\n", Category.SLURM_NODE_FAIL,
     Culprit("gpu3")),
    ("Slurm Job_id=7 Name=train Failed, Run time 00:01:02, TIMEOUT, ExitCode 0\n", Category.SLURM_TIME_LIMIT, None),
    (
        RAISED + "submitit.core.utils.UncompletedJobError: Job 7 (task: 3) with path /logs/7_3_result.pkl\n"
        "has not produced any output (state: TIMEOUT)\n",
        Category.SLURM_TIME_LIMIT,
        None,
    ),
    ("=>> PBS: job killed: mem 12345678kb exceeded limit 10485760kb\n", Category.HOST_OOM, None),
    ("srun: error: gpu3: task 3: User defined signal 1\n", Category.SLURM_TIME_LIMIT, None),
    # collectives
    ("".join(WAITS.format(rank, "ALLREDUCE", 8) for rank in (0, 1, 2)) + WAITS.format(3, "ALLREDUCE", 1),
     Category.NCCL_HANG, Culprit(rank=3)),
    ("".join(WAITS.format(rank, "ALLTOALL", 8) for rank in (0, 1, 2)) + WAITS.format(3, "ALLTOALL", 1),
     Category.NCCL_HANG, None),
    ("gpu3:4711:4788 [0] misc/socket.cc:49 NCCL WARN Connection closed by remote peer gpu3-ib.site<51159>\n",
     Category.NETWORK_FABRIC, None),
    ("gpu3:4711:4788 [1] misc/socket.cc:5 NCCL WARN Net : Call to recv from 10.0.0.7<58355> failed : Broken pipe\n"
     "gpu3:4711:4788 [1] misc/socket.cc:9 NCCL WARN Net : Connection closed by remote peer gpu3.site<47861>\n",
     Category.NETWORK_FABRIC, Culprit("10.0.0.7")),
    ("[1] gpu3:4755:4799 [0] enqueue.cc:422 NCCL WARN Cuda failure 'an illegal memory access was encountered'\n",
     Category.CUDA_KERNEL_FAULT, Culprit("gpu3", 1, "0")),
    ("E0105 16:03:15.12 4711 coordination_service_agent.cc:300] /job:jax_worker/replica:0/task:11 unexpectedly tried "
     "to connect with a different incarnation. It has likely restarted.\n", Category.NCCL_HANG, Culprit(rank=11)),
    # accelerators
    (RAISED + "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64\n" + NPU
     + "EJ0001: Failed to initialize the HCCP process. Reason: Maybe the last training process is running.\n",
     Category.RESOURCE_LIMITS, Culprit(rank=3)),
    (RAISED + "RuntimeError: x:1 NPU function error: aclrtSynchronizeDevice, error code is 507046\n" + NPU,
     Category.NCCL_HANG, None),
    (RAISED + "RuntimeError: x:1 NPU function error: aclrtSynchronizeDevice, error code is 507054\n" + NPU,
     Category.GPU_HARDWARE, Culprit(rank=3)),
    (RAISED + "RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)\n",
     Category.GPU_HARDWARE, None),
    # simulation codes
    ("MPI rank:    3 (out of 8)\n\nFatal error:\nToo many LINCS warnings (1001)\n", Category.USER_CODE,
     Culprit(rank=3)),
    ("------------- Processor 3 Exiting: Called CmiAbort ------------\n", Category.PROCESS_CRASH, Culprit(rank=3)),
    ("[3] --> FOAM FATAL ERROR: (openfoam-2312)\n", Category.USER_CODE, Culprit(rank=3)),
    ("forrtl: error (78): process killed (SIGTERM)\n", Category.SLURM_CANCELLED, None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "category", "who"), FORMS, ids=[f"{n}" for n in range(len(FORMS))])
def test_forms_of_launchers_and_codes(tmp_path: Path, text: str, category: Category, who: Culprit | None) -> None:
    (tmp_path / "job.out").write_text(text)
    incident = diagnose_logs([tmp_path], BOOK).incidents[0]
    assert (incident.category, incident.culprits) == (category, (who,) if who else ())


@pytest.mark.parametrize(
    "text",
    [
        TRAINS + "srun: StepId=7.0 tasks 0-3: running\n",
        "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'gpu1_4711_0' has failed to send a "
        "keep-alive heartbeat to the rendezvous '7' due to an error of type RendezvousConnectionError.\n" + TRAINS,
        "TIMEOUT=1800\nERROR: false\nPress ^C to stop\nlog levels: ERROR FATAL\n" + TRAINS,
        "Note: The following floating-point exceptions are signalling: IEEE_UNDERFLOW_FLAG\nSTOP 0\n",
        TRAINS + "slurmstepd: error: Failed to send MESSAGE_TASK_EXIT: Connection refused\n",
    ],
)
def test_healthy_logs_with_such_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.out").write_text(text)
    assert diagnose_logs([tmp_path], BOOK).incidents == ()
