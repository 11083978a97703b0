"""Runs somebody else's program as a check: no shell, a deadline, a bounded output, and nothing of it left behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from transom_cli.core.rootline import clean

_KEPT = 4096  # bytes of the output; what comes after them is read and thrown away
_TURN = 0.05  # seconds between two looks whether it has ended, while it prints nothing
_REAP = 2.0  # seconds for a killed program to be gone: one that hangs in the kernel is left to hang
_PASSED = ("HOME", "USER", "LOGNAME", "LANG", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


_GROUPS: set[int] = set()  # process groups of programs that run now


@contextlib.contextmanager
def known(group: int) -> Iterator[None]:
    """While it runs: `end_all` ends it too."""
    _GROUPS.add(group)
    try:
        yield
    finally:
        _GROUPS.discard(group)


def end_all() -> None:
    """For a process that ends before its programs do: a diagnostic must not load the GPUs of the training to come."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for group in tuple(_GROUPS):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        time.sleep(_TURN if number == signal.SIGTERM else 0.0)


@dataclass(frozen=True)
class Ran:
    """code: what it exited with, minus the signal's number when one ended it; None: it was not started (`error`), or
    had not ended by its deadline and was killed. said: the first line that it printed, without control characters.
    """

    program: str
    code: int | None = None
    said: str = ""
    took: float = 0.0
    error: str = ""


def environment(node: str, tier: str) -> dict[str, str]:
    """What it gets to know: of the job, all that Slurm says. In a Prolog there is no PATH, so that one is set."""
    kept = {k: v for k, v in os.environ.items() if k in _PASSED or k.startswith("SLURM")}
    return kept | {"PATH": os.environ.get("PATH") or _PATH, "TRANSOM_NODE": node, "TRANSOM_TIER": tier}


def run(argv: Sequence[str], env: Mapping[str, str], seconds: float) -> Ran:
    """Never raises. When it returns the program's process group is dead: what it left running in it is killed too.

    A program that hangs in the kernel cannot be killed; it is left behind, and holds up nobody.
    """
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd="/",
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Ran(argv[0], error=getattr(error, "strerror", None) or str(error))
    assert process.stdout is not None
    with process.stdout as pipe, known(process.pid):
        output, ended = _read(process, pipe.fileno(), began + seconds)
        took = time.monotonic() - began
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP)
    lines = (clean(line) for line in output.decode("utf-8", "replace").splitlines())
    said = next((line for line in lines if line), "")
    return Ran(argv[0], process.returncode if ended else None, said, took)


def _read(process: subprocess.Popen[bytes], pipe: int, until: float) -> tuple[bytes, bool]:
    """The output's beginning, and whether it ended by itself. A child of it that holds the pipe is not waited for."""
    output, is_open = b"", True
    while (left := until - time.monotonic()) > 0:
        wait = min(left, _TURN)
        if is_open and select.select([pipe], [], [], wait)[0]:
            data = os.read(pipe, 65536)
            is_open = bool(data)
            output += data[: _KEPT - len(output)]
        elif _has_ended(process.pid):
            return output, True
        elif not is_open:
            time.sleep(wait)
    return output, _has_ended(process.pid)


def _has_ended(pid: int) -> bool:
    """It is not reaped: until its group is killed, the number must not go to somebody else."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
