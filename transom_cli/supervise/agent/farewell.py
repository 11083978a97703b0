"""How long an agent stays after TERM, which Slurm sends to all of a job at once."""

from __future__ import annotations

from transom_cli.layout import AttemptDir

LAUNCHER_SILENT = 2.5  # seconds; its sign of life comes once a second
KILL_NEAR = 27.0  # seconds from TERM: Slurm's KillWait is 30


class Farewell:
    """The launcher may have a checkpoint to order before the end, and ranks to be ended.

    `over` once it has fallen silent, or KillWait is nearly up. At once where there is no launcher.
    """

    def __init__(self, attempt: AttemptDir, now: float) -> None:
        self._attempt = attempt
        self._until = now + KILL_NEAR
        self._sign, self._signed = self._read(), now

    def over(self, now: float) -> bool:
        sign = self._read()
        if sign != self._sign:
            self._sign, self._signed = sign, now
        return not sign or now - self._signed >= LAUNCHER_SILENT or now >= self._until

    def _read(self) -> str:
        try:
            return self._attempt.launcher_alive.read_text()
        except OSError:
            return ""
