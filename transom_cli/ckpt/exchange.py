"""What the ranks send each other, as bytes and back.

The bytes are a pickle, since plans of thousands of tensors must be read quickly. But a pickle can name any function and
have it called, and torch's process groups do not authenticate their members. So names are looked up in a list: plain
data, torch's classes of checkpoint metadata, and transom's own dataclasses. A pickle may also set attributes of a class
that it names, which is undone.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import io
import pathlib
import pickle
import sys
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata, planner

from transom_cli.ckpt.restore.safe_unpickle import METADATA, Refused, found_in, put_back

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
