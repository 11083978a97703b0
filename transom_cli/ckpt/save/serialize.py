"""Plain values as torch.save writes them. Most do not change between saves, and each archive takes a millisecond."""

import contextlib
import io
import marshal
import pickle
from collections.abc import Callable
from typing import Any

import torch

from transom_cli.ckpt.restore import safe_unpickle
from transom_cli.ckpt.state import State, undisturbed
from transom_cli.ckpt.tree import Description, Flat, Whole
from transom_cli.errors import UsageError

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))


_COMMENT = 0xFFFF  # bytes that the comment of a zip archive may have
_SPARE = 64  # bytes that a value may grow by, at least, before its archive gets longer
_END = b"PK\x05\x06"  # begins the last record of an archive, which ends with the length of the comment


def padded(archive: bytes, length: int) -> bytes:
    """Fill a zip archive up to `length` bytes with a comment, so that a value may grow and nothing else moves."""
    spare = length - len(archive)
    if not 0 < spare <= _COMMENT or archive[-22:-18] != _END or archive[-2:] != bytes(2):
        return archive
    return archive[:-2] + spare.to_bytes(2, "little") + bytes(spare)


class Serializer:
    """Serializes values, and reuses the last archive of a value that marshal finds unchanged.

    warn: called once per name with the class that keeps a restore from loading the value. None: do not check.
    """

    def __init__(self, warn: Callable[[str, str], None] | None = None) -> None:
        self._last: dict[str, tuple[bytes, bytes]] = {}  # by name: marshalled, and in its archive
        self._room: dict[str, int] = {}  # by name: the length of its archives
        self._described: dict[str, tuple[Description, bytes]] = {}
        self._warn = warn
        self._loadable: set[Any] = set()  # types, classes and functions seen in values that load
        self._warned: set[str] = set()

    def serialize(self, name: str, value: Any) -> bytes:
        """Return the archive of `value`, as long as that of the last save unless it has outgrown it."""
        if isinstance(value, Description):
            known = self._described.get(name)
            if known is None or known[0] is not value:
                archive = self._in_its_room(name, self._looked_at(name, dict(value)))
                known = self._described[name] = value, archive
            return known[1]
        if not told_apart(value):
            return self._in_its_room(name, self._looked_at(name, value))
        now = marshal.dumps(value)
        last = self._last.get(name)
        if last is None or last[0] != now:
            last = self._last[name] = now, self._in_its_room(name, _pickled(value))
        return last[1]

    def _in_its_room(self, name: str, archive: bytes) -> bytes:
        size, room = len(archive), self._room.get(name, 0)
        if not size <= room <= size + _COMMENT:
            room = self._room[name] = size + min(size // 4 + _SPARE, _COMMENT)
        return padded(archive, room)

    def _looked_at(self, name: str, value: Any) -> bytes:
        if self._warn is None:
            return _pickled(value)
        kinds: set[Any] = set()
        data = _pickled(value, kinds)
        if not kinds <= self._loadable and name not in self._warned:
            found = safe_unpickle.refused(data)
            if found:
                self._warned.add(name)
                self._warn(name, found)
            else:
                self._loadable |= kinds
        return data


def refuse_code(state: State) -> None:
    """Raise UsageError if the state holds a value, before training, that a restore refuses to load."""
    flat: Flat = {}
    with contextlib.suppress(Exception), undisturbed():  # a state that is not ready yet is checked at the first save
        flat, _ = state.read()
    for name, value in flat.items():
        if isinstance(value, torch.Tensor) or told_apart(value):
            continue
        found = ""
        with contextlib.suppress(Exception):  # a value that cannot be pickled fails the save, with the reason
            found = safe_unpickle.refused(_pickled(value))
        if found:
            raise UsageError(
                f"`{name}` of the checkpointed state could not be restored: it holds {found}",
                "A restore loads data only: tensors, and values of Python, numpy and torch",
                "Save plain data (numbers, texts, lists, dicts), or declare the class with\n"
                "torch.serialization.add_safe_globals([...]), or pass allow_code=True to the Checkpointer",
            )


def told_apart(value: Any, deep: int = 8) -> bool:
    """Whether marshal tells all changes of `value` apart: for a numpy array it sees the bytes only, so 0 equals 0.0.

    deep: remaining depth, since a list may contain itself.
    """
    kind = type(value)
    if kind in (list, tuple):
        return deep > 0 and all(type(item) in _PLAIN or told_apart(item, deep - 1) for item in value)
    if kind is dict:
        return deep > 0 and all(told_apart(k, deep - 1) and told_apart(v, deep - 1) for k, v in value.items())
    return kind in _PLAIN


def _pickled(value: Any, kinds: set[Any] | None = None) -> bytes:
    """Pickle `value`. kinds: receives the types of all objects in it, and all classes and functions."""
    stream = io.BytesIO()
    value = value.tensor if isinstance(value, Whole) else dict(value) if isinstance(value, Description) else value
    if kinds is None:
        torch.save(value, stream)
        return stream.getvalue()

    noted = kinds

    class Pickler(pickle.Pickler):
        def reducer_override(self, one: Any) -> Any:
            noted.add(one if isinstance(one, type) or hasattr(one, "__qualname__") else type(one))
            return NotImplemented

    torch.save(value, stream, pickle_module=type("noting", (), {"Pickler": Pickler}))
    return stream.getvalue()
