"""The root before its victims, over one log and over many; what survived; who is to blame."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.diagnose.clue import Category, Clue, Culprit
from transom_cli.diagnose.combine import combine, document
from transom_cli.diagnose.logs.cause import incidents
from transom_cli.diagnose.logs.diagnosis import Diagnosed, diagnose_logs
from transom_cli.diagnose.logs.diagnosis import from_incident as of_logs
from transom_cli.diagnose.logs.kinds import hit_of
from transom_cli.diagnose.logs.matches import Found
from transom_cli.diagnose.logs.rule_files import load
from transom_cli.diagnose.logs.rulebook import Rulebook

BOOK = Rulebook(load())
RESET = "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.5]:39271"
WATCHDOG = (
    "[rank{0}]:[E] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, "
    "Timeout(ms)=600000) ran for 600043 milliseconds before timing out."
)
TRACE = "Traceback (most recent call last):\n"
CANCELLED = "slurmstepd: error: *** {0} ON gpu1 CANCELLED AT 2026-01-05T03:17:51{1} ***\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 79.11 GiB"
BARS = "".join(f"\rtrain: {n}% {n}/100 [00:{n:02d}<01:00, 2.{n:02d}it/s]" for n in range(1, 60))


def of(tmp_path: Path, *logs: str, names: tuple[str, ...] = ()) -> Diagnosed:
    for number, text in enumerate(logs):
        (tmp_path / (names[number] if names else f"rank-{number}.log")).write_text(text)
    return diagnose_logs([tmp_path], BOOK)


def test_a_healthy_log_has_no_incident(tmp_path: Path) -> None:
    told = of(tmp_path, f"start\n{BARS}\nUserWarning: RuntimeError may come\ndone\n")
    assert told.incidents == () and len(told.files) == 1
    assert document((), 1)["incidents"] == []


def test_the_quiet_cause_goes_before_loud_victims(tmp_path: Path) -> None:
    victims = [f"step 1\n{RESET}\n{RESET}\nsrun: error: n1: task {n}: Exited with exit code 1\n" for n in range(3)]
    told = of(tmp_path, *victims, f"{BARS}\nTraceback (most recent call last):\n{OOM}\n")
    (first,) = told.incidents
    assert (first.category, first.root.file, first.root.lineno) == (Category.CUDA_OOM, str(tmp_path / "rank-3.log"), 3)
    assert first.culprits == (Culprit(rank=3),)
    assert any(line.startswith("connection-lost: 6 lines of 3 ranks") for line in of_logs(first).consequences)


@pytest.mark.parametrize(
    ("line", "category"),
    [
        ("failures.WorldSizeChanged: step-152 was written by 1 rank, and this training has 2", Category.USER_CODE),
        ("failures.SaveFailed: step-152 was not saved", Category.STORAGE_IO),
        ("failures.BadManifest: manifest.json is damaged", Category.CHECKPOINT_CORRUPT),
        ("failures.StateMismatch: the checkpoint has no model.head.weight", Category.USER_CODE),
    ],
)
def test_an_error_of_transoms_own_is_the_root_and_not_the_last_line_of_its_hint(
    line: str, category: Category, tmp_path: Path
) -> None:
    text = f"""{TRACE}  File "/site-packages/transom_cli/ckpt/checkpointer.py", line 210, in restore
    found = self._restorer.restore(allow_lost)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
transom_cli.ckpt.{line}
  data: kept per rank, and nothing says what another number of ranks should have

hint: start with 1 rank, or declare it to the Checkpointer:
        reshard=['data']: it starts afresh
      transom_cli.elastic.GlobalBatches keeps a data position for any number of ranks
"""
    (first,) = of(tmp_path, text, text).incidents
    assert (first.category, first.root.record.text) == (category, f"transom_cli.ckpt.{line}")


@pytest.mark.parametrize("time", ["", "2026-01-05 03:17:5{} "])
def test_error_of_all_ranks_is_the_programs_unless_times_show_who_was_first(tmp_path: Path, time: str) -> None:
    logs = [f"step 4\n{TRACE}{time.format(9 - rank)}KeyError: 'lr'\n" for rank in range(2)]
    (found,) = of(tmp_path, *logs).incidents
    first = (Culprit(rank=1),) if time else ()
    assert (found.category, found.culprits) == (Category.USER_CODE, first)
    assert any(("this one was first" if time else "it is not one rank's") in one for one in of_logs(found).evidence)


def test_slurm_node_failure_wins_over_earlier_lines(tmp_path: Path) -> None:
    ended = CANCELLED.format("STEP 7.0", " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS")
    text = f"CUDA error: unspecified launch failure\nsrun: error: Node failure on gpu7\n{ended}"
    (first,) = of(tmp_path, text).incidents
    assert (first.category, first.culprits) == (Category.SLURM_NODE_FAIL, (Culprit("gpu7"),))


def test_oom_kill_reported_last_is_the_root(tmp_path: Path) -> None:
    killed = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed."
    text = f"RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. \n{killed}\n"
    (first,) = of(tmp_path, text).incidents
    assert (first.category, first.root.lineno) == (Category.HOST_OOM, 2)


def test_a_time_limit_does_not_hide_what_went_wrong_before(tmp_path: Path) -> None:
    limit = CANCELLED.format("JOB 7", " DUE TO TIME LIMIT")
    (first,) = of(tmp_path, f"{TRACE}KeyError: 'x'\n{limit}").incidents
    assert first.category is Category.USER_CODE
    (first,) = of(tmp_path, f"{TRACE}KeyError: 'x'\n{BARS}\n{limit}").incidents
    assert first.category is Category.SLURM_TIME_LIMIT, "the training continued after the exception"


def test_what_comes_after_the_end_is_its_consequence(tmp_path: Path) -> None:
    text = f"{BARS}\n{CANCELLED.format('JOB 7', '')}{TRACE}ValueError: I/O operation on closed file.\n"
    (first,) = of(tmp_path, text).incidents
    assert first.category is Category.SLURM_CANCELLED


def test_of_chained_exceptions_the_special_one_tells(tmp_path: Path) -> None:
    chain = f"\nDuring handling of the above exception, another exception occurred:\n\n{TRACE}"
    full = "OSError: [Errno 28] No space left on device"
    text = f"{TRACE}KeyError: 'x'\n{chain}{full}\n{chain}RuntimeError: cannot save\n"
    (first,) = of(tmp_path, text).incidents
    assert (first.category, first.root.record.line) == (Category.STORAGE_FULL, full)


def test_the_exception_in_a_loaders_worker_is_the_root(tmp_path: Path) -> None:
    caught = "KeyError: Caught KeyError in DataLoader worker process 3."
    text = f"{TRACE}{caught}\nOriginal {TRACE}  File 'd.py', line 3\nKeyError: 'label'\n"
    (first,) = of(tmp_path, text).incidents
    assert (first.category, first.root.lineno) == (Category.DATA_LOADER, 5)


def test_the_code_in_a_traceback_is_no_message(tmp_path: Path) -> None:
    code = '  File "t.py", line 3, in f\n    raise_if("CUDA out of memory")\n    ~~~~^^^\n'
    (first,) = of(tmp_path, f"{TRACE}{code}KeyError: 'lr'\n").incidents
    assert (first.category, first.root.lineno) == (Category.USER_CODE, 5)


def test_who_ends_without_a_word_has_ended_the_others(tmp_path: Path) -> None:
    exits = "".join(f"srun: error: n{rank}: task {rank}: Exited with exit code 1\n" for rank in range(3))
    names = ("rank-0.log", "rank-1.log", "rank-2.log", "job.out")
    told = of(tmp_path, "rank gives up\n", RESET, RESET, exits, names=names)
    (first,) = told.incidents
    assert (first.category, first.culprits) == (Category.UNKNOWN, (Culprit("n0", 0),))


def test_what_ended_a_job_in_another_log_may_have_come_later(tmp_path: Path) -> None:
    """Slurm's word stands in a short log, the exception at the end of a long one; neither has a time."""
    failed = f"{'x' * 9999}\n{TRACE}KeyError: 'lr'\n"
    (first,) = of(tmp_path, failed, CANCELLED.format("JOB 7", ""), names=("rank-0.log", "job.out")).incidents
    assert first.category is Category.USER_CODE


def test_a_step_that_was_cancelled_in_one_log_for_a_task_that_ended_in_another(tmp_path: Path) -> None:
    def told(ends: str) -> Category:
        step = CANCELLED.format("STEP 7.0", "")
        return of(tmp_path, step, RESET, ends, names=("rank-0.log", "rank-1.log", "job.out")).incidents[0].category

    assert told("srun: error: n2: task 2: Killed\n") is Category.HOST_OOM
    assert told("srun: error: n2: task 2: Killed\nsrun: error: n1: task 1: Killed\n") is Category.SLURM_CANCELLED


def test_independent_faults_are_two_incidents(tmp_path: Path) -> None:
    full = f"{TRACE}OSError: [Errno 28] No space left on device\n"
    killed = (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
    )
    found = of(tmp_path, full + killed).incidents
    assert [one.category for one in found] == [Category.HOST_OOM, Category.STORAGE_FULL]


def test_step_cancelled_after_a_dead_task_is_a_consequence(tmp_path: Path) -> None:
    text = "srun: error: n1: task 1: Killed\n" + CANCELLED.format("STEP 7.0", "")
    (first,) = of(tmp_path, text).incidents
    assert (first.category, first.culprits) == (Category.HOST_OOM, (Culprit("n1", 1),))


@pytest.mark.parametrize(("numbers", "culprits"), [
    ({0: 20, 1: 20, 2: 17, 3: 20}, (Culprit(rank=2),)),
    ({0: 20, 1: 20, 2: 20, 3: None}, (Culprit(rank=3),)),
    ({0: 20, 1: 20, 2: 20, 3: 20}, ()),
])  # fmt: skip
def test_in_a_hang_who_lags_or_is_silent_is_to_blame(
    tmp_path: Path, numbers: dict[int, int | None], culprits: tuple[Culprit, ...]
) -> None:
    logs = [f"{BARS}\n" + (f"{WATCHDOG.format(rank, number)}\n" if number else "") for rank, number in numbers.items()]
    (first,) = of(tmp_path, *logs).incidents
    assert (first.category, first.culprits) == (Category.NCCL_HANG, culprits)


def test_a_watchdog_is_a_victim_of_another_ranks_exception(tmp_path: Path) -> None:
    late = f"{'x' * 999}\n{BARS}\n{TRACE}ZeroDivisionError: division by zero\n"
    (first,) = of(tmp_path, f"{WATCHDOG.format(0, 9)}\n", late).incidents
    assert (first.category, first.culprits) == (Category.USER_CODE, (Culprit(rank=1),))


def test_of_error_files_the_earliest_is_the_root(tmp_path: Path) -> None:
    def written(message: str, at: int) -> str:
        return json.dumps({"message": {"message": message, "extraInfo": {"py_callstack": "", "timestamp": str(at)}}})

    texts = [written("ValueError: late", 1700000009), written("KeyError: 'early'", 1700000001), '{"steps": 3}']
    for number, text in enumerate(texts):
        (tmp_path / f"rank_{number}_error.json").write_text(text)
    (first,) = diagnose_logs([tmp_path], BOOK).incidents
    assert (first.root.record.line, first.culprits) == ("KeyError: 'early'", (Culprit(rank=1),))


def test_the_box_of_torchrun_names_rank_and_host(tmp_path: Path) -> None:
    box = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-05_03:17:51\n  host      : gpu3\n"
        "  rank      : 12 (local_rank: 4)\n  exitcode  : -9 (pid: 4711)\n  traceback : Signal 9 (SIGKILL) received\n"
    )
    (first,) = of(tmp_path, f"{BARS}\n{box}", names=("job.out",)).incidents
    assert (first.category, first.culprits) == (Category.HOST_OOM, (Culprit("gpu3", 12),))


def test_nan_again_and_again_but_not_once(tmp_path: Path) -> None:
    well = "".join(f"step {n} loss: 1.{n}\n" for n in range(20))
    assert of(tmp_path, well + "step 20 loss: nan\n" + well).incidents == ()
    (first,) = of(tmp_path, well + "".join(f"step {n} loss: nan\n" for n in range(20))).incidents
    assert first.category is Category.NUMERIC_DIVERGENCE


FEW = "step 1 loss: 3.1\nstep 2 loss: 3.0\n"  # of progress: not enough to show that a job survived something
BIND = "[{0} socket.cpp:426] [c10d] The server socket has failed to bind to [::]:1 (errno: 98 - Address already in use)"
REFUSED = (
    "[W socket.cpp:697] [c10d] The client socket has failed to connect to [n0]:29500 (errno: 111 - Connection refused)."
)


def test_warnings_alone_are_no_failure(tmp_path: Path) -> None:
    assert (
        of(tmp_path, f"{BIND.format('W')}\n{REFUSED}\nWARNING:absl:CUDA out of memory, smaller batch\n{FEW}").incidents
        == ()
    )


def test_warning_counts_beside_a_failure(tmp_path: Path) -> None:
    (first,) = of(
        tmp_path, f"{FEW}{BIND.format('W')}\n{BIND.format('E')}\nRuntimeError: Address already in use\n"
    ).incidents
    assert (first.category, first.root.lineno) == (Category.RENDEZVOUS_PORT, 3), "it began with the warning"
    (first,) = of(tmp_path, f"{FEW}{BIND.format('W')}\nsrun: error: n1: task 0: Exited with exit code 1\n").incidents
    assert first.category is Category.RENDEZVOUS_PORT, "something did end it"
    (first,) = of(tmp_path, f"{BIND.format('W')}\n{TRACE}KeyError: 'x'\n").incidents
    assert first.category is Category.USER_CODE, "what is no warning goes before"


@pytest.mark.parametrize("said", [
    "Exception ignored in: <function Loader.__del__ at 0x7f00>",
    "--- Logging error ---",
    "Exception in thread Thread-3 (_pin_memory_loop):",
])  # fmt: skip
def test_a_traceback_that_python_ignores_is_no_cause(tmp_path: Path, said: str) -> None:
    ignored = f"{said}\n{TRACE}  File 'x.py', line 3\nAssertionError: can only test a child process\n"
    assert of(tmp_path, FEW + ignored).incidents == ()
    (first,) = of(tmp_path, f"{ignored}{TRACE}KeyError: 'x'\n").incidents
    assert first.root.record.line == "KeyError: 'x'", "the next one counts"
    special = ignored.replace("AssertionError: can only test a child process", "OSError: [Errno 5] Input/output error")
    (first,) = of(tmp_path, FEW + special).incidents
    assert first.category is Category.STORAGE_IO, "it tells all the same of what is special"


def test_failure_reported_as_over_is_ignored(tmp_path: Path) -> None:
    lost = "nfs: server nas1 not responding, still trying\n"
    assert of(tmp_path, f"{lost}nfs: server nas1 OK\n").incidents == ()
    (first,) = of(tmp_path, f"nfs: server nas1 OK\n{lost}").incidents
    assert first.category is Category.STORAGE_IO


def test_a_victims_word_after_a_good_end_is_noise(tmp_path: Path) -> None:
    noise = "NCCL WARN socketProgress: Connection closed by remote peer n2<5000>\n"
    done = "[2026-01-05 10:02:05,000] [INFO] [launch.py:347:main] Process 12 exits successfully.\n"
    assert of(tmp_path, FEW + done + noise).incidents == ()
    assert of(tmp_path, FEW + "Training complete!\n" + noise).incidents, "a script may say so whatever has happened"
    assert of(tmp_path, FEW + done + f"{TRACE}KeyError: 'x'\n").incidents, "a cause is one also then"
    assert of(tmp_path, FEW + done + "srun: error: n1: task 1: Killed\n").incidents, "so is the end of another rank"


def test_a_connection_that_breaks_after_the_last_step_is_noise(tmp_path: Path) -> None:
    broken = "[rank1]:[E] [Rank 1] Collective WorkNCCL(SeqNum=9) failed: NCCL error: unhandled system error"
    assert of(tmp_path, f"step 1998/2000\nstep 2000/2000\n{broken}\n").incidents == ()
    assert of(tmp_path, f"step 1998/2000\nstep 1999/2000\n{broken}\n").incidents, "not before it"
    hang = WATCHDOG.format(1, 9)
    assert of(tmp_path, f"step 1998/2000\nstep 2000/2000\n{hang}\n").incidents, "saving may hang"


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_wrong_argument_goes_before_sruns_end_of_the_step_in_any_order(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    usage = "0: usage: train.py [-h]\n0: train.py: error: unrecognized arguments: --lr-warmup\n"
    exited = "".join(f"srun: error: n1: task {n}: Exited with exit code 2\n" for n in range(2))
    parts = usage + usage.replace("0: ", "1: "), exited, CANCELLED.format("STEP 7.0", "")
    (first,) = of(tmp_path, "".join(parts[n] for n in order), names=("job.out",)).incidents
    assert (first.root.rule.name, first.culprits) == ("usage", ())


def test_a_step_that_srun_ends_after_a_tasks_failure_is_not_cancelled(tmp_path: Path) -> None:
    ended = CANCELLED.format("STEP 7.0", "") + "srun: error: n1: tasks 1-3: Killed\n"
    (first,) = of(tmp_path, f"{FEW}srun: error: n1: task 0: Exited with exit code 1\n{ended}").incidents
    assert (first.category, first.root.rule.name) == (Category.UNKNOWN, "task-exited")
    (first,) = of(tmp_path, FEW + ended).incidents
    assert first.category is Category.SLURM_CANCELLED


def test_traceback_without_its_heading(tmp_path: Path) -> None:
    """An excerpt, or the tail of a log."""
    text = '  File "t.py", line 3, in f\n    raise ValueError(x)\nValueError: x\n'
    (first,) = of(tmp_path, text).incidents
    assert (first.category, first.root.lineno) == (Category.USER_CODE, 3)


@pytest.mark.parametrize("indent", ["", "    ", "        "])
def test_indented_traceback(tmp_path: Path, indent: str) -> None:
    """As loggers of servers print it."""
    code = '  File "t.py", line 3, in f\n    raise_if("CUDA out of memory")\n'
    text = "".join(f"{indent}{line}\n" for line in f"{TRACE}{code}OSError: [Errno 28] No space left".splitlines())
    (first,) = of(tmp_path, f"server: uncaught\n{text}").incidents
    assert (first.category, first.root.lineno) == (Category.STORAGE_FULL, 5)


def test_exception_without_a_traceback(tmp_path: Path) -> None:
    exited = "srun: error: gpu3: task 0: Exited with exit code 1\n"
    (first,) = of(tmp_path, f"TypeError: can't convert it\n{exited}").incidents
    assert (first.category, first.root.lineno) == (Category.USER_CODE, 1)


@pytest.mark.parametrize(("later", "category"), [
    (f"{TRACE}{OOM}\n", Category.CUDA_OOM),
    (CANCELLED.format("JOB 7", " DUE TO TIME LIMIT"), Category.SLURM_TIME_LIMIT),
    ("slurmstepd: error: execve(): train: No such file or directory\n", Category.SLURM_LAUNCH),
    ("", Category.SLURM_LAUNCH),
])  # fmt: skip
def test_a_script_goes_past_a_command_that_it_does_not_find(tmp_path: Path, later: str, category: Category) -> None:
    (first, *_) = of(tmp_path, f"slurm_script: line 9: setenv: command not found\n{later}").incidents
    assert (first.category, first.root.lineno > 1) == (category, bool(later))


def test_an_exception_says_more_than_the_warning_before_it(tmp_path: Path) -> None:
    warned = "2026-01-05 14:49:11.318542: W tensorflow/core/framework/op_kernel.cc:1273] Resource: OOM when allocating"
    text = f"{warned} tensor\n{TRACE}ResourceExhaustedError: OOM when allocating tensor with shape[2]\n"
    (first,) = of(tmp_path, text).incidents
    assert (first.category, first.root.lineno) == (Category.CUDA_OOM, 3)


@pytest.mark.parametrize(("inner", "category"), [
    ("asyncio.exceptions.CancelledError", Category.SLURM_CANCELLED),
    ("ValueError: x", Category.SLURM_CANCELLED),
    (OOM, Category.CUDA_OOM),
])  # fmt: skip
def test_an_interrupt_at_the_end_of_a_chain(tmp_path: Path, inner: str, category: Category) -> None:
    chain = f"\nDuring handling of the above exception, another exception occurred:\n\n{TRACE}KeyboardInterrupt\n"
    (first,) = of(tmp_path, f"{TRACE}{inner}\n{chain}").incidents
    assert first.category is category


def test_what_a_replica_had_raised(tmp_path: Path) -> None:
    text = f"{TRACE}torch.OutOfMemoryError: Caught OutOfMemoryError in replica 1 on device 1.\nOriginal {TRACE}{OOM}\n"
    (first,) = of(tmp_path, text).incidents
    assert (first.category, first.root.lineno) == (Category.CUDA_OOM, 4)


def test_a_message_below_its_exception(tmp_path: Path) -> None:
    text = f"{TRACE}RuntimeError:\nThe detected CUDA version (11.1) mismatches the version that was used to compile\n"
    (first,) = of(tmp_path, text).incidents
    assert (first.category, first.root.lineno) == (Category.DEPENDENCY_IMPORT, 3)
    (first,) = of(tmp_path, f"{TRACE}RuntimeError:\nno rule knows this\n").incidents
    assert (first.category, first.root.lineno) == (Category.USER_CODE, 2)


@pytest.mark.parametrize(("inner", "category", "lineno"), [
    (OOM, Category.CUDA_OOM, 4),
    ("NotImplementedError", Category.USER_CODE, 2),
])  # fmt: skip
def test_what_a_task_of_ray_had_raised(tmp_path: Path, inner: str, category: Category, lineno: int) -> None:
    text = f"{TRACE}ray.exceptions.RayTaskError(X): ray::main() (pid=7, ip=10.0.0.4)\n  File 'x.py', line 3\n{inner}\n"
    (first,) = of(tmp_path, text).incidents
    assert (first.category, first.root.lineno) == (category, lineno)


def test_of_a_job_that_failed_what_seemed_to_be_survived_tells(tmp_path: Path) -> None:
    """LSF prints what went to stderr, and its own report, before what went to stdout."""
    (first,) = of(tmp_path, f"{OOM}\nExited with exit code 1.\n{BARS}\n").incidents
    assert first.category is Category.CUDA_OOM
    assert of(tmp_path, f"{OOM}\n{BARS}\n").incidents == ()


@pytest.mark.parametrize(("line", "told"), [
    ("2026-01-05 08:07:20,024 - mmdet - INFO - Epoch [7][{0}/99] loss_cls: 0.0000, loss: 0.0000, grad_norm: nan", True),
    ("2026-01-05 08:07:20,024 - mmdet - INFO - Epoch [7][{0}/99] loss_cls: 0.{0}, loss: 1.{0}, grad_norm: nan", False),
    ("epoch {0} loss: 0.{0} aux_loss: nan kl_loss: nan", False),
    ("{0}/9 [====] - 1s - loss: 0.{0} - val_loss: nan", False),
    ("{0}/9 [====] - 1s - loss: nan - val_loss: nan", True),
    ("Epoch {0}, Train Loss: nan, Val Loss: nan, Acc: 0.1", True),
])  # fmt: skip
def test_whose_loss_is_no_number(tmp_path: Path, line: str, told: bool) -> None:
    found = of(tmp_path, FEW + "".join(line.format(n) + "\n" for n in range(1, 5))).incidents
    assert [one.category for one in found] == [Category.NUMERIC_DIVERGENCE] * told


def test_unreadable_logs_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"no gzip")
    told = diagnose_logs([tmp_path], BOOK)
    assert told.files == () and told.unread[0][0] == str(tmp_path / "a.gz")


def test_dump_evidence_is_combined_with_logs(tmp_path: Path) -> None:
    (hang,) = of(tmp_path, *(f"{BARS}\n{WATCHDOG.format(rank, 9)}\n" for rank in range(3))).incidents
    stuck = Clue("stacks", Category.NCCL_HANG, 0.8, ("rank 2 reads data, 3 wait in all_reduce",), (Culprit("n2", 2),))
    (first,) = combine([of_logs(hang)], [stuck])
    assert (first.category, first.culprits) == (Category.NCCL_HANG, (Culprit("n2", 2),))
    assert first.confidence >= 0.8 and "stacks: rank 2 reads data, 3 wait in all_reduce" in first.evidence
    (alone,) = combine([], [stuck])
    assert (alone.category, alone.root, document([alone], 0)["incidents"][0]["root_line"]) == (
        stuck.category,
        None,
        None,
    )
    oom = of_logs(diagnose_logs([(tmp_path / "x.log", (tmp_path / "x.log").write_text(OOM))[0]], BOOK).incidents[0])
    (first,) = combine([oom], [stuck])
    assert first.category is Category.CUDA_OOM and first.culprits == oom.culprits


REAL = {
    "import no_such_module_at_all": Category.DEPENDENCY_IMPORT,
    "raise ValueError('bad')": Category.USER_CODE,
    "import os; os.abort()": Category.PROCESS_CRASH,
    "import faulthandler as f, signal, os; f.enable(); os.kill(os.getpid(), 11)": Category.PROCESS_CRASH,
    "open('/dev/full', 'w').write('x' * 100000)": Category.STORAGE_FULL,
    "import socket as s; a = s.socket(); a.bind(('127.0.0.1', 0)); s.socket().bind(a.getsockname())": (
        Category.RENDEZVOUS_PORT
    ),
    "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (8, 8)); f = [open('/dev/null') for _ in range(9)]": (
        Category.RESOURCE_LIMITS
    ),
    "import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 28, 1 << 28)); b'x' * (1 << 29)": Category.HOST_OOM,
    "import pickle; pickle.loads(b'xyz')": Category.CHECKPOINT_CORRUPT,
    "import argparse; p = argparse.ArgumentParser(); p.parse_args(['--odd'])": Category.USER_CODE,
    "import urllib.request as u; u.urlopen('http://nowhere.invalid/x')": Category.EXTERNAL_SERVICE,
    "print('well')": None,
}


@pytest.mark.parametrize("program", REAL, ids=range(len(REAL)))
def test_real_programs_that_fail(tmp_path: Path, program: str) -> None:
    said = "srun: error: n1: task 0: Exited with exit code"
    script = f'"{sys.executable}" -c "$0"; code=$?; [ $code -eq 0 ] || echo "{said} $code"'
    with (tmp_path / "job.out").open("w") as log:
        subprocess.run(["bash", "-c", script, program], stdout=log, stderr=log, check=False, cwd=tmp_path)
    told = diagnose_logs([tmp_path], BOOK).incidents
    assert (told[0].category if told else None) is REAL[program], (tmp_path / "job.out").read_text()


def test_line_order_wins_over_timestamps_within_a_file(tmp_path: Path) -> None:
    early = "2026-01-05 10:00:00,000 - ERROR - trainer - "
    (first,) = of(tmp_path, f"{early}{OOM}\n{TRACE}KeyError: 'x'\n").incidents
    assert first.category is Category.CUDA_OOM, "a line without a time is not of the year 1970"


@given(st.lists(st.sampled_from(["", "2026-01-05 10:00:00 ", "2026-01-05 10:00:09 "]), min_size=1, max_size=6))
def test_the_first_cause_of_a_file_is_its_root(times: list[str]) -> None:
    lines = [f"{when}OSError: [Errno 28] No space left on device: '/{n}'".encode() for n, when in enumerate(times)]
    hits = [hit_of(Found(line, n, n), BOOK) for n, line in enumerate(lines)]
    (first,) = incidents(hit for hit in hits if hit is not None)
    assert first.root.lineno == 0


def test_an_exception_that_was_handled_early_is_not_the_last_ones_root(tmp_path: Path) -> None:
    handled = f"{TRACE}KeyError: 'early'\n{BARS}\n{'x' * 99}\n" + "a line of any kind\n" * 4000
    (first,) = of(tmp_path, f"{handled}{TRACE}ValueError: late\n").incidents
    assert first.root.record.line == "ValueError: late"


def test_last_line_of_a_kind_decides_whether_training_continued(tmp_path: Path) -> None:
    skipped = "".join(f"{OOM} (batch {n})\n{BARS}\n" for n in range(20))
    assert of(tmp_path, skipped).incidents == ()
    (first,) = of(tmp_path, skipped + "a line of any kind\n" * 4000 + f"{OOM}\n").incidents
    assert first.category is Category.CUDA_OOM


def test_a_programs_own_exit_code_goes_before_its_fellows_broken_connections(tmp_path: Path) -> None:
    text = (
        f"[rank0]: {RESET}\nE0105 10:02:05.036000 17 torch/x/api.py:1002] failed (exitcode: 3) local_rank: 1 (pid: 7)\n"
    )
    (first,) = of(tmp_path, text, names=("job.out",)).incidents
    assert (first.category, first.root.rule.name) == (Category.USER_CODE, "own-exit-code")
    (first,) = of(tmp_path, text.replace("exitcode: 3", "exitcode: 1"), names=("job.out",)).incidents
    assert first.category is Category.NETWORK_FABRIC, "1 is also that of the exception that the reset raises"


ABORTED = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
TASK = "srun: error: gpu1: task {0}: {1}\n"


def test_what_srun_kills_after_it_has_begun_to_end_a_step_is_no_cause(tmp_path: Path) -> None:
    killed, ended = TASK.format(0, "Killed"), TASK.format(1, "Exited with exit code 1")
    (swept,) = of(tmp_path, ABORTED + killed + ended, names=("swept.out",)).incidents
    assert (swept.root.rule.name, swept.root.lineno) == ("task-exited", 3)
    (tmp_path / "swept.out").unlink()
    (first,) = of(tmp_path, killed + ABORTED + ended, names=("killed.out",)).incidents
    assert (first.category, first.root.lineno) == (Category.HOST_OOM, 1)


def test_a_log_may_begin_in_the_middle_of_a_traceback(tmp_path: Path) -> None:
    tail = "sqlite3.OperationalError: table runs already exists\n" + "closing\n" * 9
    ended = TASK.format(0, "Exited with exit code 1")
    (bare,) = of(tmp_path, tail + ended).incidents
    assert bare.category is Category.UNKNOWN
    (told,) = of(tmp_path, '  File "/opt/store.py", line 48, in add\n' + tail + ended).incidents
    assert (told.category, told.root.lineno) == (Category.USER_CODE, 2)


def test_last_line_before_an_exit_counts_without_a_traceback(tmp_path: Path) -> None:
    words, ended = "FileExistsError: [Errno 17] File exists: '/d/x'\n", TASK.format(3, "Exited with exit code 1")
    assert of(tmp_path, words).incidents[0].root.lineno == 1
    (first,) = of(tmp_path, words + ended + CANCELLED.format("STEP 7.0", "")).incidents
    assert (first.category, first.root.lineno) == (Category.USER_CODE, 1)


@pytest.mark.parametrize(
    ("text", "category", "line"),
    [
        (
            "salloc: Job 7 has exceeded its time limit and its allocation has been revoked.\n"
            + CANCELLED.format("STEP 7.0", ""),
            Category.SLURM_TIME_LIMIT,
            1,
        ),
        (
            TASK.format(0, "Exited with exit code 130") + "salloc: Job allocation 7 has been revoked.\n",
            Category.SLURM_CANCELLED,
            1,
        ),
        (
            "WARNING:torch.distributed.elastic.agent.server.api:Received 15 death signal, shutting down workers\n",
            Category.SLURM_CANCELLED,
            1,
        ),
        (
            "ERROR: Unable to locate a modulefile for 'fft/3'\n" + TASK.format(3, "Segmentation fault (core dumped)"),
            Category.PROCESS_CRASH,
            2,
        ),
        (
            "Abort(1) on node 0 (rank 0 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 0\n"
            + ABORTED
            + CANCELLED.format("STEP 7.0", "")
            + TASK.format("0-35", "Killed"),
            Category.USER_CODE,
            1,
        ),
        ("application called MPI_Abort(comm=0x84000000, 1) - process 0\n=   EXIT CODE: 9\n", Category.USER_CODE, 1),
        ("=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   EXIT CODE: 9\n", Category.HOST_OOM, 2),
        ("store: a.c:30: put: Assertion `0 == held' failed.\n=   EXIT CODE: 134\n", Category.PROCESS_CRASH, 1),
        (
            "srun: PrologSlurmctld failed, job killed\nsrun: error: Job allocation 7 has been revoked\n",
            Category.SLURM_LAUNCH,
            1,
        ),
        ("srun: error: Job allocation 7 has been revoked\nsrun: Force Terminated job 7\n", Category.SLURM_PREEMPTED, 1),
        ("^Csrun: Job allocation 7 has been revoked\nsrun: Force Terminated job 7\n", Category.SLURM_CANCELLED, 1),
        ("masking the library...srun: Force Terminated job 7\n", Category.SLURM_CANCELLED, 1),
    ],
)
def test_whose_word_it_is(tmp_path: Path, text: str, category: Category, line: int) -> None:
    (first,) = of(tmp_path, text, names=("job.out",)).incidents
    assert (first.category, first.root.lineno) == (category, line)


def test_node_warning_wins_over_an_assertion(tmp_path: Path) -> None:
    warning = (
        "/opt/torch/cuda/__init__.py:52: UserWarning: CUDA initialization: Error 802: system not yet initialized\n"
    )
    assert of(tmp_path, warning + f"{BARS}\ndone\n").incidents == ()
    (first,) = of(tmp_path, f"{warning}{TRACE}AssertionError\n").incidents
    assert (first.category, first.root.lineno) == (Category.NVLINK_FABRIC, 1)
    (known,) = of(tmp_path, f"{warning}{TRACE}ModuleNotFoundError: No module named 'apex'\n").incidents
    assert known.category is Category.DEPENDENCY_IMPORT


@pytest.mark.parametrize("label", ["[rank0]:[rank0]: ", "[default0]:[rank0]:[rank0]: ", "3: [rank3]:[rank3]: "])
def test_labels_that_several_programs_print_are_all_taken_away(tmp_path: Path, label: str) -> None:
    text = "".join(f"{label}{line}\n" for line in f"{TRACE}ValueError: no such layer".splitlines())
    (incident,) = of(tmp_path, text).incidents
    assert incident.category is Category.USER_CODE and incident.root.record.text == "ValueError: no such layer"


def test_a_log_that_ends_within_a_traceback_is_a_failure_until_the_training_continues(tmp_path: Path) -> None:
    (incident,) = of(tmp_path, TRACE).incidents
    assert incident.category is Category.UNKNOWN and "may end within this traceback" in str(incident.root.rule.note)
    progress = "".join(f"step {number} loss 2.{number}\n" for number in range(100, 140))
    assert of(tmp_path, f"{TRACE}Oops\n{progress}").incidents == ()
    (known,) = of(tmp_path, f"{TRACE}ValueError: no such layer\n").incidents
    assert known.category is Category.USER_CODE


def test_an_error_in_a_box_is_read_as_one_without(tmp_path: Path) -> None:
    box = "╭─ Error ────╮\n│ Missing option '--lr'.                  │\n╰────────────╯\n"
    (incident,) = of(tmp_path, f"Usage: train.py [OPTIONS]\n{box}").incidents
    assert incident.category is Category.USER_CODE and incident.root.record.text == "Missing option '--lr'."
