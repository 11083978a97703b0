"""One building of a release: where it writes, how its programs are run, and what it tells meanwhile."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transom_cli.errors import TransomError, printable

_PATIENCE_S = 1800.0  # for one program: a mirror may be slow


@dataclass(frozen=True)
class Building:
    """``scratch`` is emptied when the building ends; ``log`` stays, with all that the programs printed.

    ``lock``: the builder's, as an open file. The programs hold it too: one that outlives a killed builder still writes.
    """

    scratch: Path
    log: Path
    say: Callable[[str], None]
    lock: int | None = None

    def run(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Run a program to its end. Raises TransomError with the last of its words."""
        with self.log.open("ab", buffering=0) as log:
            log.write(f"+ {' '.join(argv)}\n".encode())
            self._ended(argv, self._start(argv, env, stdout=log, stderr=log))

    def pipe(self, first: Sequence[str], second: Sequence[str]) -> None:
        """`first | second`."""
        with self.log.open("ab", buffering=0) as log:
            source = self._start(first, stdout=subprocess.PIPE, stderr=log)
            assert source.stdout is not None
            with source.stdout:
                sink = self._start(second, stdin=source.stdout, stdout=log, stderr=log)
            self._ended(second, sink)
            self._ended(first, source)

    def _start(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, *, stdin: Any = subprocess.DEVNULL, **out: Any
    ) -> subprocess.Popen[bytes]:
        held = (self.lock,) if self.lock is not None else ()
        try:
            return subprocess.Popen(argv, env={**os.environ, **(env or {})}, stdin=stdin, pass_fds=held, **out)
        except FileNotFoundError as error:
            raise TransomError(f"`{argv[0]}` is not on this machine", str(error)) from error

    def _ended(self, argv: Sequence[str], process: subprocess.Popen[bytes]) -> None:
        try:
            code = process.wait(timeout=_PATIENCE_S)
        except BaseException as error:
            process.kill()
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            what = f"`{Path(argv[0]).name}` did not end within {_PATIENCE_S / 60:.0f} minutes"
            raise TransomError(what, hint=f"less {self.log}") from error
        if code != 0:
            words = self.log.read_text(errors="replace").splitlines()[-5:]
            raise TransomError(
                f"`{Path(argv[0]).name}` failed (exit {code})", "\n".join(map(printable, words)), f"less {self.log}"
            )
