"""The worker process of pyslurm: started on demand, killed at a deadline, restarted for the next call.

It can exit during its import, die of a signal inside libslurm, hang there, or return garbage. All of this is reported
as WorkerLost, so that the caller can use Slurm's commands instead.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transom_cli.slurm.parse import clean

_MOST_BYTES = 1 << 28  # of one answer: a hundred thousand jobs
_LAST_OUTPUT = 600  # characters of a dying worker's output


class WorkerLost(Exception):
    """The worker gave no answer. The argument is the reason, for people."""


class WorkerHung(WorkerLost):
    """The worker was alive at the deadline and was killed."""


@dataclass
class Worker:
    """``argv`` starts a process with the protocol of `worker`; ``env`` is its whole environment."""

    argv: Sequence[str]
    env: Mapping[str, str]
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _stderr: int = field(default=-1, init=False)  # reading end of the worker's stderr

    def ask(self, call: str, given: Mapping[str, Any], patience: float) -> dict[str, Any]:
        """Return the answer to one call. Raises WorkerLost if there is none within `patience` seconds."""
        with self._lock:  # two threads of the operator use it
            return self._ask(call, given, patience)

    def _ask(self, call: str, given: Mapping[str, Any], patience: float) -> dict[str, Any]:
        question = json.dumps({"call": call, "with": dict(given)}) + "\n"
        deadline = time.monotonic() + patience
        try:
            process = self._running()
            assert process.stdin is not None
            process.stdin.write(question.encode())
            process.stdin.flush()
            answer = json.loads(self._line(process, deadline))
        except TimeoutError:
            self.end()
            raise WorkerHung(f"pyslurm did not answer within {patience:g} s") from None
        except (OSError, EOFError) as error:
            raise WorkerLost(self._post_mortem(error)) from error
        except ValueError as error:  # no JSON, or not UTF-8
            self.end()
            raise WorkerLost(f"pyslurm's process returned an invalid answer ({error})") from error
        if not isinstance(answer, dict) or len(answer.keys() & {"value", "error", "lacks"}) != 1:
            self.end()
            raise WorkerLost("pyslurm's process returned an invalid answer (neither value nor error)")
        return answer

    def end(self) -> None:
        """Leave no process behind. The next call starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # another user's process ends with its input
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # a call that was never read
                pipe.close()  # type: ignore[union-attr]
        os.close(self._stderr)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1.0)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._stderr, theirs = os.pipe()
            for end in (self._stderr, theirs):
                os.set_blocking(end, False)  # libslurm's messages over days must not fill the pipe and block it
            try:
                self._process = subprocess.Popen(
                    list(self.argv), env=dict(self.env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=theirs,
                    start_new_session=True,
                )  # fmt: skip
            except OSError:
                os.close(self._stderr)
                raise
            finally:
                os.close(theirs)
        return self._process

    def _line(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        assert process.stdout is not None
        got: list[bytes] = []
        size = 0
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                part = os.read(process.stdout.fileno(), 1 << 16)
                if not part:
                    raise EOFError
                got.append(part)
                size += len(part)
                if part.endswith(b"\n"):  # one answer per call
                    return b"".join(got)
                if size > _MOST_BYTES:
                    raise ValueError("no end of the line")

    def _post_mortem(self, error: Exception) -> str:
        process = self._process
        if process is None:
            return f"pyslurm's process could not be started: {error}"
        words = self._last_output()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1.0)
        code = process.returncode
        self.end()
        if code is None:
            how = "closed its output"
        elif code < 0:
            how = f"died of {signal.Signals(-code).name}" if -code in set(signal.Signals) else f"died of signal {-code}"
        else:
            how = f"ended with exit status {code}"
        return f"pyslurm's process {how}" + (f": {words}" if words else "")

    def _last_output(self) -> str:
        got = b""
        with contextlib.suppress(OSError):
            while part := os.read(self._stderr, 1 << 16):
                got = (got + part)[-4 * _LAST_OUTPUT :]
        lines = clean(got.decode("utf-8", "replace")).splitlines()
        return "; ".join(lines[-3:])[-_LAST_OUTPUT:]
