"""Takes stacks of one process with py-spy (github.com/benfred/py-spy), which needs the right to trace it: ptrace(2).

py-spy pauses all threads of the process while it reads them, and also reads native stacks if requested. A process that
is stopped, or that hangs in the kernel, cannot be paused: it is read without a pause, and without its native stack.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from transom_cli.core import stacks
from transom_cli.supervise.agent.procfs import Process, read, send

OWN_LIMIT = 15.0  # seconds for one call; the symbols of a large CUDA library take several
_LIMIT = 1 << 20  # characters of a dump: some hundred threads
NATIVE, PYTHON, NONE = "native", "python", "none"


@dataclass(frozen=True)
class Dumped:
    kind: str  # NATIVE, PYTHON or NONE
    text: str  # the dump
    note: str  # one line that says why there is none, or no native one


def program() -> str | None:
    """Return py-spy beside our own interpreter, else on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def dump(process: Process, deadline: float) -> Dumped:
    """Try until one form works or `deadline` (time.monotonic) is reached; each gets half of the remaining time."""
    found = program()
    if found is None:
        return Dumped(NONE, "", "py-spy is not installed on this node (`pip install py-spy`)")
    now = read(process.pid)
    if now is None or now.start != process.start:
        return Dumped(NONE, "", "it had ended by then")
    forms = [(NATIVE, "--native"), (PYTHON, ""), (PYTHON, "--nonblocking")]
    if now.state in "TtD":
        del forms[:2]
    notes: list[str] = []
    while forms:
        kind, flag = forms.pop(0)
        limit = min(OWN_LIMIT, (deadline - time.monotonic()) * (0.5 if forms else 0.9))
        if limit <= 0:
            notes.append("timed out")
            break
        words = [found, "dump", "--pid", str(process.pid), *([flag] if flag else [])]
        text, why = _call(words, limit)
        if text is not None:
            return Dumped(kind, text, notes[-1] if notes else "")
        if why is None:
            notes.append(f"py-spy{flag and ' '}{flag} timed out after {limit:.1f} s")
            if now.state not in "Tt":  # killed in the middle, it may leave a stop signal behind
                send(process, signal.SIGCONT)
            forms = forms[-1:]  # what could not be paused once will not be the next time
        else:
            notes.append(why)
    return Dumped(NONE, "", notes[-1])


def _call(words: list[str], limit: float) -> tuple[str | None, str | None]:
    """Return the dump, or why there is none; neither if it took too long."""
    env = {**os.environ, "RUST_BACKTRACE": "0"}
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, env=env)
    except subprocess.TimeoutExpired:
        return None, None
    except OSError as error:
        return None, f"cannot run {words[0]}: {error.strerror}"
    text = stacks.clean(done.stdout.decode(errors="replace")[:_LIMIT])
    if done.returncode == 0 and stacks.parse(text).threads:
        return text, None
    said = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    first = next((line for line in said if line.startswith("Error")), said[0] if said else "it printed no stack")
    return None, f"py-spy: {stacks.clean(first)[:200]}"
