"""A directory that torch.distributed.checkpoint (DCP) wrote, as the source of an import.

Its data files are copied as they are, and verified as far as their archives carry checksums. Only torch's own metadata
is written again, with the names that the entries get.
"""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from transom_cli.ckpt import files
from transom_cli.ckpt.failures import BadFile, NeedsCode, StateMismatch
from transom_cli.ckpt.names import DCP_METADATA
from transom_cli.ckpt.progress import OnBytes
from transom_cli.ckpt.restore import plain_dcp, safe_unpickle
from transom_cli.ckpt.restore.reader import OnDisk
from transom_cli.ckpt.tree import Flat, Paths


class Stock:
    """Raises BadFile if torch's own metadata cannot be read."""

    def __init__(self, source: Path) -> None:
        self._source = source
        try:
            self._metadata = OnDisk(source).metadata()
        except (StateMismatch, NeedsCode) as error:
            raise BadFile(f"{source} cannot be imported", error.what, error.hint) from None
        except Exception as error:
            raise BadFile(f"{source} is no directory of torch.distributed.checkpoint", str(error)) from None
        self._names: dict[str, str] = {}  # by the key that it gets: the key that it has

    def contents(self, under: str | None) -> tuple[Flat, Paths]:
        """The values, and tensors whose memory is not touched, with the keys that they get."""
        flat: Flat = {}
        paths: Paths = {}
        for key, path in self._metadata.planner_data.items():
            stored: Any = self._metadata.state_dict_metadata[key]
            inner = path if under is None else (under, *path)
            new = ".".join(map(str, inner))
            self._names[new], paths[new] = key, inner
            if isinstance(stored, TensorStorageMetadata):
                flat[new] = torch.empty(stored.size, dtype=stored.properties.dtype)
            else:
                flat[new] = self._value(key)
        return flat, paths

    def copy(self, work: Path, flat: Flat, paths: Paths, on_bytes: OnBytes) -> plain_dcp.Checked:
        """Copy what is wanted, then verify the copy. Raises BadFile and OSError."""
        metadata = self._renamed(flat, paths)
        stored: Any = metadata.storage_data
        for name in sorted({info.relative_path for info in stored.values()}):
            shutil.copyfile(self._source / name, work / name)
        checked = plain_dcp.check(work, metadata, on_bytes=on_bytes)
        if checked.reasons:
            raise BadFile(f"{self._source} is damaged", "\n".join(checked.reasons))
        files.write_new(work / DCP_METADATA, pickle.dumps(metadata))
        return checked

    def _renamed(self, flat: Flat, paths: Paths) -> Metadata:
        stored: Any = self._metadata.storage_data
        by_name: dict[str, list[tuple[MetadataIndex, Any]]] = {}
        for index, info in stored.items():
            by_name.setdefault(index.fqn, []).append((index, info))
        return Metadata(
            state_dict_metadata={key: self._metadata.state_dict_metadata[self._names[key]] for key in flat},
            planner_data={key: paths[key] for key in flat},
            storage_data={
                MetadataIndex(key, index.offset, index.index): info
                for key in flat
                for index, info in by_name[self._names[key]]
            },
        )

    def _value(self, key: str) -> Any:
        where = self._metadata.storage_data[MetadataIndex(key)]
        with (self._source / where.relative_path).open("rb") as file:
            file.seek(where.offset)
            data = file.read(where.length)
        try:
            return safe_unpickle.value(data, key, map_location="cpu")
        except NeedsCode as error:
            raise BadFile(f"{self._source} holds a value that needs code to be loaded", error.what) from None
        except Exception as error:
            raise BadFile(f"`{key}` in {self._source} cannot be read", str(error)) from None
