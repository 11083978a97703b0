"""Forks ranks from a process that has imported torch, which takes seconds of CPU in each process that does so itself.

`Forked` is a `subprocess.Popen` of `[sys.executable, script, ...]`: the rank is a child of the calling process, has its
own pipes and environment, and ends as a separate Python would. Two servers take turns, so that ranks iterate over sets
in different orders, as the ranks of a real training do.
"""

from __future__ import annotations

import array
import ctypes
import gc
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from processes import as_slurmd_starts

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_MOST = 1 << 18  # bytes of a request
_servers: dict[int, tuple[int, socket.socket]] = {}


class Forked(subprocess.Popen[str]):
    def _execute_child(self, args: Any, *about: Any) -> None:  # type: ignore[override]
        _, _, _, _, cwd, env, _, _, _, *pipes = about[:15]
        standard = [fd if fd != -1 else own for own, fd in enumerate((pipes[0], pipes[3], pipes[5]))]
        env = dict(os.environ if env is None else env)
        words = [str(word) for word in args[1:] if word != "-I"]
        self.pid = _fork({"words": words, "env": env, "cwd": str(cwd or Path.cwd())}, standard)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _fork(request: dict[str, Any], standard: list[int]) -> int:
    server = _server(int(request["env"].get("RANK", "0")) % 2)
    prctl = ctypes.CDLL(None).prctl
    prctl(_SUBREAPER, 1, 0, 0, 0)  # the server's grandchild becomes a child of this process
    try:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", standard))
        server.sendmsg([json.dumps(request).encode()], [rights])
        return int(server.recv(64))
    finally:
        prctl(_SUBREAPER, 0, 0, 0, 0)


def _server(number: int) -> socket.socket:
    pid, line = _servers.get(number, (0, None))
    if line is None or pid != os.getpid():
        line, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
        command = [sys.executable, __file__, str(its.fileno())]
        subprocess.Popen(command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, preexec_fn=as_slurmd_starts)
        its.close()
        _servers[number] = os.getpid(), line
    return line


def _serve(line: socket.socket) -> list[str]:
    """Return in each rank, with its script and arguments."""
    import torch
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor

    gc.collect()
    gc.freeze()  # the ranks' collections leave these pages shared
    while True:
        data, rights, _, _ = line.recvmsg(_MOST, socket.CMSG_SPACE(3 * 4))
        if not data:
            os._exit(0)
        standard = array.array("i")
        standard.frombytes(rights[0][2])
        its_pid, tell = os.pipe()
        between = os.fork()
        if between:
            for fd in (*standard, tell):
                os.close(fd)
            os.waitpid(between, 0)  # from here on the rank has its new parent
            line.send(os.read(its_pid, 64))
            os.close(its_pid)
            continue
        rank = os.fork()
        if rank:
            os.write(tell, str(rank).encode())
            os._exit(0)
        for fd in (line.detach(), its_pid, tell):
            os.close(fd)
        request = json.loads(data)
        for own, fd in enumerate(standard):
            os.dup2(fd, own)
            os.close(fd)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        if "OMP_NUM_THREADS" in os.environ:
            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        return request["words"]


if __name__ == "__main__":
    sys.argv = _serve(socket.socket(fileno=int(sys.argv[1])))
    __file__ = sys.argv[0]
    sys.path[0] = str(Path(__file__).resolve().parent)
    exec(compile(Path(__file__).read_text(), __file__, "exec"))
