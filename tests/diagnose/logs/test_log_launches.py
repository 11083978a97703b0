"""Several launches or processes in one log: the answer is about the last launch, and about the right process."""

from __future__ import annotations

from pathlib import Path

import pytest

from transom_cli.diagnose.clue import Action, Category, Culprit
from transom_cli.diagnose.logs.diagnosis import Diagnosed, action_of, diagnose_logs, evidence
from transom_cli.diagnose.logs.matches import decode, encode
from transom_cli.diagnose.logs.reader import hits_in_file
from transom_cli.diagnose.logs.rule_files import load
from transom_cli.diagnose.logs.rulebook import Rulebook

BOOK = Rulebook(load())
TRACE = 'Traceback (most recent call last):\n  File "train.py", line 12, in main\n'
OOM = f"{TRACE}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 79.11 GiB\n"
KEY = f"{TRACE}KeyError: 'lr'\n"
EXITED = "srun: error: gpu3: task 1: Exited with exit code 1\n"
OMP = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"
RESTART = "[default] Worker group FAILED. 2/3 attempts left; will restart worker group\n"
NCCL = "gpu1:4711:4711 [0] NCCL version 2.21.5+cuda12.4\n"
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
RESET = (
    "[rank{0}]: RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.5]:39271\n"
)


def steps(rank: str = "", first: int = 1) -> str:
    return "".join(f"{rank}step {n} loss 2.{n:03d}\n" for n in range(first, first + 12))


def of(tmp_path: Path, text: str) -> Diagnosed:
    (tmp_path / "job.log").write_text(text)
    return diagnose_logs([tmp_path], BOOK)


@pytest.mark.parametrize("between", [RESTART, EXITED + OMP, CHILD + NCCL])
def test_the_last_of_two_failed_launches_is_the_answer(tmp_path: Path, between: str) -> None:
    first, *rest = of(tmp_path, OOM + between + KEY).incidents
    assert (first.category, first.root.record.text) == (Category.USER_CODE, "KeyError: 'lr'")
    assert [one.category for one in rest] == [Category.CUDA_OOM], "the earlier failure is reported too"
    assert any("2 launches" in said for said in evidence(first))


def test_a_launch_that_only_reports_an_exit_code_does_not_hide_the_cause(tmp_path: Path) -> None:
    (first,) = of(tmp_path, OOM + RESTART + EXITED).incidents
    assert first.category is Category.CUDA_OOM


def test_a_banner_without_a_failed_launch_before_it_begins_no_launch(tmp_path: Path) -> None:
    first, *_ = of(tmp_path, OOM + OMP + KEY).incidents
    assert first.category is Category.CUDA_OOM, "another node of the same launch prints its banner later"


def test_a_failed_launch_and_a_healthy_one_are_no_failure(tmp_path: Path) -> None:
    assert of(tmp_path, OOM + EXITED + OMP + steps()).incidents == ()


def test_a_launch_survives_the_way_from_agent_to_launcher(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(OOM + RESTART + KEY)
    hits = hits_in_file(tmp_path / "job.log", BOOK)
    assert [hit.launch for hit in hits] == [0, 1]
    assert sorted(hit.launch for hit in decode(encode(hits), BOOK.by_name)) == [0, 1]


def test_progress_of_another_process_does_not_absolve_a_rank_that_stopped_printing(tmp_path: Path) -> None:
    failed = "".join(f"[rank0]: {line}\n" for line in KEY.splitlines())
    (first,) = of(tmp_path, steps("[rank0]: ") + steps("[rank1]: ") + failed + steps("[rank1]: ", 50)).incidents
    assert first.culprits == (Culprit(rank=0),)
    quiet = "".join(f"[rank3]: {line}\n" for line in KEY.splitlines())
    told = of(tmp_path, steps("[rank0]: ") + quiet + steps("[rank0]: ", 50))
    assert told.incidents == (), "where rank 0 alone prints progress, it speaks for all"


def test_repeated_labels_and_a_progress_bar_before_a_label_hide_no_rank(tmp_path: Path) -> None:
    doubled = "".join(f"[rank2]:[rank2]: {line}\n" for line in KEY.splitlines())
    (first,) = of(tmp_path, doubled).incidents
    assert (first.category, first.culprits) == (Category.USER_CODE, (Culprit(rank=2),))
    bar = " 92%|#########2| 1631/1773 [14:33:49<1:17:48, 32.88s/it]"
    (first,) = of(
        tmp_path,
        f"{bar}[rank1]:[E ProcessGroupNCCL.cpp:523] [Rank 1] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=327, OpType=ALLGATHER, Timeout(ms)=1800000) ran for 1800341 ms\n",
    ).incidents
    assert first.root.record.rank == 1


def test_the_rank_that_cries_over_no_lost_connection_is_the_culprit(tmp_path: Path) -> None:
    for rank in range(4):
        said = f"step 1\n{RESET.format(rank)}" if rank != 2 else "step 1\n"
        (tmp_path / f"rank-{rank}.log").write_text(said)
    (first,) = diagnose_logs([tmp_path], BOOK).incidents
    assert (first.category, first.culprits) == (Category.NETWORK_FABRIC, (Culprit(rank=2),))


def test_the_only_task_that_exited_is_the_culprit_of_an_exception_without_a_label(tmp_path: Path) -> None:
    (first,) = of(tmp_path, KEY + EXITED).incidents
    assert first.culprits == (Culprit("gpu3", 1),)
    (first,) = of(tmp_path, KEY + EXITED + EXITED.replace("task 1", "task 2")).incidents
    assert first.culprits == (), "two tasks exited, and nothing shows which one was first"


def test_a_fault_of_the_device_outlives_a_busy_port(tmp_path: Path) -> None:
    port = "RuntimeError: The server socket has failed to listen on any local network address. EADDRINUSE\n"
    fabric = "RuntimeError: CUDA error: system not yet initialized (error 802)\n"
    first, *_ = of(tmp_path, TRACE + port + TRACE + fabric).incidents
    assert (first.category, first.root.rule.action) == (Category.NVLINK_FABRIC, Action.ISOLATE)
    assert any("do not name the node" in said for said in evidence(first))


def test_xid_45_is_judged_by_the_xid_before_it_and_a_relayed_kernel_line_names_the_node(tmp_path: Path) -> None:
    line = "NVRM: Xid (PCI:0000:65:00): 45, pid=4711, name=python, Ch 00000008, caused by previous Xid {0}\n"
    (first,) = of(
        tmp_path, f"Xid errors on instance: gpu7, Error: May 29 01:37:38 gpu7 kernel: {line.format(79)}"
    ).incidents
    assert (first.category, first.root.rule.action) == (Category.GPU_HARDWARE, Action.ISOLATE)
    assert first.culprits == (Culprit("gpu7", None, "0000:65:00.0"),)
    (first,) = of(tmp_path, line.format(31)).incidents
    assert first.category is Category.CUDA_KERNEL_FAULT


def test_what_breaks_after_the_training_has_completed_is_no_failure(tmp_path: Path) -> None:
    noise = "[W socket.cpp:601] [c10d] recvValue failed: Connection reset by peer\n" + RESET.format(0)
    assert of(tmp_path, steps() + "Training completed in 3:02:11\n" + noise).incidents == ()
    assert of(tmp_path, steps() + noise).incidents != ()


def test_lines_of_a_metric_logger_show_that_the_training_continued(tmp_path: Path) -> None:
    lines = "".join(f"Train  [{n}/600]  eta: 0:0{n}:11  lr: 0.0001\n" for n in range(1, 8))
    assert of(tmp_path, KEY + lines).incidents == ()


def test_what_ray_says_might_have_happened_to_an_actor_is_no_segfault(tmp_path: Path) -> None:
    died = "The actor is dead because its worker process has died. There are some potential root causes. "
    died += "(3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.\n"
    (first,) = of(tmp_path, died).incidents
    assert first.root.rule.name == "actor-died"
    (first,) = of(tmp_path, died + "mlx5: gpu1: got completion with error:\n").incidents
    assert first.category is Category.NETWORK_FABRIC


def test_a_cpp_abort_is_judged_by_the_exception_that_it_reports(tmp_path: Path) -> None:
    label = "Thu Aug 29 16:41:02 2019[3]<stderr>:"
    lines = f"{label}terminate called after throwing an instance of 'gloo::IoException'\n{label}  what():  "
    lines += "[/gloo/transport/tcp/pair.cc:572] Connection closed by peer [10.0.0.5]:3927\n"
    (first,) = of(tmp_path, lines).incidents
    assert (first.category, first.root.record.rank) == (Category.NETWORK_FABRIC, 3)


def test_a_rank_below_those_that_wait_is_the_culprit_if_it_prints_nothing(tmp_path: Path) -> None:
    waits = "[rank{0}]:[E ProcessGroupNCCL.cpp:523] [Rank {0}] Watchdog caught collective operation timeout: "
    waits += (
        "WorkNCCL(SeqNum=327, OpType=ALLGATHER, Timeout(ms)=600000) ran for 600043 milliseconds before timing out.\n"
    )
    (first,) = of(tmp_path, "".join(waits.format(rank) for rank in (1, 2, 3, 4))).incidents
    assert first.culprits == (Culprit(rank=0),)
    (first,) = of(tmp_path, "".join(waits.format(rank) for rank in (4, 5, 6, 7))).incidents
    assert first.culprits == (), "this may be the log of one node of two"


@pytest.mark.parametrize(
    ("end", "reported"),
    [
        ("slurmstepd: error: *** JOB 7 ON gpu3 CANCELLED AT 2026-01-05T03:20:11 DUE TO TIME LIMIT ***\n", False),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n", False),
        ("gpu3 kernel: NVRM: Xid (PCI:0000:65:00): 79, pid=4711, GPU has fallen off the bus.\n", True),
    ],
)
def test_a_launch_that_trains_replaces_how_the_one_before_ended(tmp_path: Path, end: str, reported: bool) -> None:
    assert bool(of(tmp_path, end + OMP + steps()).incidents) is reported
    assert of(tmp_path, end + steps()).incidents, "other ranks of the same launch still print"


def test_several_accused_peers_isolate_nobody(tmp_path: Path) -> None:
    line = (
        "gpu{}:22:91 [4] NCCL WARN NET/IB : Got completion from peer 10.2.0.{}<41217> with status={} opcode=0 len=0\n"
    )
    (first,) = of(tmp_path, line.format(1, 17, 12)).incidents
    assert (first.culprits, action_of(first)) == ((Culprit("10.2.0.17"),), Action.ISOLATE)
    (first,) = of(tmp_path, line.format(1, 17, 12) + line.format(2, 18, 12)).incidents
    assert (first.culprits, action_of(first)) == ((), Action.REQUEUE)
    (first,) = of(tmp_path, line.format(1, 17, 5)).incidents
    assert action_of(first) is Action.REQUEUE, "a closed connection has a reason of its own"


def test_whose_line_says_the_same_is_the_culprit(tmp_path: Path) -> None:
    text = f"{TRACE}RuntimeError: CUDA error: uncorrectable ECC error encountered\n[rank1]: " + OOM.splitlines()[0]
    text += "\n[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    first, *_ = of(tmp_path, text).incidents
    assert first.culprits == (Culprit(rank=1),)
    killed = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\nsrun: error: gpu3: task 4: Out Of Memory\n"
    (first,) = of(tmp_path, killed).incidents
    assert first.culprits == (Culprit("gpu3", 4),)


@pytest.mark.parametrize("address", ["0000:65:00", "00000000:65:00.0", "0000:65:00.0"])
def test_pci_addresses_are_written_like_those_of_the_system(tmp_path: Path, address: str) -> None:
    (first,) = of(tmp_path, f"gpu3 kernel: NVRM: Xid (PCI:{address}): 79, pid=4711, GPU lost.\n").incidents
    assert first.culprits == (Culprit("gpu3", None, "0000:65:00.0"),)


def test_a_log_that_ends_in_a_kernels_assertions_is_a_failure(tmp_path: Path) -> None:
    line = "../aten/src/ATen/Indexing.cu:1141: f: block: [6,0,0], thread: [1,0,0] Assertion `i < n` failed.\n"
    (first,) = of(tmp_path, line * 3).incidents
    assert (first.category, first.root.rule.action) == (Category.USER_CODE, Action.STOP)


SRUN = """srun: error: node4: task 3: Killed
srun: launch/slurm: _step_signal: Terminating StepId=7.0
0: slurmstepd-node1: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-01-05T03:20:11 ***
srun: error: node2: task 1: Terminated
srun: Force Terminated StepId=7.0
"""
LABELLED = "".join(f"1: [rank1]: {line}\n" for line in KEY.splitlines())


def test_what_follows_the_last_line_of_srun_is_another_launch(tmp_path: Path) -> None:
    first, *_ = of(
        tmp_path, f"{steps('0: ')}{SRUN}{LABELLED}srun: error: node2: task 1: Exited with exit code 1\n"
    ).incidents
    assert (first.category, first.culprits) == (Category.USER_CODE, (Culprit("node2", 1),))
    assert any("2 launches" in said for said in evidence(first))
    assert of(tmp_path, LABELLED + SRUN + steps("1: [rank1]: ")).incidents == (), (
        "and if that one trains, none has failed"
    )


@pytest.mark.parametrize(("minutes", "category"), [(45, Category.RENDEZVOUS_PORT), (0, Category.SLURM_PREEMPTED)])
def test_a_line_long_after_the_job_was_ended_is_of_the_requeued_job(
    tmp_path: Path, minutes: int, category: Category
) -> None:
    ended = "slurmstepd: error: *** JOB 7 ON gpu1 CANCELLED AT 2026-01-05T18:00:46 DUE TO PREEMPTION ***\n"
    ended += "submitit WARNING (2026-01-05 18:00:46,902) - Bypassing signal SIGTERM\n"
    raised = f"submitit ERROR (2026-01-05 18:{minutes:02}:50,210) - Submitted job triggered an exception\n{TRACE}"
    barrier = "RuntimeError: Timed out initializing process group in store based barrier on rank: 0\n"
    first, *_ = of(tmp_path, ended + raised + barrier).incidents
    assert first.category is category


def test_another_process_on_the_same_device_is_another_launch(tmp_path: Path) -> None:
    warning = "gpu1:{0}:4799 [0] init.cc:93 NCCL WARN Cuda failure 'out of memory'\n"
    first, *_ = of(tmp_path, KEY + EXITED + warning.format(4711) + EXITED + warning.format(5211)).incidents
    assert first.root.launch == 1
    (first, *_) = of(tmp_path, warning.format(4711) + EXITED + warning.format(4711)).incidents
    assert first.root.launch == 0, "the same process only prints later"


def test_a_rank_that_raises_again_after_its_launch_was_over_is_of_another_launch(tmp_path: Path) -> None:
    again = LABELLED.replace("'lr'", "'wd'")
    first, *_ = of(tmp_path, LABELLED + EXITED + again).incidents
    assert (first.root.record.text, first.root.launch) == ("KeyError: 'wd'", 1)
    first, *_ = of(tmp_path, LABELLED + EXITED + again.replace("rank1", "rank2").replace("1: [", "2: [")).incidents
    assert first.root.launch == 0, "the output of another rank may come late"


def test_counted_lines_stay_with_their_launch(tmp_path: Path) -> None:
    lines = "".join(
        f"detected NVSwitch fatal error 20009 on fid {n} on NVSwitch pci bus id 00000000:05:00.0\n" for n in range(40)
    )
    (tmp_path / "job.log").write_text(lines + RESTART + KEY)
    assert {hit.launch for hit in hits_in_file(tmp_path / "job.log", BOOK) if hit.rule.name == "nvswitch-error"} == {0}


TORCH = '  File "/lib/torch/serialization.py", line 1002, in load\n    magic_number = pickle_module.load(f)\n'
FETCH = '  File "/lib/torch/utils/data/_utils/fetch.py", line 49, in fetch\n'
SPAWN = '  File "/lib/multiprocessing/spawn.py", line 126, in _main\n    self = reduction.pickle.load(from_parent)\n'


@pytest.mark.parametrize(
    ("frames", "category"),
    [
        (TORCH, "checkpoint_corrupt"),
        ("    state = torch.load('last.pkl')\n", "checkpoint_corrupt"),
        ('  File "/app/cub.py", line 89, in __init__\n    open(os.path.join(root, "test.pkl"))\n', "data_loader"),
        (FETCH + TORCH, "data_loader"),
        (SPAWN, "process_crash"),
    ],
)
def test_a_truncated_pickle_is_judged_by_the_frames_above_it(tmp_path: Path, frames: str, category: str) -> None:
    head = "Traceback (most recent call last):\n"
    (first,) = of(tmp_path, f"{head}{frames}_pickle.UnpicklingError: pickle data was truncated\n").incidents
    assert first.category.value == category


def test_torchruns_local_rank_names_the_culprit_if_it_is_the_only_one(tmp_path: Path) -> None:
    failed = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: {0} (pid: 71) of\n"
    (first,) = of(tmp_path, KEY + failed.format(4)).incidents
    assert first.culprits == (Culprit(rank=4),)
    (first,) = of(tmp_path, KEY + failed.format(4) + failed.format(1)).incidents
    assert first.culprits == ()


def test_tasks_that_ran_out_of_memory_name_their_node(tmp_path: Path) -> None:
    killed = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
    )
    (first,) = of(tmp_path, f"{killed}srun: error: gpu4: tasks 1-3: Out Of Memory\n").incidents
    assert (first.category, first.culprits) == (Category.HOST_OOM, (Culprit("gpu4"),))


def test_an_nccl_warning_counts_beside_other_output_on_its_line(tmp_path: Path) -> None:
    info = "gpu1:4711:4799 [0] NCCL INFO transport/net.cc:1298 -> 6"
    warning = (
        "gpu1:4711:4799 [0] ib_plugin.c:1075 NCCL WARN NET/IB : Got completion from peer 10.0.0.3<385> with error 5"
    )
    (first,) = of(tmp_path, f"{warning}, opcode 48, len 32710, vendor err 249    {info}\n").incidents
    assert first.category is Category.NETWORK_FABRIC
    assert of(tmp_path, f"{info}\n").incidents == ()


def test_of_two_ranks_with_other_collectives_the_one_behind_is_the_culprit(tmp_path: Path) -> None:
    said = "Rank {} is running collective: CollectiveFingerPrint(SequenceNumber={}, OpType=BARRIER)"
    differ = f"[rank0]: {TRACE}[rank0]: RuntimeError: Detected mismatch between collectives on ranks. "
    (first,) = of(tmp_path, f"{differ}{said.format(0, 8)}, but {said.format(3, 7)}.\n").incidents
    assert first.culprits == (Culprit(rank=3),)
    (first,) = of(tmp_path, f"{differ}{said.format(0, 8)}, but {said.format(3, 8)}.\n").incidents
    assert first.culprits == (), "equal numbers: the program is wrong on both"


def test_a_rank_in_a_collective_of_gloo_is_the_one_that_the_others_wait_for(tmp_path: Path) -> None:
    waits = "".join(
        f"[rank{n}]:[E] [Rank {n}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=BROADCAST, "
        "Timeout(ms)=600000) ran for 600043 milliseconds before timing out.\n"
        for n in (0, 1, 3)
    )
    (first,) = of(tmp_path, waits + RESET.format(2)).incidents
    assert (first.category, first.culprits) == (Category.NCCL_HANG, (Culprit(rank=2),))
    (first,) = of(tmp_path, waits + RESET.format(2) + RESET.format(4)).incidents
    assert first.culprits == (), "too many to be the ones that the others wait for"


STATES = "Recovered model state\n", "Resuming training from step 40\n", "Loading the latest checkpoint\n"


@pytest.mark.parametrize("resumed", STATES)
def test_a_requeued_job_that_continues_replaces_how_the_job_before_was_ended(tmp_path: Path, resumed: str) -> None:
    ended = f"{steps()}slurmstepd: error: *** JOB 7 ON gpu1 CANCELLED AT 2026-01-05T03:17:51 DUE TO TIME LIMIT ***\n"
    assert of(tmp_path, ended + resumed + steps(first=41)).incidents == ()
    assert of(tmp_path, ended + resumed + "step 41 loss 2.1\nTraining completed\n").incidents == ()
    (first,) = of(tmp_path, ended + "Saving state\nFinished saving state\n" + steps(first=13)).incidents
    assert first.category is Category.SLURM_TIME_LIMIT, "ranks print until Slurm kills them"
    (first,) = of(tmp_path, ended + resumed + "step 41 loss 2.1\n").incidents
    assert first.category is Category.SLURM_TIME_LIMIT, "too little is known of what follows"


def test_a_name_below_or_above_the_line_is_the_culprits(tmp_path: Path) -> None:
    daemon = "PRTE has lost communication with a remote daemon.\n\n  HNP daemon   : [prterun-g1-7@0,0] on node g1\n"
    (first,) = of(tmp_path, f"{daemon}  Remote daemon: [prterun-g1-7@0,1] on node g2\n").incidents
    assert first.culprits == (Culprit("g2"),)
    actor = "ray.exceptions.ActorDiedError: The actor died unexpectedly.\n\tpid: 17\n\tip: 10.0.0.7\n"
    why = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR\n"
    (first,) = of(tmp_path, TRACE + actor + why).incidents
    assert first.culprits == (Culprit("10.0.0.7"),)
    assert of(tmp_path, f"serving\n\tip: 10.0.0.7\n{steps()}").incidents == ()


def test_the_only_node_that_reports_an_exit_could_not_start_its_container(tmp_path: Path) -> None:
    pyxis = "slurmstepd: error: pyxis: couldn't start container\n"
    (first,) = of(tmp_path, pyxis + EXITED).incidents
    assert (first.category, first.culprits) == (Category.SLURM_LAUNCH, (Culprit("gpu3", 1),))
    (first,) = of(tmp_path, pyxis + EXITED + EXITED.replace("gpu3: task 1", "gpu4: task 2")).incidents
    assert first.culprits == ()


def test_the_only_rank_with_a_traceback_is_the_one_on_the_device(tmp_path: Path) -> None:
    failed = "gpu1:17:19 [1] include/alloc.h:65 NCCL WARN Cuda failure 2 'out of memory'\n"
    begins = '[rank5]: Traceback (most recent call last):\n[rank5]:   File "train.py", line 12, in main\n'
    (first,) = of(tmp_path, failed + begins).incidents
    assert (first.category, first.culprits) == (Category.CUDA_OOM, (Culprit("gpu1", 5, "1"),))
    (first,) = of(tmp_path, failed + begins + begins.replace("rank5", "rank6")).incidents
    assert first.culprits == (Culprit("gpu1", device="1"),)


def test_a_report_that_a_terminal_has_wrapped_names_its_rank(tmp_path: Path) -> None:
    failed = "[2026-01-05 03:17:51,778] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -6)\n"
    (first,) = of(tmp_path, f"{failed} local_rank: 2 (pid: 17) of binary: /usr/bin/python\n").incidents
    assert first.culprits == (Culprit(rank=2),)


def test_a_device_that_failed_is_reported_although_a_later_launch_trains(tmp_path: Path) -> None:
    ecc = f"[rank6]: {TRACE}[rank6]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    (first,) = of(tmp_path, ecc + EXITED + OMP + steps()).incidents
    assert (first.category, action_of(first)) == (Category.GPU_HARDWARE, Action.ISOLATE)


def test_tasks_that_crash_together_name_their_node_until_srun_ends_the_others(tmp_path: Path) -> None:
    crash = "srun: error: {}: tasks {}: Segmentation fault\n"
    one, two = crash.format("gpu3", "24-47"), crash.format("gpu2", "0-23")
    ends = "srun: Terminating job step 7.0\n"
    (first,) = of(tmp_path, one + ends + two).incidents
    assert (first.category, first.culprits) == (Category.PROCESS_CRASH, (Culprit("gpu3"),))
    (first,) = of(tmp_path, one + two + ends).incidents
    assert first.culprits == (), "nothing shows which node was first"


HEAD = "INFO: version 1.4 of the code\nUsing 2 devices of the node\n"
TABLE = "| GPU reserved memory   |      0 B   |\n| Non-releasable memory |      0 B   |\n"
BAD = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n{0}\n'


@pytest.mark.parametrize(
    ("text", "root"),
    [
        # a log to which a program that is started again appends
        (HEAD + BAD.format("ValueError: no such file") + HEAD + BAD.format("KeyError: 'rank'"), "KeyError: 'rank'"),
        (HEAD + BAD.format("ValueError: bad") + HEAD + "Traceback (most recent call last):\nKeyboardInterrupt\n",
         "KeyboardInterrupt"),
        (HEAD + BAD.format("ValueError: bad") + HEAD + "slurmstepd: error: *** JOB 7 ON gpu1 CANCELLED AT "
         "2026-01-05T03:17:51 ***\n", "slurmstepd: error: *** JOB 7 ON gpu1 CANCELLED AT 2026-01-05T03:17:51 ***"),
        # lines that each process prints
        (HEAD * 2 + BAD.format("ValueError: bad") + HEAD + BAD.format("KeyError: 'rank'"), "ValueError: bad"),
        (BAD.format("ValueError: bad") + HEAD + BAD.format("KeyError: 'rank'"), "ValueError: bad"),
        (TABLE + BAD.format("ValueError: bad") + TABLE + BAD.format("KeyError: 'rank'"), "ValueError: bad"),
    ],
)  # fmt: skip
def test_first_lines_that_come_again_begin_another_launch(tmp_path: Path, text: str, root: str) -> None:
    assert of(tmp_path, text).incidents[0].root.record.line == root
