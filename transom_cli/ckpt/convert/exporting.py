"""From a checkpoint to one file: which parts, in which format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch

from transom_cli.ckpt.convert import torch_file
from transom_cli.ckpt.convert.outfile import appearing
from transom_cli.ckpt.failures import BadFile
from transom_cli.ckpt.inventory import Candidate
from transom_cli.ckpt.restore.whole import Whole
from transom_cli.ckpt.state import RANKS
from transom_cli.ckpt.tree import Paths, flatten, unflatten
from transom_cli.ckpt.underway import Told, nobody
from transom_cli.errors import UsageError


@dataclass(frozen=True)
class Exported:
    size: int  # bytes of the file
    tensors: tuple[str, ...]  # flat keys
    values: tuple[str, ...]  # flat keys of other values in it
    code: tuple[str, ...] = ()  # those of `values` that torch loads with weights_only=False alone
    not_tensors: tuple[str, ...] = ()  # flat keys of what safetensors cannot hold
    left_out_ranks: bool = False  # whether there is per-rank state that was not asked for


def export(
    candidate: Candidate, out: Path, form: str, *, only: Sequence[str] = (), everything: bool = False, force: bool,
    allow_code: bool = False,
    expect: Told = nobody, told: Told = nobody,
) -> Exported:  # fmt: skip
    """Write a verified checkpoint to `out`, as `form`: "torch" or "safetensors".

    `only`: names of top-level entries; by default all but the per-rank ones, with `everything` those too. In memory at
    a time: one tensor with one of its shards, and all values that are no tensors. `expect` is called with how many
    bytes of tensors there will be. Raises UsageError, StateMismatch for
    a checkpoint that torch cannot read, NeedsCode unless `allow_code`, BadFile and OSError; then there is no new file.
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
            code = _as_torch(file, whole, keys, tensors, told)
        else:
            _as_safetensors(file, whole, tensors, others, candidate.step, told)
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
            f"what a single rank keeps is in `{RANKS}`" if RANKS in names else "",
        )
    wanted = set(only) or {name for name in names if everything or name != RANKS}
    keys = [key for key, path in paths.items() if path[0] in wanted]
    if not keys:
        raise UsageError("There is nothing to export", f"the checkpoint has only per-rank state (`{RANKS}`)", "--all")
    return keys


def _counted(whole: Whole, told: Told) -> Callable[[str], torch.Tensor]:
    """Reads a tensor when it is its turn."""

    def read(key: str) -> torch.Tensor:
        tensor = whole.tensor(key)
        told(tensor.nbytes)
        return tensor

    return read


def _as_torch(
    file: BinaryIO, whole: Whole, keys: list[str], tensors: dict[str, torch.Tensor], told: Told
) -> tuple[str, ...]:
    flat, code = {}, []
    for key in keys:
        if key in tensors:
            flat[key] = tensors[key]
            continue
        flat[key], plain = whole.value(key)
        if not plain:
            code.append(key)
    lazy = {id(tensor): key for key, tensor in tensors.items()}
    torch_file.write(file, unflatten(flat, whole.paths), lazy, _counted(whole, told))
    read_back, _ = flatten(torch.load(file.name, mmap=True, map_location="cpu", weights_only=not code))
    for key, tensor in tensors.items():
        found = read_back.get(key)
        if not isinstance(found, torch.Tensor) or (found.dtype, found.shape) != (tensor.dtype, tensor.shape):
            raise BadFile(f"torch does not read `{key}` from the file as it was written", f"torch {torch.__version__}")
    return tuple(code)


def _as_safetensors(
    file: BinaryIO, whole: Whole, tensors: dict[str, torch.Tensor], others: list[str], step: int, counted: Told
) -> None:
    from transom_cli.ckpt.convert import safetensors_file  # an extra of its own

    if not tensors:
        raise UsageError("There is no tensor in what is to be exported", hint="--format torch keeps other values too")
    partial = {str(whole.paths[key][0]) for key in tensors} & {str(whole.paths[key][0]) for key in others}
    told = safetensors_file.Told(step, {key: whole.paths[key] for key in tensors}, tuple(sorted(partial)))
    safetensors_file.write(file, tensors, told, _counted(whole, counted))
