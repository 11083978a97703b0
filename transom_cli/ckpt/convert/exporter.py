"""Export a checkpoint to one file: which parts, and in which format.

`Whole` reads a checkpoint value by value, and assembles each tensor from its shards: any number of ranks may have
written it. It verifies nothing; the caller has. Torch's metadata and values that are not tensors are read without
running code (`restore.safe_unpickle`), unless the caller allows it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

from transom_cli.ckpt.convert.outfile import appearing
from transom_cli.ckpt.failures import StateMismatch, describe
from transom_cli.ckpt.inventory import Candidate
from transom_cli.ckpt.progress import OnBytes, ignore_bytes
from transom_cli.ckpt.restore import safe_unpickle
from transom_cli.ckpt.restore.load import paths_of
from transom_cli.ckpt.restore.read_plan import pieces
from transom_cli.ckpt.restore.reader import OnDisk, Opened, stored_tensor
from transom_cli.ckpt.state import RANKS
from transom_cli.ckpt.tree import Paths, unflatten
from transom_cli.errors import UsageError


@dataclass(frozen=True)
class Exported:
    size: int  # bytes of the file
    tensors: tuple[str, ...]  # flat keys
    values: tuple[str, ...]  # flat keys of other values in it
    code: tuple[str, ...] = ()  # those of `values` that torch loads with weights_only=False alone
    not_tensors: tuple[str, ...] = ()  # flat keys of what safetensors cannot hold
    left_out_ranks: bool = False  # whether there is per-rank state that was not requested


def export(
    candidate: Candidate, out: Path, form: str, *, only: Sequence[str] = (), everything: bool = False, force: bool,
    allow_code: bool = False,
    expect: OnBytes = ignore_bytes, on_bytes: OnBytes = ignore_bytes,
) -> Exported:  # fmt: skip
    """Write a verified checkpoint to `out`. A safetensors file is written tensor by tensor; a torch file as a whole.

    Args:
        form: "torch" or "safetensors".
        only: names of top-level entries. Default: all except the per-rank ones; with `everything` those too.
        force: replace an existing file.
        expect: called with the bytes of all tensors, before they are read.
        on_bytes: called with the bytes that were just read.

    Raises:
        UsageError: an entry does not exist, or nothing is left to export.
        StateMismatch: torch cannot read the checkpoint.
        NeedsCode: a value needs code to be loaded, and `allow_code` is not given.
        BadFile: the written safetensors file could not be read back.
        OSError: the file could not be written. After any error there is no new file.
    """
    whole = Whole(candidate.path, allow_code=allow_code)
    keys = _chosen(whole.paths, only, everything)
    left_out = not only and not everything and any(path[0] == RANKS for path in whole.paths.values())
    tensors = {key: whole.placeholder(key) for key in keys if whole.is_tensor(key)}
    others = [key for key in keys if key not in tensors]
    with appearing(out, force=force) as file:
        code: tuple[str, ...] = ()
        expect(sum(tensor.nbytes for tensor in tensors.values()))
        if form == "torch":
            code = _as_torch(file, whole, keys, tensors, on_bytes)
        else:
            _as_safetensors(file, whole, tensors, others, candidate.step, on_bytes)
        size = file.seek(0, 2)
    kept, dropped = (others, []) if form == "torch" else ([], others)
    return Exported(size, tuple(tensors), tuple(kept), code, tuple(dropped), left_out)


def _chosen(paths: Paths, only: Sequence[str], everything: bool) -> list[str]:
    names = dict.fromkeys(str(path[0]) for path in paths.values())
    odd = [name for name in only if name not in names]
    if odd:
        raise UsageError(
            f"The checkpoint has no {', '.join(f'`{name}`' for name in odd)}",
            f"it has {', '.join(names)}",
            f"per-rank state is in `{RANKS}`" if RANKS in names else "",
        )
    wanted = set(only) or {name for name in names if everything or name != RANKS}
    keys = [key for key, path in paths.items() if path[0] in wanted]
    if not keys:
        raise UsageError("There is nothing to export", f"the checkpoint has only per-rank state (`{RANKS}`)", "--all")
    return keys


def _counted(whole: Whole, on_bytes: OnBytes) -> Callable[[str], torch.Tensor]:
    """Return a function that reads a tensor and counts its bytes."""

    def read(key: str) -> torch.Tensor:
        tensor = whole.tensor(key)
        on_bytes(tensor.nbytes)
        return tensor

    return read


def _as_torch(
    file: BinaryIO, whole: Whole, keys: list[str], tensors: dict[str, torch.Tensor], on_bytes: OnBytes
) -> tuple[str, ...]:
    flat, code, read = {}, [], _counted(whole, on_bytes)
    for key in keys:
        if key in tensors:
            flat[key] = read(key)
            continue
        flat[key], plain = whole.value(key)
        if not plain:
            code.append(key)
    try:
        torch.save(unflatten(flat, whole.paths), file)
    except RuntimeError as error:  # which hides the error of the system
        raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None
    return tuple(code)


def _as_safetensors(
    file: BinaryIO, whole: Whole, tensors: dict[str, torch.Tensor], others: list[str], step: int, on_bytes: OnBytes
) -> None:
    from transom_cli.ckpt.convert import safetensors_file  # an optional dependency

    if not tensors:
        raise UsageError("The export would contain no tensor", hint="--format torch keeps other values too")
    partial = {str(whole.paths[key][0]) for key in tensors} & {str(whole.paths[key][0]) for key in others}
    record = safetensors_file.ExportRecord(step, {key: whole.paths[key] for key in tensors}, tuple(sorted(partial)))
    safetensors_file.write(file, tensors, record, _counted(whole, on_bytes))


class Whole:
    """paths: flat key to path, of all values. Raises StateMismatch if it is no checkpoint of ours."""

    def __init__(self, checkpoint: Path, *, allow_code: bool = False) -> None:
        self._checkpoint, self._allow_code = checkpoint, allow_code
        try:
            self._source = OnDisk(checkpoint)
            self._metadata = self._source.metadata(allow_code=allow_code)
        except StateMismatch:
            raise
        except Exception as error:  # intact bytes that are not torch metadata
            raise StateMismatch(f"torch's own metadata of {checkpoint.name} cannot be read", str(error)) from None
        self.paths: Paths = paths_of(self._metadata)
        self._stored: dict[str, Any] = dict(self._metadata.state_dict_metadata)

    def is_tensor(self, key: str) -> bool:
        return isinstance(self._stored[key], TensorStorageMetadata)

    def placeholder(self, key: str) -> torch.Tensor:
        """A CPU tensor with the shape and type of `key`. Its memory is not touched, so it costs address space only."""
        stored = self._stored[key]
        return torch.empty(stored.size, dtype=stored.properties.dtype)

    def tensor(self, key: str) -> torch.Tensor:
        """The whole tensor, contiguous."""
        target = self.placeholder(key)
        for chunk, part, _ in pieces(f"`{key}`", self._stored[key], target):
            index = MetadataIndex(key, chunk.offsets)
            opened, start, length = self._opened(index)
            part.copy_(stored_tensor(self._metadata, index, opened.data, start, length))
        return target

    def value(self, key: str) -> tuple[Any, bool]:
        """A value that is not a tensor, and whether torch's `weights_only` loads it. Raises NeedsCode."""
        try:
            opened, start, length = self._opened(MetadataIndex(key))
            data = opened.data[start : start + length]
            try:
                return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True), True
            except pickle.UnpicklingError:
                return safe_unpickle.value(data, key, map_location="cpu", allow_code=self._allow_code), False
        except (ImportError, AttributeError) as error:
            raise StateMismatch(
                f"`{key}` cannot be loaded here",
                str(error),
                "run this where the training's own code can be imported, or choose other parts with --only",
            ) from None

    def _opened(self, index: MetadataIndex) -> tuple[Opened, int, int]:
        """The file that holds it, where it begins there, and its bytes."""
        stored: Any = self._metadata.storage_data
        where = stored[index]
        try:
            return self._source.open(where.relative_path), where.offset, where.length
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise StateMismatch(
                f"{self._checkpoint} cannot be read any more",
                describe(error),
                "a training that is running deletes old checkpoints: export again",
            ) from None
