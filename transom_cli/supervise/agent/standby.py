"""The wrapper's part of a standby rank: starts the process that waits (heartbeat/standby), and lets it go.

srun broadcasts one line of standard input to all tasks: the variables of the launch that begins, as JSON. If the input
ends without it, the standby is not needed any more.

Standard library only, and light, as all of the wrapper.
"""
# ruff: noqa: PTH123

from __future__ import annotations

import contextlib
import json
import os
import select
import signal

from transom_cli.heartbeat import paths

TYPE_CHECKING = False  # as typing has it: the wrapper of every rank pays for its imports
if TYPE_CHECKING:
    from collections.abc import Callable

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

    def __init__(self, modules: str, command: list[str], env: dict[str, str], prepare: Callable[[], None]) -> None:
        """prepare: called in the child before it executes the command."""
        self._env = env
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self.pid, self.why = 0, "" if suits(command) else f"{command[0]} does not run a Python script"
        if not self.why and not _has_memory():
            self.why = "the node has too little memory"
        if self.why:
            return
        to_child, self._go = os.pipe()
        self._said, from_child = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(to_child)
            os.close(from_child)
            return
        try:
            prepare()
            for number in (signal.SIGUSR1, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            for end in (to_child, from_child):
                os.set_inheritable(end, True)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.execvpe(command[0], command, {**env, paths.WAITING: f"{to_child},{from_child},{modules}"})
        finally:
            os._exit(127)

    def wait(self) -> dict[str, str] | None:
        """Wait until the launch begins, and return its variables; None if this standby is not needed."""
        line = b""
        while not line.endswith(b"\n"):
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
            self.pid, self.why = 0, "the standby has ended"
            return False
        if select.select([self._said], [], [], 0)[0]:
            self.why = os.read(self._said, 4096).decode(errors="replace")
        changed = {name: value for name, value in env.items() if self._env.get(name) != value}
        message = {"set": changed, "unset": sorted(self._env.keys() - env.keys()), "log": log, "mark": mark}
        try:
            with open(self._go, "wb") as pipe:
                pipe.write(json.dumps(message).encode())
        except BrokenPipeError:
            self.end()
            self.why = "the standby has ended"
            return False
        return True

    def end(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _has_memory() -> bool:
    found = {}
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
        for line in file:
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0])
    return found.get("MemAvailable", 0) >= MEMORY * found.get("MemTotal", 0)
