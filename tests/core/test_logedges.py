"""Logs that grow: what is new in them, told once, whatever the pieces they come in."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core.logedges import BELOW, MARKS, LogState, watch

HEAD = "Traceback (most recent call last):"
LOG = [
    "step 1 loss 3.0",
    "ValueError: printed, not raised",
    HEAD,
    '  File "train.py", line 31, in <module>',
    "KeyError: 'lr'",
    "During handling of the above exception, another exception occurred:",
    "[rank3]: " + HEAD,
    "[rank3]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77",
    "usage: train.py [-h] [--lr LR]",
    "train.py: error: unrecognized arguments: --lrr",
    "RuntimeError: printed long after",
    "\x1b[31mCUDA error: uncorrectable ECC error encountered\x1b[0m",
    "cp: error: No space left on device",
    "slurmstepd: error: Out of memory",
]
FOUND = [
    ("user", "KeyError: 'lr'", None),
    ("peer", "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77", 3),
    ("usage", "train.py: error: unrecognized arguments: --lrr", None),
    ("user", "RuntimeError: printed long after", None),
    ("device", "CUDA error: uncorrectable ECC error encountered", None),
    ("storage", "cp: error: No space left on device", None),
    ("oom", "slurmstepd: error: Out of memory", None),
]


def read(pieces: list[list[str]]) -> list[tuple[str, str, int | None]]:
    state, found = LogState(), []
    for piece in pieces:
        if state.idle and not any(mark in "\n".join(piece).encode() for mark in MARKS):
            continue  # as the agent does it
        state, edges = watch(state, piece)
        found += [(e.told.category, e.told.line, e.rank) for e in edges]
    return found


def test_each_rule_in_one_log() -> None:
    assert read([LOG]) == FOUND


@given(st.lists(st.integers(0, len(LOG)), max_size=6))
def test_the_pieces_that_a_log_comes_in_change_nothing(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(LOG)]
    assert read([LOG[a:b] for a, b in pairwise(ends)]) == read([LOG])


def test_an_exception_long_after_a_traceback_is_only_printed() -> None:
    quiet = ["step"] * BELOW
    assert read([[HEAD, *quiet[:-2], "ValueError: its own"]]) == [("user", "ValueError: its own", None)]
    assert read([[HEAD, *quiet, "ValueError: printed"]]) == []


@pytest.mark.parametrize("line", ["using gloo backend", "watchdog armed", "memory 3 GiB", "usage of memory: 5 %"])
def test_ordinary_lines_tell_nothing(line: str) -> None:
    assert read([[line]]) == []
