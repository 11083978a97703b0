"""The root before its victims, over one log and over many; what survived; who is to blame."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli.diagnose.clue import Category, Culprit
from transom_cli.diagnose.logs.diagnosis import Diagnosed, diagnose_logs
from transom_cli.diagnose.logs.document import clue, document
from transom_cli.diagnose.logs.rulebook import Rulebook
from transom_cli.diagnose.logs.rulefiles import load

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
    assert document(told.incidents, 1)["incidents"] == []


def test_the_quiet_cause_goes_before_loud_victims(tmp_path: Path) -> None:
    victims = [f"step 1\n{RESET}\n{RESET}\nsrun: error: n1: task {n}: Exited with exit code 1\n" for n in range(3)]
    told = of(tmp_path, *victims, f"{BARS}\nTraceback (most recent call last):\n{OOM}\n")
    (first,) = told.incidents
    assert (first.category, first.root.file, first.root.lineno) == (Category.CUDA_OOM, str(tmp_path / "rank-3.log"), 3)
    assert first.culprits == (Culprit(rank=3),)
    assert any(
        line.startswith("connection-lost: 6 lines of 3 ranks")
        for line in document(told.incidents, 4)["incidents"][0]["consequences"]
    )


def test_slurm_knows_the_node_whatever_was_printed_before(tmp_path: Path) -> None:
    ended = CANCELLED.format("STEP 7.0", " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS")
    text = f"CUDA error: unspecified launch failure\nsrun: error: Node failure on gpu7\n{ended}"
    (first,) = of(tmp_path, text).incidents
    assert (first.category, first.culprits) == (Category.SLURM_NODE_FAIL, (Culprit("gpu7"),))


def test_an_oom_kill_that_is_told_last_came_first(tmp_path: Path) -> None:
    killed = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed."
    text = f"RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. \n{killed}\n"
    (first,) = of(tmp_path, text).incidents
    assert (first.category, first.root.lineno) == (Category.HOST_OOM, 2)


def test_a_time_limit_does_not_hide_what_went_wrong_before(tmp_path: Path) -> None:
    limit = CANCELLED.format("JOB 7", " DUE TO TIME LIMIT")
    (first,) = of(tmp_path, f"{TRACE}KeyError: 'x'\n{limit}").incidents
    assert first.category is Category.USER_CODE
    (first,) = of(tmp_path, f"{TRACE}KeyError: 'x'\n{BARS}\n{limit}").incidents
    assert first.category is Category.SLURM_TIME_LIMIT, "the training went on after the exception"


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


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"no gzip")
    told = diagnose_logs([tmp_path], BOOK)
    assert told.files == () and told.unread[0][0] == str(tmp_path / "a.gz")


def test_a_clue_for_who_puts_sources_together(tmp_path: Path) -> None:
    (first,) = of(tmp_path, f"{OOM}\n").incidents
    told = clue(first)
    assert (told.source, told.category, told.culprits) == ("logs", Category.CUDA_OOM, (Culprit(rank=0),))
    assert told.root is not None and told.root.lineno == 1


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
