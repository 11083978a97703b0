"""Nested state as flat keys, as torch.distributed.checkpoint (DCP) flattens it, but lossless.

DCP joins the path of a value with dots: `{"model": {"a.weight": t}}` is stored under `model.a.weight`. We do the same,
so that stock DCP reads our checkpoints. Where DCP's flattening would lose something (an empty dict, keys that are not
strings), the container itself becomes the stored value.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from transom_cli.errors import UsageError

Path = tuple[str | int, ...]
Flat = dict[str, Any]  # flat key -> tensor or plain value
Paths = dict[str, Path]  # flat key -> path in the tree


PLAIN = (
    torch.Tensor,
    torch.nn.Parameter,
)  # by type alone, which costs a tenth of isinstance: a save looks at thousands


def local_part(value: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor; not a copy."""
    return value.to_local() if type(value) not in PLAIN and isinstance(value, DTensor) else value


def flatten(tree: dict[str, Any]) -> tuple[Flat, Paths]:
    """Flatten nested state. Raises UsageError if two values would have the same key."""
    flat: Flat = {}
    paths: Paths = {}

    def visit(path: Path, value: Any) -> None:
        if _is_node(value):
            for key, child in value.items():
                visit((*path, key), child)
        elif isinstance(value, list) and _goes_into(value):
            for index, child in enumerate(value):
                visit((*path, index), child)
        else:
            key = ".".join(map(str, path))
            if key in flat:
                raise UsageError(f"Two values of the checkpointed state are both called `{key}`")
            flat[key], paths[key] = value, path

    for key, value in tree.items():
        visit((key,), value)
    return flat, paths


def unflatten(flat: Flat, paths: Paths) -> dict[str, Any]:
    """Rebuild the tree: dicts for strings in a path, lists for numbers."""
    root: dict[str, Any] = {}
    for key, value in flat.items():
        path = paths[key]
        node: Any = root
        for here, below in pairwise(path):
            node = _child(node, here, [] if isinstance(below, int) else {})
        if isinstance(node, list):
            _extend(node, path[-1])
        node[path[-1]] = value
    return root


def _child(node: Any, step: str | int, fresh: Any) -> Any:
    if isinstance(node, dict):
        return node.setdefault(step, fresh)
    _extend(node, step)
    if node[step] is None:
        node[step] = fresh
    return node[step]


def _extend(node: list[Any], index: Any) -> None:
    node.extend([None] * (index + 1 - len(node)))


def _is_node(value: Any) -> bool:
    return type(value) in (dict, OrderedDict) and bool(value) and all(type(key) is str for key in value)


def _goes_into(value: list[Any]) -> bool:
    """DCP's rule: a list is a container when it holds a tensor or a mapping at any depth of lists."""
    return any(
        isinstance(item, (torch.Tensor, dict)) or (isinstance(item, list) and _goes_into(item)) for item in value
    )
