"""What a wrapper's text wraps, and backtraces that several processes print."""

from __future__ import annotations

from pathlib import Path

from transom_cli.diagnose.clue import Category
from transom_cli.diagnose.logs.diagnosis import diagnose_logs
from transom_cli.diagnose.logs.rule_files import load
from transom_cli.diagnose.logs.rulebook import Rulebook

BOOK = Rulebook(load())
BACKTRACE = (
    "Exception raised from c10_cuda_check_implementation at /build/c10/cuda/CUDAException.cpp:44 "
    "(most recent call first):\nframe #0: c10::Error::Error(c10::SourceLocation) + 0x57 (0x7f01 in /lib/libc10.so)\n"
)


def test_a_lost_connection_below_a_wrapper_is_what_its_process_raised(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n"
        '  File "/app/train.py", line 9, in train\n    dist.init_process_group("gloo", rank=rank)\n'
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [10.0.0.2]:2226: "
        "Connection refused\n"
    )
    (found,) = diagnose_logs([log], BOOK).incidents
    assert found.category is Category.NETWORK_FABRIC and found.root.record.text.endswith("Connection refused")


def test_a_backtrace_that_two_processes_print_begins_no_launch(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        BACKTRACE
        + "terminate called after throwing an instance of 'c10::Error'\n"
        + "  what():  [Rank 0] CUDA error: an illegal memory access was encountered\n"
        + BACKTRACE
        + "[2026-08-14 22:41:30,275] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -6) "
        + "local_rank: 0 (pid: 77) of binary: python\n"
    )
    found = diagnose_logs([log], BOOK).incidents
    assert found[0].category is Category.CUDA_KERNEL_FAULT
