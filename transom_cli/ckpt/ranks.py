"""The ranks that checkpoint together, their own process group, and what they send each other.

Collectives run in the background thread of a save while training uses the default group from the main thread: one group
used by two threads would mix up messages. Everything is exchanged over gloo, on the CPU.

What is sent is a pickle, since plans of thousands of tensors must be read quickly. But a pickle can name any function
and have it called, and torch's process groups do not authenticate their members. So names are looked up in a list:
plain data, torch's classes of checkpoint metadata, and transom's own dataclasses. A pickle may also set attributes of a
class that it names, which is undone.
"""

import collections
import contextlib
import dataclasses
import datetime
import enum
import io
import itertools
import os
import pathlib
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import filesystem, metadata, planner
from torch.distributed.checkpoint.api import CheckpointException

from transom_cli.ckpt.failures import BadRollbacks, RanksMissing, TakenOver
from transom_cli.ckpt.restore.safe_unpickle import METADATA, Refused, found_in, put_back
from transom_cli.errors import TransomError, UsageError
from transom_cli.plural import some

NAMED = 10  # ranks in an error
MARK = 5.0  # seconds of waiting after which a rank says that it waits
_made = itertools.count()
T = TypeVar("T")

SHARED = (TakenOver, BadRollbacks, UsageError)
FAILURES = (Exception, CheckpointException)  # DCP raises CheckpointException, a bare BaseException


def _close(held: list[Any]) -> None:
    """Close the process group in `held`, the last reference to it outside torch."""
    with contextlib.suppress(ValueError, AssertionError):  # the trainer destroyed all groups itself
        dist.destroy_process_group(held[0])
    held.clear()


class _Group:
    """The ranks' process group; closed when the process exits, or when nothing refers to it any more.

    One of gloo's threads may still hold the tensors of the last collective after it has returned. If it releases them
    while the interpreter shuts down, the process aborts (`terminate called without an active exception`, SIGABRT) and
    its exit code is lost. Closing the group first joins those threads.
    """

    def __init__(self) -> None:
        self.held: list[Any] = [dist.new_group(backend="gloo")]
        weakref.finalize(self, _close, self.held)


class Attendance:
    """Which ranks take part in an exchange. A rank that waits long in it says so in torch's store.

    now: the exchange in which this rank waits for others, or "".
    """

    def __init__(self, rank: int, size: int, store: Any) -> None:
        self._rank, self._size, self._store = rank, size, store
        self.now = ""
        self._since = 0.0

    @contextlib.contextmanager
    def present(self, what: str) -> Iterator[None]:
        note = threading.Timer(MARK, self._mark, [what])
        note.daemon = True
        note.start()
        self.now, self._since = what, time.monotonic()
        try:
            yield
        finally:
            self.now = ""
            note.cancel()

    def _mark(self, what: str) -> None:
        with contextlib.suppress(RuntimeError):  # the store's rank is gone
            self._store.set(f"{what}/{self._rank}", "1")

    def missing(self, patience: float) -> RanksMissing | None:
        """The error to raise if this rank has waited in an exchange for about `patience`, and others are not in it."""
        what = self.now
        if not what or time.monotonic() - self._since < patience / 2:
            return None
        try:
            others = [n for n in range(self._size) if n != self._rank]
            absent = [n for n in others if not self._store.check([f"{what}/{n}"])]
        except RuntimeError:
            return None
        if not absent or self.now != what:
            return None
        listed = some(absent, NAMED)
        return RanksMissing(
            f"{f'Rank {listed} has' if len(absent) == 1 else f'Ranks {listed} have'} not called save()",
            f"rank {self._rank} has waited {patience:.0f} s for that ({what}): all ranks must make the same calls",
            "call save() on every rank, not only on rank 0; Checkpointer(patience=...) says how long a save waits",
        )


class Ranks:
    """Made once, by all ranks together (it makes a process group). Not thread-safe: one thread at a time."""

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.size: int = dist.get_world_size() if together else 1
        self.rank: int = dist.get_rank() if together else 0
        self._own = _Group() if together else None
        store = dist.distributed_c10d._get_default_store() if together else None
        self.attendance = (
            Attendance(self.rank, self.size, dist.PrefixStore(f"transom-ckpt-{next(_made)}", store)) if store else None
        )
        world = os.environ.get("WORLD_SIZE", "1")
        alone = not together and not (dist.is_available() and dist.is_initialized())
        if alone and world.isdecimal() and int(world) > 1:
            raise UsageError(
                f"The Checkpointer was made before the {world} ranks found each other",
                "WORLD_SIZE is " + world + ", and torch.distributed is not initialized: each would write alone",
                "call torch.distributed.init_process_group() first",
            )

    @property
    def group(self) -> Any:
        """The process group; None with one rank.

        Raises:
            RuntimeError: the process is exiting, and its group is closed.
        """
        if self._own is None:
            return None
        if not self._own.held:
            raise RuntimeError("the process is exiting: the ranks can no longer exchange anything")
        return self._own.held[0]

    @property
    def first(self) -> bool:
        return self.rank == 0

    def gather(self, value: Any, *, what: str = "", patience: float | None = None) -> list[Any]:
        """The values of all ranks, on every rank.

        Args:
            what: name of the exchange, for `Attendance`, if ranks may not come.
            patience: seconds to wait for them. Afterwards no exchange is possible any more. Default: torch's limit.

        Raises:
            RanksMissing: names the ranks that did not come.
        """
        if self.group is None:
            return [value]
        data = encode(value)
        sizes = self._sizes(len(data), what, patience)
        mine = _padded(data, max(sizes))
        parts = [torch.empty(max(sizes), dtype=torch.uint8) for _ in sizes]
        dist.all_gather(parts, mine, group=self.group)
        return [_decoded(part, size) for part, size in zip(parts, sizes, strict=True)]

    def gather_bytes(self, data: bytes, what: str = "", patience: float | None = None) -> list[bytes]:
        """The bytes of all ranks, on every rank: equally many of each. Cheaper than objects for thousands of ranks.

        Takes and raises the same as `gather`.
        """
        if self.group is None:
            return [data]
        everyones = torch.empty(self.size * len(data), dtype=torch.uint8)
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._all_gather(list(everyones.split(len(data))), mine, what, patience)
        joined = everyones.numpy().tobytes()
        return [joined[at : at + len(data)] for at in range(0, len(joined), len(data))]

    def to_first(self, value: Any) -> list[Any] | None:
        """The values of all ranks, on rank 0; None elsewhere."""
        if self.group is None:
            return [value]
        data = encode(value)
        sizes = self._sizes(len(data))
        parts = [torch.empty(max(sizes), dtype=torch.uint8) for _ in sizes] if self.first else None
        dist.gather(_padded(data, max(sizes)), parts, dst=0, group=self.group)
        return [_decoded(part, size) for part, size in zip(parts, sizes, strict=True)] if parts is not None else None

    def each_from_first(self, values: list[Any] | None) -> Any:
        """Scatter: each rank gets its value from rank 0. `values` is None on the others."""
        if self.group is None:
            return values[0] if values else None
        encoded = [encode(value) for value in values] if values is not None else []
        sizes = torch.tensor([len(data) for data in encoded] or [0] * self.size, dtype=torch.int64)
        dist.broadcast(sizes, src=0, group=self.group)
        longest = int(sizes.max())
        mine = torch.empty(longest, dtype=torch.uint8)
        dist.scatter(mine, [_padded(data, longest) for data in encoded] or None, src=0, group=self.group)
        return _decoded(mine, int(sizes[self.rank]))

    def from_first(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.group is None:
            return value
        data = encode(value) if self.first else b""
        size = torch.tensor([len(data)], dtype=torch.int64)
        dist.broadcast(size, src=0, group=self.group)
        sent = _padded(data, int(size)) if self.first else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(sent, src=0, group=self.group)
        return value if self.first else _decoded(sent, int(size))

    def by_first(self, work: Callable[[], T]) -> T:
        """The result of `work` on rank 0, on every rank. An error of a kind in `SHARED` is raised on all ranks."""
        found: T | None = None
        error: TransomError | None = None
        if self.first:
            try:
                found = work()
            except SHARED as raised:
                error = raised
        kind = next((n for n, one in enumerate(SHARED) if isinstance(error, one)), None)
        about = (kind, error.what, error.why, error.hint) if error is not None else None
        found, about = self.from_first((found, about))
        if error is not None:
            raise error
        if about is not None:
            raise SHARED[about[0]](*about[1:])
        return found  # type: ignore[return-value]  # rank 0's

    def _sizes(self, mine: int, what: str = "", patience: float | None = None) -> list[int]:
        sizes = [torch.empty(1, dtype=torch.int64) for _ in range(self.size)]
        self._all_gather(sizes, torch.tensor([mine]), what, patience)
        return [int(size) for size in sizes]

    def _all_gather(self, parts: list[torch.Tensor], mine: torch.Tensor, what: str, patience: float | None) -> None:
        options: Any = torch._C._distributed_c10d.AllgatherOptions()
        if patience is not None:
            options.timeout = datetime.timedelta(seconds=patience)
        if not what or self.attendance is None:
            self.group.allgather([parts], [mine], options).wait()
            return
        with self.attendance.present(what):
            try:
                self.group.allgather([parts], [mine], options).wait()
            except RuntimeError:
                error = self.attendance.missing(patience) if patience is not None else None
                if error is not None:
                    raise error from None
                raise


def _padded(data: bytes, size: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(data).ljust(max(1, size), b"\0"), dtype=torch.uint8)[:size]


def _decoded(data: torch.Tensor, size: int) -> Any:
    return decode(data[:size].numpy().tobytes())


def _member(kind: object, name: str) -> enum.Enum:
    """Return a member of an Enum. Python 3.11.0 to 3.11.3 pickles members as `getattr(class, name)`."""
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum) and name in kind.__members__):
        raise Refused("builtins.getattr")
    return kind[name]


_PLANNER = ("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData")
_ALLOWED: dict[tuple[str, str], Any] = {
    **METADATA,
    **{(planner.__name__, name): getattr(planner, name) for name in _PLANNER if hasattr(planner, name)},
    **{(kind.__module__, kind.__name__): kind for kind in (pathlib.PosixPath, pathlib.PurePosixPath)},
    ("torch", "device"): torch.device,
    ("builtins", "complex"): complex,
    ("builtins", "bytearray"): bytearray,
    ("builtins", "slice"): slice,
    ("builtins", "range"): range,
    ("collections", "defaultdict"): collections.defaultdict,
    ("collections", "deque"): collections.deque,
    ("builtins", "getattr"): _member,
}
_KNOWN_MODULES = (filesystem, metadata, pathlib)  # imported, so that their classes are those on the list


def encode(value: Any) -> bytes:
    return pickle.dumps(value, protocol=5)


def decode(data: bytes | memoryview) -> Any:
    """Return the value. Raises UnpicklingError if the bytes name anything that is not data."""
    reader = _Reader(io.BytesIO(data))
    try:
        return reader.load()
    except Refused as error:
        raise pickle.UnpicklingError(f"another rank sent {error.name}, which is no data") from None
    finally:
        for kind, attributes in reader.named.items():
            put_back(kind, attributes)


class _Reader(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.named: dict[type, dict[str, Any]] = {}

    def find_class(self, module: str, name: str) -> Any:
        found = _own(module, name)
        if found is None:
            found = found_in(_ALLOWED, module, name)
        if isinstance(found, type) and found.__flags__ & (1 << 9):  # a class in Python: it has attributes to set
            self.named.setdefault(found, dict(vars(found)))
        return found


def _own(module: str, name: str) -> type | None:
    """A class of transom that holds data, of a module that is imported already."""
    if not module.startswith("transom_cli.") or module not in sys.modules:
        return None
    kind = getattr(sys.modules[module], name, None)
    if not isinstance(kind, type) or kind.__module__ != module:
        return None
    is_data = dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum)
    return kind if is_data or (issubclass(kind, tuple) and hasattr(kind, "_fields")) else None
