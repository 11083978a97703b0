"""One building of a release: where it writes, how its programs are run, and what it tells meanwhile."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transom_cli.errors import TransomError, printable

_PATIENCE_S = 1800.0  # for one program: a mirror may be slow


@dataclass(frozen=True)
class Building:
    """``scratch`` is emptied when the building ends; ``log`` stays, with all that the programs printed."""

    scratch: Path
    log: Path
    say: Callable[[str], None]

    def run(self, argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
        """Run a program to its end. Raises TransomError with the last of its words."""
        self._tell(argv)
        with self.log.open("ab") as log:
            self._checked(argv, lambda: _run(argv, {**os.environ, **(env or {})}, cwd, log.fileno(), log.fileno()))

    def pipe(self, first: Sequence[str], second: Sequence[str]) -> None:
        """`first | second`."""
        with self.log.open("ab") as log:
            with subprocess.Popen(first, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log) as source:
                assert source.stdout is not None
                stdin = source.stdout.fileno()
                self._checked(second, lambda: _run(second, os.environ, None, log.fileno(), log.fileno(), stdin))
            self._checked(first, lambda: source.returncode)

    def _checked(self, argv: Sequence[str], run: Callable[[], int]) -> None:
        try:
            code = run()
        except FileNotFoundError as error:
            raise TransomError(f"`{argv[0]}` is not on this machine", str(error)) from error
        except subprocess.TimeoutExpired as error:
            raise TransomError(
                f"`{argv[0]}` did not end within {_PATIENCE_S:.0f} s", hint=f"less {self.log}"
            ) from error
        if code != 0:
            words = self.log.read_text(errors="replace").splitlines()[-5:]
            raise TransomError(
                f"`{Path(argv[0]).name}` failed (exit {code})", "\n".join(map(printable, words)), f"less {self.log}"
            )

    def _tell(self, argv: Sequence[str]) -> None:
        with self.log.open("a") as log:
            log.write(f"+ {' '.join(argv)}\n")


def _run(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path | None, out: int, err: int, stdin: int = subprocess.DEVNULL
) -> int:
    done = subprocess.run(
        argv, env=dict(env), cwd=cwd, stdin=stdin, stdout=out, stderr=err, check=False, timeout=_PATIENCE_S
    )
    return done.returncode
