"""Read a checkpoint's pickles without running code: torch's own metadata, and values that are not tensors.

A pickle can name any function and have it called. Here every name that it uses must be on a list of harmless ones: for
`.metadata`, torch's metadata classes; for values, those that torch's `weights_only` accepts (with the classes that the
trainer gave to `torch.serialization.add_safe_globals`), and data of the standard library and numpy.
"""

import collections
import datetime
import decimal
import fractions
import io
import pathlib
import pickle
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as dcp

from transom_cli.ckpt.failures import NeedsCode

_ZIP = b"PK\x03\x04"


class Refused(pickle.UnpicklingError):
    """`name`: the function or class that is not on the list."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not allowed")
        self.name = name


def metadata(data: bytes, *, allow_code: bool = False) -> Any:
    """Unpickle `.metadata`. Raises NeedsCode, and any exception of pickle for damaged bytes."""
    if allow_code:
        return pickle.loads(data)
    before = [(kind, dict(vars(kind))) for kind in _DCP.values()]
    try:
        return _Metadata(io.BytesIO(data)).load()
    except Refused as error:
        raise _needs_code("torch's own metadata (.metadata)", error.name) from None
    finally:
        for kind, attributes in before:  # a pickle may set attributes of any object that it can name
            put_back(kind, attributes)


def value(data: bytes, name: str, *, map_location: str | None = None, allow_code: bool = False) -> Any:
    """Load what torch.save wrote. name: of the value, for the error. Raises NeedsCode, and what torch.load raises."""
    try:
        return torch.load(io.BytesIO(data), map_location=map_location, weights_only=True)
    except pickle.UnpicklingError:
        pass
    try:
        if data[:4] != _ZIP or "constants.pkl" in torch._C.PyTorchFileReader(io.BytesIO(data)).get_all_records():
            raise Refused("a file format that torch.save no longer writes")
        return torch.load(io.BytesIO(data), map_location=map_location, weights_only=False, pickle_module=_Reading)
    except Refused as error:
        if not allow_code:
            raise _needs_code(f"`{name}`", error.name) from None
    return torch.load(io.BytesIO(data), map_location=map_location, weights_only=False)


def refused(data: bytes) -> str:
    """Return the name that keeps `value` from loading this, or ""."""
    try:
        value(data, "", map_location="cpu")
    except NeedsCode as error:
        return error.name
    return ""


def _needs_code(part: str, name: str) -> NeedsCode:
    error = NeedsCode(
        f"{part} needs code to be loaded: it names {name}",
        "Checksums prove that the bytes are those that were saved, not who saved them. Code in them runs as you",
        "If you trust who wrote the checkpoint: --allow-code. To export other parts: --only NAME",
    )
    error.name = name
    return error


def put_back(kind: type, attributes: dict[str, Any]) -> None:
    for name in [name for name in vars(kind) if name not in attributes]:
        delattr(kind, name)
    for name, one in attributes.items():
        if vars(kind)[name] is not one:
            setattr(kind, name, one)


_DCP: dict[tuple[str, str], type] = {
    (module.__name__, name): getattr(module, name)
    for module, names in (
        (
            dcp,
            (
                "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
                "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
            ),
        ),
        (filesystem, ("_StorageInfo", "_StoragePrefix")),
    )
    for name in names
    if hasattr(module, name)
}  # fmt: skip


def _path(*parts: str) -> pathlib.PurePath:
    return pathlib.PurePosixPath(*parts)


def _layout(name: str) -> Any:
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.layout):
        raise pickle.UnpicklingError(f"{name} is no layout")
    return found


def _encoding(kind: object, name: str) -> Any:
    """How some Python releases pickle the member of an Enum: `getattr(class, name)`."""
    encodings = _DCP[dcp.__name__, "_MEM_FORMAT_ENCODING"]
    if kind is not encodings or name not in encodings.__members__:  # type: ignore[attr-defined]
        raise Refused("builtins.getattr")
    return encodings[name]  # type: ignore[index]


_PATHS = {
    (module, name): _path
    for module in ("pathlib", "pathlib._local")
    for name in ("PurePosixPath", "PosixPath", "PurePath", "Path")
}
METADATA: dict[tuple[str, str], Any] = {
    **_DCP,
    **_PATHS,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _layout,
    ("builtins", "getattr"): _encoding,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("collections", "OrderedDict"): collections.OrderedDict,
}


class _Metadata(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return found_in(METADATA, module, name)


def found_in(allowed: dict[tuple[str, str], Any], module: str, name: str) -> Any:
    if (module, name) in allowed:
        return allowed[module, name]
    kind = getattr(torch, name, None) if module == "torch" else None
    if isinstance(kind, torch.dtype):
        return kind
    raise Refused(f"{module}.{name}")


_STANDARD: tuple[Any, ...] = (
    bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, slice, range,
    collections.OrderedDict, collections.defaultdict, collections.deque, collections.Counter,
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone,
    decimal.Decimal, fractions.Fraction,
)  # fmt: skip
_TORCH: tuple[Any, ...] = (
    torch.Size, torch.device, torch._utils._rebuild_tensor_v2, torch._utils._rebuild_parameter,
)  # fmt: skip


def _encoded(text: str, encoding: str) -> bytes:
    """How pickle's protocol 2 holds bytes."""
    return text.encode("latin1" if encoding == "latin1" else "utf-8")


def _numpy() -> tuple[dict[tuple[str, str], Any], set[type]]:
    """The names that numpy pickles arrays and numbers with, and the types whose state a pickle may set."""
    try:
        import numpy as np
    except ImportError:
        return {}, set()
    reconstruct, scalar = np.empty(0).__reduce__()[0], np.float32(0).__reduce__()[0]
    named: dict[tuple[str, str], Any] = {("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype}
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        named |= {(module, "_reconstruct"): reconstruct, (module, "scalar"): scalar}
    return named, {np.ndarray, *(type(np.dtype(code)) for code in np.typecodes["All"])}


def _values() -> tuple[dict[tuple[str, str], Any], set[type]]:
    """The allowed names, and the types whose state a pickle may set: never a class's or a function's."""
    declared: dict[tuple[str, str], Any] = {}
    for one in torch.serialization.get_safe_globals():
        kind, path = one if isinstance(one, tuple) else (one, f"{one.__module__}.{one.__qualname__}")
        module, _, name = path.rpartition(".")
        declared[module, name] = kind
    named, stateful = _numpy()
    standard = {(one.__module__, one.__qualname__): one for one in (*_STANDARD, *_TORCH)}
    allowed = {**standard, **_PATHS, ("_codecs", "encode"): _encoded, **named, **declared}
    return allowed, {collections.OrderedDict, *stateful, *(k for k in declared.values() if isinstance(k, type))}


_InPython: Any = pickle._Unpickler


class _Values(_InPython):  # type: ignore[misc]
    """Uses the Python implementation: the one in C lets a pickle set attributes of any object that it can name."""

    dispatch: ClassVar[dict[int, Any]] = dict(_InPython.dispatch)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._allowed, self._stateful = _values()

    def find_class(self, module: str, name: str) -> Any:
        module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        return found_in(self._allowed, module, name)

    def load_build(self) -> None:
        kind = type(self.stack[-2])
        if kind not in self._stateful:
            raise Refused(f"{kind.__module__}.{kind.__qualname__}")
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build


def _nothing_else(*_: object, **__: object) -> NoReturn:
    raise Refused("a file format that torch.save no longer writes")


class _Reading:
    """Replaces the module `pickle` for torch.load."""

    Unpickler = _Values
    load: Callable[..., Any] = staticmethod(_nothing_else)
