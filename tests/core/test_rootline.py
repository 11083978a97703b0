"""The patterns that meet logs: what they take for an exception, and that no line keeps them busy for ever."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core import rootline, srunwords, stacks
from transom_cli.core.logedges import LogState, watch
from transom_cli.core.rootline import clean, exception_in, root_line
from transom_cli.health import kernel, reach

HEAD = "Traceback (most recent call last):"
TAIL = 256 * 1024  # characters of a log that are read for its first cause
# What has been printed by ranks, or could be, over and over; each tells nothing.
PIECES = [
    "1: ", "[0]: ", "0: 4120 ", "expert load 0: 4120 1: 4063 ", "[rank3]: ", " [", "1", " ", "A", "A.", "a.", "AError",
    "1:", "x:1:", "\u00a0", "\t", "\x1b[", "\x1b[0;", "\x1b[0 ", "usage: ", "a: error:", "c" * 300 + ": ", "Error",
    "NVRM: Xid (", "SXid (", "mce: ", "EDAC ", "XFS", "nvme1: ", "rcu ", "pcieport ", "AER: ", "nfs: server ",
    "Lustre", "failed on node ", "Thread 1 (", 'Thread 1 (x): "" ', "    a (", "    a (b:1:", "srun: error: ",
    "srun: error: n: task 1",
]  # fmt: skip


def as_it_was(line: str) -> str | None:
    """What was said of lines that it could get through; this takes exponential time for others."""
    labels = r"^(?:\[?[\w ]*\d+\]?:\s*)*"
    found = re.match(labels + r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b.*)", line)
    return found[1] if found else None


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", PIECES, ids=lambda p: repr(p[:20]))
def test_no_line_keeps_the_reader_busy(piece: str) -> None:
    """Growing: what takes exponential time never gets beyond the first few."""
    for size in (64, 512, 4096, 32768):
        line = piece * (size // len(piece)) + "x"
        root_line(line)
        root_line(f"{HEAD}\n{line}\n")
        watch(LogState(tracing=9, usage=9), [line])
        for reader in (exception_in, rootline.usage_error_in, rootline.fault_in):  # also of a line that nobody has cut
            reader(line)
        stacks.parse(line)
        srunwords.task_exits(line, 0.0)
        reach.is_node_silence(line)
        kernel.judge_kernel("node1", (kernel.message(b"3,1,1,-;" + line.encode()),))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["usage: x", "1: x", "a.", "\x1b[0;"])
def test_nor_do_many_lines(piece: str) -> None:
    text = (piece + "\n") * (TAIL // len(piece))
    root_line(text)
    root_line(f"{HEAD}\n{text}")
    watch(LogState(), [HEAD, *text.split("\n")])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ValueError: bad", "ValueError: bad"),
        ("torch.OutOfMemoryError: CUDA out of memory", "torch.OutOfMemoryError: CUDA out of memory"),
        ("[rank3]: KeyError: 'lr'", "KeyError: 'lr'"),
        ("3: [rank3]: ValueError: bad", "ValueError: bad"),
        ("[0]: [1]:KeyboardInterrupt", "KeyboardInterrupt"),
        ("worker 12: SystemExit: 3", "SystemExit: 3"),
        ("node1 0: 1: a.b_c.MyException", "a.b_c.MyException"),
        ("[rank3]: step 7", None),
        ("rank: ValueError: no number", None),
        ("expert load 0: 4120 1: ValueError", "ValueError"),
        ("see ValueError", None),
        ("valueError: small", None),
    ],
)
def test_the_last_line_of_a_traceback(line: str, found: str | None) -> None:
    told = exception_in(line)
    assert (told.line if told else None) == found == as_it_was(line)


WORDS = ["[", "]", ":", " ", "1", "22", "rank", "ValueError", "x", "a.b.", "A", "Error", "KeyError: y", "_", ".", "é"]


@given(st.lists(st.sampled_from(WORDS), max_size=9).map("".join))
def test_the_same_is_found_as_before(text: str) -> None:
    line = clean(text)
    told = exception_in(line)
    assert (told.line if told else None) == as_it_was(line)


def test_the_first_error_below_the_last_usage() -> None:
    usage = "usage: train.py [-h]"
    assert root_line(f"{usage}\na: error: 1\na: error: 2\n{usage}\n\nb: error: 3\nc: error: 4\n").line == "b: error: 3"
    assert root_line(f"a: error: above\n{usage}\nstep 3\n").category == "unknown"
    assert root_line("usage: \nlast").line == "last"


def test_a_line_is_looked_at_from_its_beginning_only() -> None:
    assert clean("\x1b[0m" * 1000 + "x" * 5000) == "x" * 96
    assert clean(" " * 5000 + "x") == ""


def test_a_range_of_tasks_that_srun_cannot_mean_is_none() -> None:
    assert len(srunwords.task_exits("srun: error: n2: tasks 0-3: Killed", 1.0)) == 4
    assert srunwords.task_exits("srun: error: n2: tasks 0-99999999999: Killed", 1.0) == ()
