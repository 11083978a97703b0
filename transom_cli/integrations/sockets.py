"""The TCP sockets of torch's process groups and stores: shutting them ends their collectives at once.

gloo's own abort() does not end a collective while its peers live (torch 2.13). NCCL's groups are aborted by torch.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def abort() -> None:
    """End the collectives of this process."""
    if dist.is_initialized() and "nccl" in dist.get_backend():
        with contextlib.suppress(Exception):
            c10d._abort_process_group()
    sockets.shut()


class Sockets:
    """The TCP sockets of torch's process groups and stores: those that appear while torch makes one."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._before: set[str] | None = None  # while one is being made

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note those of groups that are made in this block."""
        made, met = c10d._new_process_group_helper, c10d.rendezvous

        def make(*args: Any, **kwargs: Any) -> Any:
            with self.new():
                return made(*args, **kwargs)

        def meet(*args: Any, **kwargs: Any) -> Iterator[Any]:
            found = met(*args, **kwargs)
            while True:
                with self.new():
                    try:
                        one = next(found)
                    except StopIteration:
                        return
                yield one

        c10d._new_process_group_helper, c10d.rendezvous = make, meet
        try:
            yield
        finally:
            c10d._new_process_group_helper, c10d.rendezvous = made, met

    @contextlib.contextmanager
    def new(self) -> Iterator[None]:
        """Note sockets that appear in this block."""
        self._before = set(_open_sockets())
        try:
            yield
        finally:
            self._known |= set(_open_sockets()) - self._before
            self._before = None

    def shut(self) -> None:
        """Shut them, and what was accepted at one of them: gloo accepts connections after it has made a group."""
        before, accepted = self._before, list[socket.socket]()
        with contextlib.ExitStack() as stack:
            ports = set()
            for name, fd in _open_sockets().items():
                with contextlib.suppress(OSError):
                    found = stack.enter_context(socket.socket(fileno=os.dup(fd)))
                    if found.family not in (socket.AF_INET, socket.AF_INET6):
                        continue
                    ours = name in self._known or (before is not None and name not in before)
                    if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        ports |= {found.getsockname()[1]} if ours else set()
                    elif ours:
                        found.shutdown(socket.SHUT_RD)
                    else:
                        accepted.append(found)
            for found in accepted:
                with contextlib.suppress(OSError):
                    if found.getsockname()[1] in ports:
                        found.shutdown(socket.SHUT_RD)

    def forget(self) -> None:
        self._known.clear()


sockets = Sockets()


def _open_sockets() -> dict[str, int]:
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
            if target.startswith("socket:"):
                found[target] = int(name)
    return found
