"""safetensors files: written tensor by tensor, read by the safetensors library.

The library can only write what is in memory as a whole, so the header is made here: eight bytes of length, then JSON
with a type, a shape and offsets for each tensor (https://huggingface.co/docs/safetensors). The library reads it back
before the file gets its name. The header's metadata holds what an import needs, under `transom`.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open

from transom_cli.ckpt.convert.outfile import write_at
from transom_cli.ckpt.failures import BadFile
from transom_cli.ckpt.tree import Path as TreePath
from transom_cli.ckpt.tree import Paths
from transom_cli.errors import UsageError

SCHEMA = 1
_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}  # fmt: skip


@dataclass(frozen=True)
class ExportRecord:
    """What an export records in the file about its state."""

    step: int
    paths: Paths  # path of each tensor
    partial: tuple[str, ...]  # entries whose other values were left out


def write(
    file: BinaryIO, tensors: dict[str, torch.Tensor], record: ExportRecord, read: Callable[[str], torch.Tensor]
) -> None:
    """Write tensors one at a time. Raises UsageError for a type that safetensors lacks, BadFile and OSError.

    tensors: placeholders, for shapes and types. read: returns the contiguous tensor of a key.
    """
    foreign = [f"{key} ({_short(t.dtype)})" for key, t in tensors.items() if t.dtype not in _TYPES]
    if foreign:
        raise UsageError(
            "safetensors has no such types", ", ".join(foreign), "export as a torch file, or choose parts with --only"
        )
    about = {"schema": SCHEMA, "step": record.step, "paths": record.paths, "partial": record.partial}
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "transom": json.dumps(about)}}
    end = 0
    for key in sorted(tensors, key=lambda key: -tensors[key].itemsize):  # wide types first keeps each aligned
        start, end = end, end + tensors[key].nbytes
        shape = list(tensors[key].shape)
        header[key] = {"dtype": _TYPES[tensors[key].dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode("ascii")
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    file.flush()
    base = file.tell()
    for key in tensors:
        write_at(file.fileno(), _raw(read(key)), base + header[key]["data_offsets"][0])
    found = set(_opened(Path(file.name)).keys())
    if found != set(tensors):
        raise BadFile("The safetensors library does not find in the file what was written to it")


def read(path: Path) -> tuple[dict[str, torch.Tensor], ExportRecord | None]:
    """Read the tensors (lazily), and the record of an export of ours or None. Raises BadFile and OSError."""
    with path.open("rb"):
        pass  # report the system's own error if it cannot be opened
    opened = _opened(path)
    try:
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, AttributeError, TypeError, RuntimeError) as error:
        raise BadFile(f"{path} cannot be read", str(error)) from None
    about = (opened.metadata() or {}).get("transom")
    return tensors, None if about is None else _decoded(path, about, set(tensors))


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise BadFile(f"{path} is not a safetensors file, or is damaged", str(error)) from None


def _decoded(path: Path, about: str, keys: set[str]) -> ExportRecord:
    try:
        body = json.loads(about)
        if body["schema"] != SCHEMA:
            raise BadFile(
                f"{path} was exported by another transom",
                f"its schema is {body['schema']}, and this one knows {SCHEMA}",
                "use the transom that wrote it, or a newer one",
            )
        paths: dict[str, TreePath] = {key: tuple(body["paths"][key]) for key in keys}
        if not all(map(_is_place, paths.values())):
            raise ValueError
        return ExportRecord(int(body["step"]), paths, tuple(map(str, body["partial"])))
    except (ValueError, KeyError, TypeError):
        raise BadFile(f"{path} does not say where its tensors belong", "its header's `transom` is damaged") from None


def _is_place(path: TreePath) -> bool:
    """Whether it is an entry's name, then keys and list indices, which are bounded: lists are made that long."""
    steps = all(type(step) is str or (type(step) is int and 0 <= step < 1 << 20) for step in path)
    return steps and bool(path) and type(path[0]) is str


def _raw(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy."""
    data: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(data)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
