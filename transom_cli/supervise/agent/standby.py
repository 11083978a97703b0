"""The wrapper's part of a standby rank: starts the process that waits (heartbeat/standby), and lets it go.

srun broadcasts one line of standard input to all tasks: the variables of the launch that begins, as JSON. If the input
ends without it, the standby is not needed any more. A line of standard output says what the standby waits for.

Standard library only, and light, as all of the wrapper.
"""
# ruff: noqa: PTH123

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal

from transom_cli.heartbeat import paths

TYPE_CHECKING = False  # as typing has it: the wrapper of every rank pays for its imports
if TYPE_CHECKING:
    from collections.abc import Callable

REPORT = "transom-standby "  # starts a line of the step's log that the launcher reads
ENDED = "the standby has ended"
LOOK = 5.0  # seconds between two looks at the size of a script's output
MOST = 4 << 20  # bytes of it that are kept
_FIRST = "1000"  # oom_score_adj by which the kernel ends a standby before any rank
MEMORY = 0.1  # of the node's memory must be available, or no process is started
_ALONE = ("-u", "-O", "-OO", "-B", "-q", "-s", "-b", "-bb")  # options of Python without a value
_WITH_VALUE = ("-W", "-X")


def suits(command: list[str]) -> bool:
    """Whether the command is a Python script or module that reads PYTHONPATH. A shell script may do things before."""
    name = os.path.basename(command[0])  # noqa: PTH119
    if not name.startswith("python") or name[len("python") :].strip("0123456789.t"):
        return False
    words = iter(command[1:])
    for word in words:
        if word in _WITH_VALUE:
            next(words, "")
        elif word == "-m":
            return next(words, "") not in ("", "torch.distributed.run", "torch.distributed.launch")
        elif word.startswith("-"):
            if word not in _ALONE and word[:2] not in _WITH_VALUE:
                return False
        else:
            return True
    return False


class Standby:
    """One process that waits, started with the environment `env`.

    why: Why there is none, or why it starts from scratch.
    """

    def __init__(
        self, modules: str, command: list[str], env: dict[str, str], prepare: Callable[[], None], *,
        script: bool = False,
    ) -> None:  # fmt: skip
        """prepare: called in the child before it executes the command. script: the script runs up to a call."""
        self._modules, self._command, self._env, self._prepare = modules, command, env, prepare
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self.pid, self.why = 0, "" if suits(command) else f"{command[0]} does not run a Python script"
        if not self.why and not _has_memory():
            self.why = "the node has too little memory"
        self._output, self._said, self._go, self._waits = -1, -1, -1, False
        if self.why:
            self._report(why=self.why)
            return
        if script:
            with contextlib.suppress(OSError):
                self._output = os.memfd_create("transom-standby")
                fcntl.fcntl(self._output, fcntl.F_SETFL, os.O_APPEND)
        self._start()

    def _start(self) -> None:
        to_child, self._go = os.pipe()
        self._said, from_child = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(to_child)
            os.close(from_child)
            _set_oom_score(self.pid, _FIRST)
            return
        try:
            self._prepare()
            for number in (signal.SIGUSR1, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            for end in (to_child, from_child, self._output):
                if end >= 0:
                    os.set_inheritable(end, True)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            ends = f"{to_child},{from_child},{self._output},{self._modules}"
            os.execvpe(self._command[0], self._command, {**self._env, paths.WAITING: ends})
        finally:
            os._exit(127)

    def wait(self) -> dict[str, str] | None:
        """Wait until the launch begins, and return its variables; None if this standby is not needed."""
        line = b""
        while not line.endswith(b"\n"):
            prints = self._output >= 0 and not self._waits
            ready = select.select([0, self._said] if self.pid else [0], [], [], LOOK if prints else None)[0]
            if prints:
                self._bound_output()
            if self._said in ready:
                self._hear()
            if 0 not in ready:
                continue
            piece = os.read(0, 65536)
            if not piece:
                self.end()
                return None
            line += piece
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        found: dict[str, str] = json.loads(line)
        return found

    def go(self, env: dict[str, str], log: str, mark: str) -> bool:
        """Make the process a rank with this environment and log. False if there is none, or it has ended.

        mark: the file that the process makes if it starts from scratch.
        """
        if not self.pid:
            return False
        if os.waitpid(self.pid, os.WNOHANG)[0]:
            self.pid, self.why = 0, ENDED
            return False
        _set_oom_score(self.pid, _oom_score())
        changed = {name: value for name, value in env.items() if self._env.get(name) != value}
        message = {"set": changed, "unset": sorted(self._env.keys() - env.keys()), "log": log, "mark": mark}
        try:
            with open(self._go, "wb") as pipe:
                pipe.write(json.dumps(message).encode())
        except BrokenPipeError:
            self.end()
            self.why = ENDED
            return False
        return True

    def outcome(self) -> str:
        """What became of the standby: "used", or why its rank started from scratch."""
        if self.pid and select.select([self._said], [], [], 0)[0]:
            self._read()
        return self.why or "used"

    def end(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def _hear(self) -> None:
        """Hear where the process waits, or that it has ended. One whose script has failed is replaced by another."""
        if said := self._read():
            self._waits = True
            self._report(**said)
            return
        self.end()
        self.pid = 0
        os.close(self._go)
        os.close(self._said)
        if self._output < 0:
            self.why = ENDED
            self._report(why=ENDED)
            return
        failed = f"its script has ended: {self._last_words()}"
        os.close(self._output)
        self._output = -1
        self._report(failed=failed)
        self._start()

    def _read(self) -> dict[str, str]:
        """What the process has said; {} at its end."""
        text = os.read(self._said, 4096)
        said: dict[str, str] = json.loads(text) if text else {}
        self.why = said.get("why", self.why)
        return said

    def _report(self, at: str = "", why: str = "", failed: str = "") -> None:
        """Tell the launcher, by a line of the step's log. failed: why the script does not run beforehand."""
        rank, launch = int(self._env.get("RANK", "0")), int(self._env.get(paths.LAUNCH, "0"))
        place = {"launch": launch, "rank": rank, "node": paths.node_name()}
        said = {**place, "at": at, "why": why, "failed": failed}
        with contextlib.suppress(OSError):
            os.write(1, f"{REPORT}{json.dumps(said)}\n".encode())

    def _bound_output(self) -> None:
        if os.fstat(self._output).st_size > MOST:
            os.ftruncate(self._output, MOST // 2)
            os.write(self._output, b"\ntransom: some output before the rank began is left out\n")

    def _last_words(self) -> str:
        size = os.fstat(self._output).st_size
        lines = os.pread(self._output, 4096, max(0, size - 4096)).decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it has printed nothing")[:500]


def _set_oom_score(pid: int, score: str) -> None:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write(score)


def _oom_score() -> str:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj") as file:
        return file.read().strip()
    return "0"


def _has_memory() -> bool:
    found = {}
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
        for line in file:
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0])
    return found.get("MemAvailable", 0) >= MEMORY * found.get("MemTotal", 0)
