"""Nested state as flat keys, as DCP (torch.distributed.checkpoint) flattens it, and which tensors are stored how.

DCP joins the path of a value with dots: `{"model": {"a.weight": t}}` is stored under `model.a.weight`. We do the same,
so that stock DCP reads our checkpoints. Where DCP's flattening would lose something (an empty dict, keys that are not
strings), the container itself becomes the stored value.

- A dense tensor is stored as its bytes.
- A tensor subclass that consists of other tensors (`__tensor_flatten__`), such as the state of an 8-bit optimizer, is
  stored as those, and what else it consists of as one value, its *description*. So it keeps its size and its bits.
- A sparse tensor, and one of another subclass that a restore has to make, is stored as one value.
- Quantized tensors of torch (not those of subclasses), tensors without data of their own, and sums that are spread over
  ranks are refused.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from transom_cli.ckpt.failures import StateMismatch
from transom_cli.errors import UsageError

Path = tuple[str | int, ...]
Flat = dict[str, Any]  # flat key -> tensor or plain value
Paths = dict[str, Path]  # flat key -> path in the tree


PLAIN = (
    torch.Tensor,
    torch.nn.Parameter,
)  # by type alone, which costs a tenth of isinstance: a save looks at thousands


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its values lie contiguously in this process's memory, as they are. A subclass may keep them elsewhere."""
    plain = type(tensor) in PLAIN and tensor.is_cpu and tensor.is_contiguous()
    return plain and not (tensor.is_conj() or tensor.is_neg())


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
                raise UsageError(
                    f"Two values of the checkpointed state are both called `{key}`", hint="rename one of them"
                )
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


DESCRIPTION = "tensor subclass"  # the last part of the path of a description
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


class Whole:
    """A tensor that is stored as one value."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def is_dense(value: torch.Tensor) -> bool:
    return value.layout is torch.strided


def inner_tensors(value: Any) -> dict[str, torch.Tensor] | None:
    """The tensors that a tensor subclass consists of; None for any other tensor."""
    if type(value) in PLAIN or isinstance(value, DTensor) or not hasattr(value, "__tensor_flatten__"):
        return None
    return {name: getattr(value, name) for name in value.__tensor_flatten__()[0]}


def parts(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors whose bytes are stored: those inside a subclass, or the tensor itself."""
    inner = inner_tensors(value)
    if inner is None:
        yield value
    else:
        for one in inner.values():
            yield from parts(one)


def context(value: Any) -> Any:
    """What a tensor subclass consists of besides tensors."""
    return value.__tensor_flatten__()[1] if inner_tensors(value) is not None else None


def refused(value: torch.Tensor) -> str:
    """Why a tensor cannot be saved; "" if it can."""
    if value.is_meta or type(value).__name__ == "FakeTensor":
        return "it is on the meta device, which has no data"
    if isinstance(value, DTensor):
        if any(placement.is_partial() for placement in value.placements):
            return "it is a DTensor with a pending sum (Partial): each rank has only its part"
        return ""
    if type(value).__name__ == "ShardedTensor":
        return "it is a ShardedTensor; use DTensor"
    if value.is_quantized:
        return "it is a quantized tensor of torch; give its int_repr(), scale and zero point"
    if value.is_nested:
        return "it is a nested tensor"
    if value.layout is not torch.strided and value.layout not in _SPARSE:
        return f"its layout {value.layout} has no storage of its own"
    if str(value.dtype).startswith("torch.bits"):
        return f"torch's checkpoints have no {value.dtype}"
    if value.layout is torch.strided and inner_tensors(value) is None and torch._debug_has_internal_overlap(value) == 1:
        return "several of its elements are one place in memory (expand); give a clone of it"
    return ""


class Description(dict[str, Any]):
    """What a tensor of a subclass consists of besides tensors. Stored as a dict; equal ones are one object."""


class Spread:
    """Replaces tensors that are not stored as they are by what is stored. Looks at each name once for each type."""

    def __init__(self) -> None:
        self._types: dict[str, type] = {}
        self._odd: set[str] = set()
        self._descriptions: dict[Path, Description] = {}

    def spread(self, flat: Flat, paths: Paths, in_place: Callable[[Path], bool], own: Callable[[Path], Path]) -> None:
        """Change `flat` and `paths`.

        Args:
            in_place: whether a restore writes into the tensor at this path, so that its class need not be stored.
            own: the path under which this rank stores what is its own.

        Raises:
            UsageError: names a tensor that cannot be saved.
        """
        for key, value in flat.items():
            if self._types.get(key) is not type(value):
                self._look(key, value, paths[key], in_place)
        for key in self._odd.intersection(flat):
            value, path = flat[key], paths[key]
            local = local_part(value)
            if inner_tensors(local) is None:
                flat[key] = Whole(value.detach())
                continue
            del flat[key], paths[key]
            sharded = local is not value
            self._take_apart(flat, paths, own(path) if sharded else path, local, sharded=sharded)

    def _look(self, key: str, value: Any, path: Path, in_place: Callable[[Path], bool]) -> None:
        self._odd.discard(key)
        if isinstance(value, torch.Tensor):
            if why := refused(value):
                raise UsageError(f"`{key}` cannot be checkpointed: {why}", "", "take it out of the state")
            odd = not is_dense(value) or (type(value) not in PLAIN and not in_place(path))
            if inner_tensors(local_part(value)) is not None or (odd and not isinstance(value, DTensor)):
                self._odd.add(key)
        self._types[key] = type(value)

    def _take_apart(self, flat: Flat, paths: Paths, path: Path, value: Any, *, sharded: bool) -> None:
        names, about = value.__tensor_flatten__()
        found = Description(
            {"class": type(value), "tensors": list(names), "context": about, "sharded": sharded,
             "shape": tuple(value.shape), "stride": tuple(value.stride())}
        )  # fmt: skip
        known = self._descriptions.get(path)
        if known is None or known != found:
            known = self._descriptions[path] = found
        _add(flat, paths, (*path, DESCRIPTION), known)
        for name in names:
            inner = getattr(value, name)
            if inner_tensors(inner) is not None:
                self._take_apart(flat, paths, (*path, name), inner, sharded=False)
            else:
                _add(flat, paths, (*path, name), inner.detach())


def _add(flat: Flat, paths: Paths, path: Path, value: Any) -> None:
    key = ".".join(map(str, path))
    if key in flat:
        raise UsageError(f"Two values of the checkpointed state are both called `{key}`", hint="rename one of them")
    flat[key], paths[key] = value, path


def rebuild(tree: Any, path: Path, like: Callable[[Path], DTensor | None]) -> Any:
    """Put tensors of subclasses together again, at any depth of what was loaded.

    like: the sharded tensor whose part is at this path. Raises StateMismatch: this rank has no such sharded tensor.
    """
    if type(tree) is list:
        return [rebuild(one, (*path, i), like) for i, one in enumerate(tree)]
    if type(tree) is not dict:
        return tree
    found = {key: rebuild(one, (*path, key), like) for key, one in tree.items()}
    about = found.get(DESCRIPTION)
    if not isinstance(about, dict) or "tensors" not in about:
        return found
    inner = {name: found[name] for name in about["tensors"]}
    value = about["class"].__tensor_unflatten__(inner, about["context"], about["shape"], about["stride"])
    if not about["sharded"]:
        return value
    whole = like(path)
    if whole is None or tuple(whole.to_local().shape) != about["shape"]:
        raise StateMismatch(f"{'.'.join(map(str, path))} is a part of a sharded tensor that is not here")
    return DTensor.from_local(
        value, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def check_description(live: torch.Tensor, loaded: Any, name: str) -> None:
    """Raise StateMismatch if what was loaded does not describe a tensor such as `live`, at any depth."""
    about = loaded.get(DESCRIPTION) if isinstance(loaded, dict) else None
    inner = inner_tensors(live) or {}
    if about is None or (about["class"], about["context"], about["shape"]) != (
        type(live), context(live), tuple(live.shape),
    ):  # fmt: skip
        theirs = "another kind of tensor" if about is None else f"{about['class'].__name__} with {about['context']}"
        raise StateMismatch(
            f"{name} is {theirs} in the checkpoint, and {type(live).__name__} with {context(live)} here"
        )
    for key, one in inner.items():
        if inner_tensors(one) is not None:
            check_description(one, loaded[key], f"{name}.{key}")


def moved(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of a subclass on another device. Nothing is converted."""
    inner = inner_tensors(value)
    if inner is None:
        return value.to(device)
    there = {name: moved(one, device) for name, one in inner.items()}
    kind: Any = type(value)
    made: torch.Tensor = kind.__tensor_unflatten__(there, context(value), value.shape, value.stride())
    return made
