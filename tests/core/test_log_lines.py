"""The patterns that meet logs: no line keeps them busy for ever."""

from __future__ import annotations

import io

import pytest

from transom_cli.core import slurm_messages as srunwords
from transom_cli.core import stacks
from transom_cli.core.log_lines import clean, without_advice
from transom_cli.diagnose.logs import grammar, rulebook
from transom_cli.diagnose.logs.reader import hits_in
from transom_cli.diagnose.logs.rule_files import load, parse
from transom_cli.diagnose.logs.rulebook import Rulebook
from transom_cli.health import reach
from transom_cli.health.checks import kernel

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


@pytest.fixture(scope="module")
def book() -> Rulebook:
    return Rulebook(load())


@pytest.mark.timeout(180)
@pytest.mark.parametrize("piece", PIECES, ids=lambda p: repr(p[:20]))
def test_no_line_keeps_the_reader_busy(piece: str, book: Rulebook) -> None:
    """Parse ever longer lines: exponential time would exceed the test's time limit at the first sizes."""
    for size in (64, 512, 1000, 4096, 32768)[: 5 if rulebook.FAST else 4]:
        line = piece * (size // len(piece)) + "x"
        record = grammar.record(grammar.clean(line.encode()))
        for n in range(len(book.rules)):  # also those whose texts are not in it
            for short in {False, size <= rulebook.SHORT}:
                match, unless = book._expressions(n, short)
                for expression in (*match, *unless):
                    expression.search(record.text)
        list(hits_in(io.BytesIO(f"{HEAD}\n{line}\n".encode()), book))
        stacks.parse(line)
        srunwords.task_exits(line, 0.0)
        reach.is_node_silence(line)
        kernel.judge_lines("node1", (kernel.message(b"3,1,1,-;" + line.encode()),))
        assert len(record.text) <= len(line)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("piece", ["usage: x", "1: x", "a.", "\x1b[0;", "Error: "])
def test_nor_do_many_lines(piece: str, book: Rulebook) -> None:
    text = (piece + "\n") * (TAIL // len(piece) // (1 if rulebook.FAST else 32))
    assert all(hit.lineno <= text.count("\n") + 1 for hit in hits_in(io.BytesIO(f"{HEAD}\n{text}".encode()), book))


@pytest.mark.parametrize(
    "advice",
    [
        ". This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting "
        "an error. GLHF! \U0001f3d6\ufe0f",
        ". This is typically caused by a remote worker hanging or bugs in the application.",
        "",
    ],
)
def test_error_of_gloo_is_shortened_to_what_happened(advice: str) -> None:
    line = f"RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Read error [::1]:9{advice}"
    assert without_advice(f"{line}; stopped by crash-loop") == "RuntimeError: Read error [::1]:9; stopped by crash-loop"
    assert without_advice("[a] typically fine") == "[a] typically fine"


def test_a_line_is_looked_at_from_its_beginning_only() -> None:
    assert clean("\x1b[0m" * 1000 + "x" * 5000) == "x" * 96
    assert clean(" " * 5000 + "x") == ""


def test_a_range_of_tasks_that_srun_cannot_mean_is_none() -> None:
    assert len(srunwords.task_exits("srun: error: n2: tasks 0-3: Killed", 1.0)) == 4
    assert srunwords.task_exits("srun: error: n2: tasks 0-99999999999: Killed", 1.0) == ()


def test_expression_of_a_user_keeps_nothing_busy_in_a_short_line() -> None:
    text = '[[rule]]\nname = "mine"\ncategory = "user_code"\nany = ["boom"]\nmatch = ["boom (a+)+b"]\n'
    (rule,), wrong = parse(text, "mine.toml")
    assert not wrong
    if rulebook.FAST:
        assert not Rulebook([rule]).matches(grammar.record(f"boom {'a' * 400}"))
