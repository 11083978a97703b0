"""How a rank hears that its training is to be entered again: files in node memory, from its node's agent.

    reenter-<launch>       the order, as JSON: the next launch, and variables of its rendezvous. Written by the agent
    hears-<launch>-<rank>  the rank waits for orders; not empty if it may train without the lost ranks. Written by the
                           rank

Standard library only: agents and ranks read this.
"""
# ruff: noqa: PTH104, PTH116, PTH118, PTH208

from __future__ import annotations

import contextlib
import json
import os

from transom_cli.heartbeat import paths

TYPE_CHECKING = False  # as typing has it
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MOST = 4096  # bytes of an order
_ALLOWED = (paths.LAUNCH, "MASTER_ADDR", "MASTER_PORT", paths.REPLICAS)
_closers: list[Callable[[], Callable[[], None] | None]] = []


def write_order(beats_dir: str, launch: int, variables: Mapping[str, str]) -> None:
    """Order the ranks of `launch` on this node to enter their training again. Raises OSError."""
    path = _order(beats_dir, launch)
    with open(f"{path}.tmp", "w", opener=_private) as file:
        json.dump({name: variables.get(name, "") for name in _ALLOWED}, file)
    os.rename(f"{path}.tmp", path)


def read_order(beats_dir: str, launch: int) -> dict[str, str] | None:
    """The order for `launch`: variables for the rank's environment. None if there is none."""
    try:
        fd = os.open(_order(beats_dir, launch), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        found = json.loads(file.read(MOST))
    return {name: str(found[name]) for name in _ALLOWED}


def hear(beats_dir: str, launch: int, rank: int, *, elastic: bool = False) -> None:
    """Say that the rank waits for orders. elastic: it may train without the lost ranks. Raises OSError."""
    fd = os.open(_ear(beats_dir, launch) + str(rank), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    if elastic:
        os.write(fd, b"elastic\n")
    os.close(fd)


def hear_no_more(beats_dir: str, launch: int, rank: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(_ear(beats_dir, launch) + str(rank))  # noqa: PTH108


def hearing(beats_dir: str, launch: int) -> list[int]:
    """The ranks of `launch` on this node that wait for orders. One that has died is still listed."""
    start = os.path.basename(_ear(beats_dir, launch))  # noqa: PTH119
    try:
        names = os.listdir(beats_dir)
    except OSError:
        return []
    return sorted(
        int(name[len(start) :]) for name in names if name.startswith(start) and name[len(start) :].isdecimal()
    )


def elastic(beats_dir: str, launch: int, ranks: Iterable[int]) -> bool:
    """Whether all these ranks may train without the lost ones."""
    try:
        return all(os.stat(_ear(beats_dir, launch) + str(rank)).st_size for rank in ranks)
    except OSError:
        return False


def at_reentry(close: Callable[[], Callable[[], None] | None]) -> None:
    """Before this process enters its training again, call what the weak reference `close` refers to."""
    _closers[:] = [one for one in _closers if one() is not None]
    _closers.append(close)


def close_all() -> None:
    """End what belongs to the launch before, the newest first. What cannot be closed must not keep the rank."""
    while _closers:
        if (close := _closers.pop()()) is not None:
            with contextlib.suppress(Exception):
                close()
    _Watched.marks = _Watched.stepping = False


class StartsFromScratch(BaseException):
    """Ends a training that cannot be entered again in this process; the rank's command is executed again."""


class _Watched:
    """The training function that this process may enter again.

    boundary: called after each step. ranks_per_replica: of elastic replicas. marks: something keeps the state of
    complete steps (`ckpt.live`). stepping: an optimizer has begun a step, and the training has not finished it.
    """

    active = False
    marks = False
    stepping = False
    boundary: Callable[[], None] | None = None
    ranks_per_replica = 1


def watch(boundary: Callable[[], None] | None, ranks_per_replica: int = 1) -> None:
    """A training begins that this process may enter again. boundary: called after each of its steps."""
    _Watched.active, _Watched.marks, _Watched.stepping, _Watched.boundary = True, False, False, boundary
    _Watched.ranks_per_replica = ranks_per_replica


def watch_no_more() -> None:
    _Watched.active, _Watched.boundary = False, None


def watched() -> bool:
    return _Watched.active


def elastic_replicas() -> bool:
    """Whether this process's training may go on with fewer ranks in the same launch."""
    return _Watched.boundary is not None


def ranks_per_replica() -> int:
    """How many ranks in a row share one replica of the state, each with a shard of its own. 1: each has all of it."""
    return _Watched.ranks_per_replica


def stepping() -> bool:
    return _Watched.stepping


def begin_step() -> None:
    _Watched.stepping = _Watched.marks


def step_done() -> None:
    """The training has finished its step: no value changes until the next one."""
    _Watched.marks, _Watched.stepping = True, False


def at_boundary() -> None:
    """Called at the end of a step by all ranks. May raise a BaseException by which the training is entered again."""
    if _Watched.boundary is not None:
        _Watched.boundary()


def redirect(launch: int, rank: int) -> None:
    """Write to the log of the new launch from now on."""
    path = os.path.join(os.environ[paths.ATTEMPT_DIR], "logs", str(launch), f"rank-{rank}.log")
    try:
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:  # then it stays in the old one
        return
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _order(beats_dir: str, launch: int) -> str:
    return f"{beats_dir}/reenter-{launch}"


def _ear(beats_dir: str, launch: int) -> str:
    return f"{beats_dir}/hears-{launch}-"
