"""Runs a command of the user's with a message: never by a shell, never longer than its deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping

from transom_cli.errors import printable
from transom_cli.telling.target import Undelivered

_KEPT = 2048  # bytes of what it says on stderr
_LOOK = 0.05  # seconds
_FOREVER = (FileNotFoundError, PermissionError, NotADirectoryError)


def run_command(
    argv: tuple[str, ...], text: bytes, env: Mapping[str, str], timeout: float, end: threading.Event
) -> None:
    """Give it `text` on stdin, and wait for its end. Undelivered unless that is exit code 0 within `timeout` seconds.

    It has a session of its own, which is killed at the deadline, or once `end` is set; what one that ends leaves behind
    (a mail program's queue) lives on. Of what it prints, the beginning of stderr is kept for the error.
    """
    name = os.path.basename(argv[0])  # noqa: PTH119
    deadline = time.monotonic() + timeout
    with tempfile.TemporaryFile() as given:  # a file, since a pipe would block for one that does not read
        given.write(text)
        given.seek(0)
        try:
            process = subprocess.Popen(
                argv,
                stdin=given,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **env},
                start_new_session=True,
            )
        except OSError as error:
            again = not isinstance(error, _FOREVER)
            raise Undelivered(f"{name} cannot be started: {error.strerror or error}", again=again) from None
        except ValueError as error:
            raise Undelivered(f"{name} cannot be started: {error}", again=False) from None
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    said = b""
    try:
        while process.poll() is None and time.monotonic() < deadline and not end.is_set():
            said = _heard(process, said)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK)
        said = _heard(process, said)
    finally:
        code = process.poll()
        if code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stderr.close()
    if code is None:
        raise Undelivered(f"{name} did not end within {timeout:g} s" if not end.is_set() else f"{name} was cut short")
    if code != 0:
        words = printable(said.decode("utf-8", "replace").strip().partition("\n")[0])[:200]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise Undelivered(f"{name} ended with {how}{f': {words}' if words else ''}")


def _heard(process: subprocess.Popen[bytes], said: bytes) -> bytes:
    assert process.stderr is not None
    for _ in range(64):  # 4 MiB a look at most: one that prints without end is still ended in time
        try:
            piece = os.read(process.stderr.fileno(), 1 << 16)
        except BlockingIOError:
            break
        if not piece:
            break
        said = (said + piece)[:_KEPT]
    return said
