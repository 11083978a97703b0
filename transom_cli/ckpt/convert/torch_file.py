"""Torch files: written without holding all tensors in memory, and read without running code.

torch.save lays out the file with holes for the tensors' bytes (`skip_data`). Then one tensor after the other is written
into its hole, with the checksum that the zip archive keeps. The result is what torch.save would write for the whole
state.
"""

from __future__ import annotations

import codecs
import os
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from transom_cli.ckpt.convert.outfile import write_at
from transom_cli.ckpt.failures import BadFile
from transom_cli.errors import TransomError

_RECORD = re.compile(r".*/data/([0-9]+)")
_GLOBAL = re.compile(r"GLOBAL (\S+)")
_LOCAL_HEADER, _CENTRAL_HEADER, _DESCRIPTOR = 30, 46, b"PK\x07\x08"  # sizes, and the marker of a checksum after data
_PIECE = 4 << 20  # bytes


def write(file: BinaryIO, tree: Any, lazy: dict[int, str], read: Callable[[str], torch.Tensor]) -> None:
    """Write `tree` as torch.save does, one tensor at a time. Raises OSError.

    Args:
        lazy: maps the id of each placeholder tensor in `tree` to a key. Other tensors are written as they are.
        read: returns the tensor of a key: contiguous, on the CPU, with the placeholder's shape and type, and alone in
            its storage.
    """
    storages: dict[int, tuple[torch.UntypedStorage, str | None]] = {}

    class Pickler(pickle.Pickler):
        def reducer_override(self, value: object) -> Any:
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                storages.setdefault(storage._cdata, (storage, lazy.get(id(value))))  # torch numbers them in this order
            return NotImplemented

    with torch.serialization.skip_data():
        torch.save(tree, file, pickle_module=type("noting", (), {"Pickler": Pickler}))
    file.flush()
    with zipfile.ZipFile(file) as archive:
        entries, directory = archive.infolist(), archive.start_dir
    records = {int(found[1]): entry for entry in entries if (found := _RECORD.fullmatch(entry.filename))}
    if sorted(records) != list(range(len(storages))):
        raise _unknown_layout()
    checksums = {}
    for number, (storage, key) in enumerate(storages.values()):
        record = records[number]
        checksums[record.filename] = _fill(
            file.fileno(), record, storage if key is None else read(key).untyped_storage()
        )  # without a variable: it would stay alive while the next one is read
    _set_checksums(file.fileno(), entries, directory, checksums)


def _fill(descriptor: int, record: zipfile.ZipInfo, source: torch.UntypedStorage) -> int:
    """Write a record's bytes, followed by their checksum. Returns the checksum."""
    header = os.pread(descriptor, _LOCAL_HEADER, record.header_offset)
    start = record.header_offset + _LOCAL_HEADER + sum(struct.unpack_from("<HH", header, 26))
    if source.nbytes() != record.file_size:
        raise _unknown_layout()
    crc = write_at(descriptor, raw(source), start)
    end = start + record.file_size
    if os.pread(descriptor, 4, end) == _DESCRIPTOR:
        os.pwrite(descriptor, struct.pack("<I", crc), end + 4)
    return crc


def _set_checksums(descriptor: int, entries: list[zipfile.ZipInfo], at: int, checksums: dict[str, int]) -> None:
    """Write the checksums into the archive's directory at its end."""
    for entry in entries:
        header = os.pread(descriptor, _CENTRAL_HEADER, at)
        if entry.filename in checksums:
            os.pwrite(descriptor, struct.pack("<I", checksums[entry.filename]), at + 16)
        at += _CENTRAL_HEADER + sum(struct.unpack_from("<HHH", header, 28))


def read(path: Path) -> Any:
    """What is in a torch file, and only data: its tensors are on the CPU, and their bytes are read when they are used.

    The archive's checksums are compared first (those that torch left out are zero). Raises BadFile and OSError.
    """
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"
    try:
        if zipped:
            _compare_checksums(path)
        with warnings.catch_warnings(), torch.serialization.safe_globals(_numpy_data()):
            warnings.simplefilter("ignore")  # torch warns about how it reads old files
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except OSError:
        raise
    except Exception as error:  # torch and zipfile raise many types for damaged bytes
        found = _GLOBAL.search(str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if found:
            raise BadFile(
                f"{path} holds more than data",
                f"it needs code to be loaded ({found[1]}), and transom runs none from a file",
                "save tensors, numbers, texts, lists and dicts only, as state_dict() gives them",
            ) from None
        raise BadFile(f"{path} is no torch file, or is damaged", str(error).strip().partition("\n")[0]) from None


def _numpy_data() -> list[Any]:
    """The names that numpy pickles arrays of numbers with, such as its random state. Empty without numpy."""
    try:
        import numpy as np
    except ImportError:
        return []
    numbers = {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"}
    return [np.ndarray, np.dtype, np.empty(0).__reduce__()[0], codecs.encode, *numbers]


def _compare_checksums(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.CRC:
                with archive.open(entry) as record:
                    while record.read(_PIECE):
                        pass


def _unknown_layout() -> TransomError:
    return TransomError(
        f"torch {torch.__version__} lays out its files in a way that this transom does not know",
        hint="export as safetensors (--format safetensors), or with another version of torch",
    )


def raw(storage: torch.UntypedStorage) -> memoryview:
    """The bytes of a CPU storage, without a copy."""
    data: Any = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return memoryview(data)
