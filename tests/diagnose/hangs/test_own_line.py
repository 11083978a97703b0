"""The line of the training in which a hung rank is, from the words of its place."""

import pytest

from transom_cli.diagnose.hangs.stacks import Kind, Place


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("clock_nanosleep (libc.so.6) < get_batch (hang.py:13) < <module> (hang.py:18)", "get_batch (hang.py:13)"),
        ("wait (threading.py:320) < get (queue.py:171) < batches (data.py:9)", "batches (data.py:9)"),
        ("all_reduce (torch/distributed/distributed_c10d.py:2501) < <module> (train.py:4)", "<module> (train.py:4)"),
        ("0x7f78 (libc.so.6) < backward (torch/autograd/__init__.py:395)", ""),
    ],
)
def test_the_innermost_call_that_is_no_librarys(words: str, line: str) -> None:
    assert Place(Kind.OWN, (), words).own_line == line
