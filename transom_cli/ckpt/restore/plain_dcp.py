"""Directories that torch.distributed.checkpoint (DCP) wrote itself, without a manifest.

Nothing says which bytes they should have, except for the CRC-32 that each tensor's archive may carry: torch.save writes
it, unless `torch.serialization.set_crc32_options(False)` was called. The archives that carry one are verified.

An import (`Stock`) copies the data files as they are, and writes torch's own metadata again, with the names that the
entries get.
"""

import io
import pickle
import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from transom_cli.ckpt import files
from transom_cli.ckpt.failures import BadFile, NeedsCode, StateMismatch, describe
from transom_cli.ckpt.manifest import FileEntry, Origin
from transom_cli.ckpt.names import DCP_METADATA, MANIFEST, parse_step
from transom_cli.ckpt.progress import OnBytes, ignore_bytes
from transom_cli.ckpt.restore import safe_unpickle
from transom_cli.ckpt.restore.reader import OnDisk
from transom_cli.ckpt.tree import Flat, Paths
from transom_cli.errors import UsageError, printable


def is_plain_dcp(path: Path) -> bool:
    return (path / DCP_METADATA).is_file() and not (path / MANIFEST).exists()


_MEGATRON_BUFFERS = re.compile(r"\.(?:dp_group_idx|gbuf_idx)_\d+")


def refuse_megatron(path: Path, keys: Iterable[str] = ()) -> None:
    """Raise UsageError for Megatron-LM's formats that hold the optimizer state by buffer, and not by parameter.

    Args:
        keys: of the directory's tensors.
    """
    own_format = any(path.glob("mp_rank_*/model_optim_rng.pt")) or any(path.glob("mp_rank_*/distrib_optim.pt"))
    if own_format or any(_MEGATRON_BUFFERS.search(key) for key in keys):
        what = "one file per rank" if own_format else "the optimizer state by data-parallel buffer (dp_reshardable)"
        raise UsageError(
            f"{path} is a checkpoint of Megatron-LM that fits only the parallelism that wrote it",
            f"it holds {what}",
            "resume it in Megatron with the same TP and PP sizes, and save with --ckpt-format torch_dist "
            "--dist-ckpt-optim-fully-reshardable",
        )


def step_of(path: Path, step: int | None) -> int:
    """Raises UsageError if nothing says how many steps are finished."""
    found = parse_step(path.name) if step is None else step
    if found is None:
        raise UsageError(
            f"Nothing says how many steps the training of {path} had finished",
            "a directory of torch.distributed.checkpoint does not record it, and the name is not step-<n>",
            "restore(path, step=n)",
        )
    return found


@dataclass(frozen=True)
class Checked:
    """What the checksums of archives said. with_sum, archives: numbers of archives."""

    with_sum: int = 0
    archives: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        if self.with_sum == self.archives:
            return "verified by the CRC-32 of its archives"
        if not self.with_sum:
            return "not verified: it carries no checksums"
        return f"{self.archives - self.with_sum} of {self.archives} archives carry no checksum, and are not verified"


def together(parts: Iterable[Checked]) -> Checked:
    found = list(parts)
    reasons = tuple(reason for one in found for reason in one.reasons)
    return Checked(sum(one.with_sum for one in found), sum(one.archives for one in found), reasons)


def check(path: Path, metadata: Metadata, share: int = 0, of: int = 1, on_bytes: OnBytes = ignore_bytes) -> Checked:
    """Verify the archives of this share of the files, as far as they carry checksums."""
    by_file: dict[str, list[tuple[int, int, str]]] = {}
    stored: Any = metadata.storage_data
    for index, info in stored.items():
        by_file.setdefault(info.relative_path, []).append((info.offset, info.length, index.fqn))
    found = []
    for name in sorted(by_file)[share::of]:
        try:
            with (path / name).open("rb") as file:
                for start, length, key in sorted(by_file[name]):
                    file.seek(start)
                    found.append(_check_archive(name, key, file.read(length), length))
                    on_bytes(length)
        except OSError as error:
            found.append(Checked(0, 1, (f"{name} cannot be read ({describe(error)})",)))
    return together(found)


def _check_archive(name: str, key: str, data: bytes, length: int) -> Checked:
    if len(data) < length:
        return Checked(0, 1, (f"{name} is too short: it lacks bytes of {key}",))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [one for one in archive.infolist() if one.file_size]
            summed = [one for one in members if one.CRC]
            for one in summed:
                archive.read(one)  # raises BadZipFile for another checksum
    except zipfile.BadZipFile:
        return Checked(0, 1, (f"{name} is damaged: {key} differs from its checksum",))
    return Checked(int(len(summed) == len(members)), 1)


def origin(path: Path, checked: Checked) -> Origin:
    return Origin(f"{printable(str(path))} ({checked.text})", per_rank=False, afresh=())


_PIECE = 8 << 20  # bytes copied at a time


class Stock:
    """Raises BadFile if torch's own metadata cannot be read."""

    def __init__(self, source: Path) -> None:
        self._source = source
        try:
            self._metadata = OnDisk(source).metadata()
        except (StateMismatch, NeedsCode) as error:
            raise BadFile(f"{source} cannot be imported", error.what, error.hint) from None
        except Exception as error:
            raise BadFile(f"{source} is not a torch.distributed.checkpoint directory", str(error)) from None
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

    def copy(self, work: Path, flat: Flat, paths: Paths, on_bytes: OnBytes) -> tuple[list[FileEntry], Checked]:
        """Copy what is wanted, then verify the copy. Raises BadFile and OSError."""
        metadata = self._renamed(flat, paths)
        stored: Any = metadata.storage_data
        entries = []
        for name in sorted({info.relative_path for info in stored.values()}):
            with (self._source / name).open("rb") as file:
                entries.append(files.write_pieces(work / name, iter(lambda: file.read(_PIECE), b""), on_bytes))
        checked = check(work, metadata, on_bytes=on_bytes)
        if checked.reasons:
            raise BadFile(f"{self._source} is damaged", "\n".join(checked.reasons))
        entries.append(files.write_new(work / DCP_METADATA, pickle.dumps(metadata)))
        return entries, checked

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
