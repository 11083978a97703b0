"""What takes longer says so on a terminal, and leaves nothing there; a pipe never sees it."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import textwrap
import time

import pytest

PROGRAM = """
import time
import rich.progress  # which may take long, on a busy machine
from transom_cli.view import terminal
terminal.PATIENCE = float({patience!r})
with terminal.waiting("bytes\\x1b[2J are read", {total}) as shown:
    for n in range(3):
        time.sleep(0.4)
        shown.step(f"step-{{n}} is read")
print("done")
"""


def seen(patience: float, total: int | None) -> str:
    return on_terminal(PROGRAM.format(patience=patience, total=total))


def on_terminal(code: str) -> str:
    """What a terminal gets on stderr."""
    mine, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, stdout=subprocess.PIPE, env=env)
    os.close(theirs)
    told, end = b"", time.monotonic() + 30
    while time.monotonic() < end:
        if select.select([mine], [], [], 0.1)[0]:
            try:
                told += os.read(mine, 65536)
            except OSError:
                break
        elif process.poll() is not None:
            break
    out, _ = process.communicate()
    assert out == b"done\n"
    return told.decode(errors="replace")


def test_what_is_soon_over_says_nothing() -> None:
    assert seen(30.0, 3) == ""


@pytest.mark.parametrize(("total", "counts"), [(3, True), (None, False)])
def test_what_takes_long_says_what_it_does_and_how_far_it_is(total: int | None, counts: bool) -> None:
    told = seen(0.05, total)
    assert re.search("(are|is) read", told) and "\x1b[2J" not in told
    assert ("2/3" in told) is counts


def test_a_pipe_never_sees_it() -> None:
    code = PROGRAM.format(patience=0.0, total=3)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_bytes_are_counted_as_bytes_and_how_many_there_are_may_come_late() -> None:
    code = """
        import time
        from transom_cli.view import terminal
        terminal.PATIENCE = 0.0
        with terminal.waiting("a file is written", of_bytes=True) as shown:
            while shown._bar is None:
                time.sleep(0.01)
            shown.expect(3 << 30)
            shown.add(3 << 29, "step-2 is written")
            time.sleep(0.5)
        print("done")
    """
    told = on_terminal(textwrap.dedent(code))
    assert "step-2 is written" in told and "1.5/3.0 GiB" in told


def test_a_pipe_gets_the_message_once_if_the_caller_wants_that() -> None:
    code = """
import sys, time
from transom_cli.view import terminal
terminal.PATIENCE = 0.05
with terminal.waiting("stopping r", in_pipe=True):
    time.sleep(0.5)
    print("waiting for Slurm", file=sys.stderr)
with terminal.waiting("soon over", in_pipe=True):
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("", "stopping r\nwaiting for Slurm\n")


def test_a_terminal_keeps_a_line_that_is_said_during_the_wait() -> None:
    code = """
import sys, time
from transom_cli.view import terminal
terminal.PATIENCE = 0.05
with terminal.waiting("stopping r", in_pipe=True):
    time.sleep(0.5)
    print("waiting for Slurm", file=sys.stderr)
print("done")
"""
    told = on_terminal(code)
    assert "stopping r" in told and told.count("waiting for Slurm") == 1
