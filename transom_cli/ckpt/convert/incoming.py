"""Whether a file's content can become a checkpoint: what would fail at a restore is refused before it is written."""

from __future__ import annotations

from pathlib import Path

import torch

from transom_cli.ckpt.failures import BadFile
from transom_cli.ckpt.state import RANKS, RNG
from transom_cli.ckpt.tree import Flat, Paths
from transom_cli.errors import UsageError


def check(source: Path, flat: Flat, paths: Paths, partial: tuple[str, ...]) -> None:
    """Raises UsageError. `partial`: entries of which the file's own writer left values out."""
    if not flat:
        raise UsageError(f"{source} is empty")
    halves = [name for name in partial if any(path[0] == name for path in paths.values())]
    if halves:
        raise UsageError(
            f"{source} has only the tensors of {', '.join(halves)}",
            "safetensors keeps no other values, and an entry is restored whole or not at all",
            "leave it out (--only NAME for each of the others, --afresh for this one), or export a torch file",
        )
    odd = [key for key, value in flat.items() if isinstance(value, torch.Tensor) and not _plain(value)]
    if odd:
        raise UsageError(
            f"{source} has tensors that are not plain ones in memory (sharded, sparse, quantized or meta)",
            ", ".join(odd),
            "save them as full, dense tensors",
        )
    for key, path in paths.items():
        if _numbered(flat[key], path):
            raise UsageError(
                f"`{path[0]}` is an optimizer's state with numbered parameters (`{key}`)",
                "transom keeps it under the parameters' names, for which the file has no key",
                "save what get_optimizer_state_dict of torch.distributed.checkpoint.state_dict gives,\n"
                f"or leave it out (--only) and start it afresh: --afresh {path[0]}",
            )


def ranks_in(source: Path, paths: Paths) -> int:
    """Of how many ranks the file has per-rank entries. Raises BadFile when they are not those of ranks 0 to n-1."""
    found = {path[1:3] for path in paths.values() if path[0] == RANKS}
    ranks = {path[0] for path in found if path}
    count = len(ranks)
    if any((str(rank), RNG) not in found for rank in range(count)):
        raise BadFile(
            f"The per-rank state in {source} (`{RANKS}`) is not whole",
            f"it has {', '.join(sorted('.'.join(map(str, path)) for path in found))}",
            "leave it out: --only NAME for each of the other entries",
        )
    return count


def _plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and tensor.device.type == "cpu"
    )


def _numbered(value: object, path: tuple[str | int, ...]) -> bool:
    """Whether it is a group's parameters as torch's own Optimizer.state_dict() has them."""
    groups = len(path) == 4 and path[1] == "param_groups" and path[3] == "params"
    return groups and isinstance(value, list) and any(type(item) is int for item in value)
