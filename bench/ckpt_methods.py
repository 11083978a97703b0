"""The methods that bench/ckpt.py measures, and their capabilities. A method is imported when it is chosen."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transom_cli.ckpt.snapshot.client import folder_prefix

if TYPE_CHECKING:
    from ckpt_plan import Case
    from ckpt_state import State


@dataclass(frozen=True)
class Entry:
    """`what`: for the table. `where`: module and class. `needs`: packages of others, for pip --no-deps."""

    what: str
    where: str
    needs: tuple[str, ...] = ()


_SNAPSHOT = ("torchsnapshot", "aiofiles", "importlib_metadata<9")
_DLROVER = ("dlrover", "requests", "urllib3", "certifi", "charset_normalizer", "idna", "grpcio", "protobuf")
METHODS = {
    "machine": Entry("the machine alone: copy, then write", "ckpt_raw:Machine"),
    "transom": Entry("transom", "ckpt_ours:Ours"),
    "torch-save": Entry("torch.save + fsync", "ckpt_torch:TorchSave"),
    "safetensors": Entry("safetensors + fsync", "ckpt_torch:SafeTensors", ("safetensors",)),
    "dcp": Entry("DCP", "ckpt_dcp:Dcp"),
    "dcp-2": Entry("DCP, 2 threads", "ckpt_dcp:DcpTwo"),
    "dcp-thread": Entry("DCP async, thread", "ckpt_dcp:DcpThread"),
    "dcp-thread-cached": Entry("DCP async, thread, cached staging", "ckpt_dcp:DcpThreadCached"),
    "dcp-process": Entry("DCP async, process", "ckpt_dcp:DcpProcess"),
    "fork": Entry("fork, child writes", "ckpt_torch:Fork"),
    "torchsnapshot": Entry("torchsnapshot async_take", "ckpt_peers:TorchSnapshot", _SNAPSHOT),
    "dlrover": Entry("DLRover flash checkpoint", "ckpt_dlrover:Flash", _DLROVER),
    "nvrx-torch": Entry("NVRx async torch", "ckpt_nvrx:AsyncTorch", ("nvidia-resiliency-ext",)),
    "nvrx-local": Entry("NVRx local", "ckpt_nvrx:Local", ("nvidia-resiliency-ext",)),
}


@dataclass(frozen=True)
class Place:
    """The place of one rank in one turn. `job`: a name that no other turn has."""

    folder: Path
    rank: int
    case: Case
    job: str

    @property
    def own_file(self) -> bool:
        """Whether this rank writes a file, for methods that know nothing of ranks: of replicas one is enough."""
        return self.case.sharded or self.rank == 0

    @property
    def file_rank(self) -> int:
        return self.rank if self.case.sharded else 0

    @property
    def files(self) -> int:
        return self.case.ranks if self.case.sharded else 1


class Method(ABC):
    """One way to save the state, in one rank. Every rank makes the same calls in the same order.

    `background`: it continues after save(). `memory`: a restart may load from memory that outlived
    the trainer. `synced`: the method makes its files durable by itself; else `finish` does so after it.
    """

    background: ClassVar[bool] = True
    memory: ClassVar[bool] = False
    synced: ClassVar[bool] = True

    def __init__(self, state: State, place: Place) -> None:
        self.state, self.place = state, place

    @abstractmethod
    def save(self, step: int) -> None:
        """As a trainer calls it: when it returns, training may change the state."""

    def done(self) -> bool:
        """Whether the background work of the last save is over on this rank. Cheap, without communication."""
        return True

    def finish(self) -> None:  # noqa: B027 - many have nothing to do here
        """Return when the last save is durable. Raises what went wrong."""

    @abstractmethod
    def steps(self) -> list[int]:
        """Which steps a restart would try to load from files: those that look complete."""

    @abstractmethod
    def load(self, step: int) -> None:
        """From the files into the trainer's tensors. Raises when it cannot be."""

    def load_memory(self) -> int | None:
        """From memory into the trainer's tensors: the step, or None when there is none."""
        return None

    def forget(self) -> None:  # noqa: B027 - many have nothing to do here
        """Before the loads from files, untimed: let go of what is in memory, where a load would find it first."""

    def path(self, step: int) -> Path:
        return self.place.folder / f"step-{step}"

    def prune(self, step: int) -> None:
        """Remove a step that is needed no more. By the first rank."""
        shutil.rmtree(self.path(step), ignore_errors=True)

    def close(self) -> None:  # noqa: B027 - many have nothing to do here
        """End what runs in the background."""


def companion(method: str, peers: str, job: str) -> list[str]:
    """The worker's arguments for a process that the method wants beside the trainer, and that outlives it; or none."""
    return ["--companion", peers, job] if method == "dlrover" else []


def leftovers(job: str, pids: Sequence[int], files: Path) -> Iterator[Path]:
    """What killed processes of a turn leave in shared memory: transom's by the folder of the checkpoints, DLRover's by
    the job's name, torch's by their ids."""
    shared = Path("/dev/shm")
    for pattern in (f"{folder_prefix(files)}-*", f"{job}*", *(f"torch_{pid}_*" for pid in pids)):
        yield from shared.glob(pattern)
    yield Path("/tmp/ckpt_sock") / job  # DLRover's sockets; the place is fixed in its source


def find(method: str, peers: str) -> type[Method]:
    """The method's class. Raises what its import raises. `peers`: a `pip install --target` folder, or a venv; or ""."""
    add_peers(peers)
    module, _, name = METHODS[method].where.partition(":")
    found: type[Method] = getattr(importlib.import_module(module), name)
    return found


def add_peers(peers: str) -> None:
    """At the end of the path, so that the project's own torch stays in use whatever else was installed there."""
    sys.path += [str(place) for place in peer_places(peers) if str(place) not in sys.path]


def peer_places(peers: str) -> list[Path]:
    """Where Python finds the packages of a folder or of a venv."""
    folder = Path(peers).absolute()
    return ([*folder.glob("lib/python3*/site-packages")] or [folder]) if peers else []


def sync_tree(folder: Path) -> None:
    """fsync a folder's files, and the folders; what goes away meanwhile needs none."""
    for path in [*folder.rglob("*"), folder, folder.parent]:
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def publish(folder: Path, name: str, write: Callable[[Path], object]) -> None:
    """`write(path)` to a temporary name, fsync, rename, fsync: what a careful trainer does around a plain writer."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{name}"
    write(temporary)
    fd = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.rename(folder / name)
    for path in (folder, folder.parent):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


if __name__ == "__main__":  # for the Makefile
    print(*dict.fromkeys(need for entry in METHODS.values() for need in entry.needs))
