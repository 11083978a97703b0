"""What the trainer gave us to keep, as one tree of tensors and plain values, and back.

Four kinds of entry:

- modules: parameters and buffers, the same on every rank or sharded (DTensor, FSDP2); stored once;
- optimizers: state under parameter names; stored once;
- other objects with `state_dict` and `load_state_dict`: **per rank** (a data loader's position differs by rank), except
  learning-rate schedulers and gradient scalers, which are the same everywhere;
- tensors and plain values: must be the same on every rank; stored once. Plain values are read from the dict at each
  save, and put back into the dict by a restore.

Random number generators are added by us, per rank. Per-rank entries are stored under `ranks.<rank>.<name>`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from transom_cli.ckpt import rng
from transom_cli.ckpt.convert import optimizers
from transom_cli.ckpt.tree import Flat, Paths, flatten, local_part, unflatten
from transom_cli.errors import UsageError

RANKS = "ranks"
RNG = "rng"


class State:
    """The trainer's state for one rank. Nothing is copied here; tensors are the live ones."""

    def __init__(self, entries: dict[str, Any], rank: int) -> None:
        self._entries = entries
        self._rank = str(rank)
        for name, value in entries.items():
            if not isinstance(name, str) or not name or name in (RANKS, RNG):
                raise UsageError(
                    f"`{name}` cannot be a name in the checkpointed state",
                    f"names are texts; `{RANKS}` and `{RNG}` are taken",
                )
            if isinstance(value, torch.nn.Module) and any(_is_fsdp1(m) for m in value.modules()):
                raise UsageError(
                    f"`{name}` uses FullyShardedDataParallel (FSDP1), which transom does not checkpoint",
                    hint="use torch.distributed.fsdp.fully_shard (FSDP2)",
                )

    def read(self) -> tuple[Flat, Paths]:
        """Call every `state_dict` now. The tensors returned are the live ones, detached."""
        tree: dict[str, Any] = {}
        mine: dict[str, Any] = {RNG: rng.read()}
        modules = {name: unwrap(v).state_dict() for name, v in self._entries.items() if isinstance(v, torch.nn.Module)}
        names = self._parameter_names()
        for name, value in self._entries.items():
            if name in modules:
                tree[name] = modules[name]
            elif isinstance(value, torch.optim.Optimizer):
                tree[name] = optimizers.read(value, names)
            elif _is_stateful(value):
                (tree if _is_shared(value) else mine)[name] = value.state_dict()
            else:
                tree[name] = value
        tree[RANKS] = {self._rank: mine}
        return flatten(tree)

    def write(self, flat: Flat, paths: Paths, afresh: Collection[str] = (), *, per_rank: bool) -> None:
        """Put loaded values in place. Module and tensor entries were loaded in place already, by `targets`.

        Entries in `afresh` are left as they are.

        Raises StateMismatch, or what the objects' own `load_state_dict` raises. RNG comes last: nothing draws after it.
        """
        tree = unflatten(flat, paths)
        mine = tree.pop(RANKS, {}).get(self._rank, {})
        names = self._parameter_names()
        for name, value in list(self._entries.items()):
            if name in afresh:
                continue
            if isinstance(value, torch.nn.Module):
                unwrap(value).load_state_dict(tree[name], strict=True)
            elif isinstance(value, torch.optim.Optimizer):
                optimizers.write(value, names, tree[name])
            elif _is_stateful(value):
                if _is_shared(value):
                    value.load_state_dict(tree[name])
                elif per_rank:
                    value.load_state_dict(mine[name])
            elif not isinstance(value, torch.Tensor):
                self._entries[name] = tree[name]
        if per_rank:
            rng.write(mine[RNG])

    @property
    def to_come(self) -> int:
        """Bytes of this rank's part that the optimizers will make with their first step, roughly."""
        return sum(optimizers.to_come(v) for v in self._entries.values() if isinstance(v, torch.optim.Optimizer))

    def stepped(self) -> frozenset[int]:
        """The storages, by address, that only an optimizer's step changes: parameters, and what it keeps for them."""
        found: set[int] = set()
        for value in self._entries.values():
            if isinstance(value, torch.optim.Optimizer):
                held = [p for group in value.param_groups for p in group["params"]]
                held += [t for kept in value.state.values() for t in kept.values() if isinstance(t, torch.Tensor)]
                found.update(local_part(tensor).untyped_storage().data_ptr() for tensor in held)
        return frozenset(found)

    def loads_in_place(self, name: str) -> bool:
        return isinstance(self._entries[name], (torch.nn.Module, torch.Tensor))

    @property
    def shared_names(self) -> list[str]:
        return [name for name, value in self._entries.items() if not (_is_stateful(value) and not _is_shared(value))]

    @property
    def per_rank_names(self) -> list[str]:
        shared = set(self.shared_names)
        return [RNG, *(name for name in self._entries if name not in shared)]

    def sharded_like(self, name: str, parameter: str) -> DTensor | None:
        """The sharded parameter whose optimizer state `<name>.state.<parameter>` holds, if it is sharded."""
        optimizer = self._entries.get(name)
        if not isinstance(optimizer, torch.optim.Optimizer):
            return None
        found = optimizers.parameters(optimizer, self._parameter_names()).get(parameter)
        return found if isinstance(found, DTensor) else None

    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """Parameter -> its name, with the module's own name in front when there are several modules."""
        modules = {name: unwrap(v) for name, v in self._entries.items() if isinstance(v, torch.nn.Module)}
        names: dict[torch.Tensor, str] = {}
        for name, module in modules.items():
            prefix = f"{name}." if len(modules) > 1 else ""
            for key, parameter in module.named_parameters():
                names.setdefault(parameter, prefix + key)
        return names


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """The module below DDP and torch.compile, so that names do not depend on how it is run."""
    while True:
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            module = module.module
        elif isinstance(inner := getattr(module, "_orig_mod", None), torch.nn.Module):
            module = inner
        else:
            return module


def _is_stateful(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _is_shared(value: Any) -> bool:
    shared = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
    return isinstance(value, shared)


def _is_fsdp1(module: torch.nn.Module) -> bool:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return isinstance(module, FullyShardedDataParallel)
