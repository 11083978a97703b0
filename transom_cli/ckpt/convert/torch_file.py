"""Torch files: written without holding their tensors in memory, and read without running code.

torch.save lays the file out first, with holes where the tensors' bytes belong (`skip_data`); then one tensor after the
other is written into its hole, with the checksum that a zip archive keeps of it. What comes out is what torch.save
would have made of the whole state.
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
from transom_cli.ckpt.restore.whole import raw
from transom_cli.errors import TransomError

_RECORD = re.compile(r".*/data/([0-9]+)")
_GLOBAL = re.compile(r"GLOBAL (\S+)")
_LOCAL_HEADER, _CENTRAL_HEADER, _DESCRIPTOR = 30, 46, b"PK\x07\x08"  # sizes, and the mark of a checksum after data
_PIECE = 4 << 20  # bytes


def write(file: BinaryIO, tree: Any, lazy: dict[int, str], read: Callable[[str], torch.Tensor]) -> None:
    """Write `tree` as torch.save does. `lazy`: id of each placeholder tensor in it -> the key that `read` takes.

    `read` returns a contiguous CPU tensor of the placeholder's shape and type, which has its storage alone; one at a
    time is held. Other tensors in `tree` are written as they are. Raises OSError.
    """
    storages: dict[int, tuple[torch.UntypedStorage, str | None]] = {}

    class Pickler(pickle.Pickler):
        def reducer_override(self, value: object) -> Any:
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                storages.setdefault(storage._cdata, (storage, lazy.get(id(value))))  # torch numbers them like this
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
        )  # no name for it: it would live on while the next one is read
    _set_checksums(file.fileno(), entries, directory, checksums)


def _fill(descriptor: int, record: zipfile.ZipInfo, source: torch.UntypedStorage) -> int:
    """Write a record's bytes, and their checksum behind them. Returns the checksum."""
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
    """The archive's directory, at its end, has them too."""
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
            warnings.simplefilter("ignore")  # of torch, on how it reads old files
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except OSError:
        raise
    except Exception as error:  # whatever its bytes make torch and zipfile raise
        found = _GLOBAL.search(str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if found:
            raise BadFile(
                f"{path} holds more than data",
                f"it needs code to be loaded ({found[1]}), and transom runs none from a file",
                "save tensors, numbers, texts, lists and dicts only, as state_dict() gives them",
            ) from None
        raise BadFile(f"{path} is no torch file, or is damaged", str(error).strip().partition("\n")[0]) from None


def _numpy_data() -> list[Any]:
    """What a numpy array of numbers is pickled with: numpy's random state is one. Without it, no numpy is needed."""
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
