"""The trainer's state as one tree of tensors and plain values, and back.

How an entry is stored depends on what it holds:

- modules: parameters and buffers, the same on every rank or sharded (DTensor, FSDP2). Stored once;
- optimizers: state under parameter names. Stored once. An optimizer whose `state_dict` has another layout (a container
  of several, flattened) is stored as it is;
- other objects with `state_dict` and `load_state_dict`: stored once if they hold sharded tensors (DTensor), which say
  what each rank has; otherwise **per rank** (a data loader's position differs by rank), except learning-rate schedulers
  and gradient scalers, objects with `same_on_all_ranks = True`, and those declared `from_rank_0`;
- random number generators: per rank. A restore sets their state;
- tensors and plain values: must be the same on every rank. Stored once. Plain values are read from the dict at each
  save. A restore writes into the same tensors, dicts, lists, arrays and objects (`in_place`), and replaces in the dict
  what cannot be changed.

`tree` says which tensors are not stored as their bytes.

What is stored once is compared between ranks (`save.replicas`). Values that are declared `per_rank`, by patterns of
their names, are kept per rank. Buffers that DDP broadcasts before each forward, and values that are declared
`from_rank_0`, are rank 0's.

The states of random number generators are added per rank. Per-rank values are stored under `ranks.<rank>.<name>`.
"""

import functools
import gc
import re
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import translate
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from transom_cli.ckpt import in_place, optimizers
from transom_cli.ckpt.failures import StateMismatch
from transom_cli.ckpt.module_names import CanonicalNames, canonical, translation, unwrap
from transom_cli.ckpt.ranks import Ranks
from transom_cli.ckpt.rng import derived, read_rng, seed_rng, write_rng
from transom_cli.ckpt.tree import (
    PLAIN,
    Flat,
    Path,
    Paths,
    Spread,
    check_description,
    flatten,
    inner_tensors,
    is_dense,
    local_part,
    parts,
    rebuild,
    unflatten,
)
from transom_cli.errors import UsageError

RANKS = "ranks"
RNG = "rng"
_EXTRA = "_extra_state"  # what torch appends to the name of a module for its `get_extra_state`
VALUES, PARAMETERS, BUFFERS = "values", "parameters", "buffers"  # of a module


class State:
    """The trainer's state for one rank. Nothing is copied here; tensors are the live ones."""

    def __init__(
        self, entries: dict[str, Any], rank: int, per_rank: Collection[str] = (), from_rank_0: Collection[str] = ()
    ) -> None:
        self._entries = entries
        self._rank = str(rank)
        self._per_rank, self._from_rank_0 = Declared("per_rank", per_rank), Declared("from_rank_0", from_rank_0)
        self._alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
        self._wrappers: list[weakref.ref[torch.nn.parallel.DistributedDataParallel]] = []
        self._looked = False
        self._as_it_is: set[str] = set()  # optimizers whose state has a layout of its own
        self._groups: tuple[optimizers.Names, optimizers.Names] = ({}, {})  # of this rank; of all ranks
        self._spread = Spread()
        self._canonical: dict[tuple[str, str], CanonicalNames] = {}  # by entry, and what it names
        self.renamed: dict[str, str] = {}  # in the checkpoint that was written here last: its names, and those here
        self._renamed_in_groups: dict[str, dict[str, str]] = {}  # by optimizer: names here, and those of its groups
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

    def check(self, storable: Callable[[Flat, Paths], None]) -> None:
        """Check that every entry can be read and stored. Training is not changed.

        storable: raises for values that cannot be stored. Raises UsageError: names the entry.
        """
        names = self._parameter_names()
        for name, value in self._live():
            try:
                with undisturbed():
                    self._held(name, value, names)
            except Exception as error:
                raise _refused(name, "its state cannot be read", error) from error
        with undisturbed():
            flat, paths = self.read()
        try:
            storable(flat, paths)
        except Exception:
            for key, value in flat.items():
                try:
                    storable({key: value}, {key: paths[key]})
                except Exception as error:
                    raise _refused(key, f"a {type(value).__name__} that cannot be stored", error) from error

    def read(self) -> tuple[Flat, Paths]:
        """Call every `state_dict` now. The tensors returned are the live ones, detached."""
        tree: dict[str, Any] = {}
        mine: dict[str, Any] = {RNG: read_rng()}
        names = self._parameter_names()
        for name, value in self._live():
            held = self._held(name, value, names)
            (mine if self._differs_by_rank(name, value) and not _holds_sharded(held) else tree)[name] = held
        tree[RANKS] = {self._rank: mine}
        flat, paths = flatten(tree)
        self._spread.spread(flat, paths, lambda path: self.loads_in_place(within(path)), self._own)
        return (flat, paths) if not self._per_rank.patterns else self._with_declared(flat, paths)

    def passing(self) -> tuple[Flat, Paths]:
        """The part of `read` that may change outside the steps of optimizers: random numbers, objects, settings.

        Without modules, and optimizers whose state has a layout of its own.
        """
        tree: dict[str, Any] = {}
        mine: dict[str, Any] = {RNG: read_rng()}
        for name, value in self._live():
            if isinstance(value, torch.optim.Optimizer):
                groups = [{key: one for key, one in group.items() if key != "params"} for group in value.param_groups]
                tree |= {name: {"param_groups": groups}} if name not in self._as_it_is else {}
            elif not isinstance(value, torch.nn.Module):
                held = self._held(name, value, {})
                (mine if self._differs_by_rank(name, value) else tree)[name] = held
        tree[RANKS] = {self._rank: mine}
        flat, paths = flatten(tree)
        return (flat, paths) if not self._per_rank.patterns else self._with_declared(flat, paths)

    def optimized(self) -> list[torch.Tensor]:
        """The parameters of optimizers."""
        found = (value for value in self._entries.values() if isinstance(value, torch.optim.Optimizer))
        return [p for optimizer in found for group in optimizer.param_groups for p in group["params"]]

    def buffer_values(self) -> Flat:
        """The modules' buffers, which a forward pass may change."""
        modules = [(name, unwrap(value)) for name, value in self._entries.items() if isinstance(value, torch.nn.Module)]
        return {f"{name}.{key}": one for name, module in modules for key, one in self._buffers(name, module)}

    def to_save(self) -> tuple[Flat, Paths]:
        """Like `read`, without what another rank saves for all: buffers that DDP broadcasts are rank 0's."""
        if not self._looked:
            self._looked = True
            self._look_for_wrappers()
        flat, paths = self.read()
        for key in self._left_to_another_rank(flat):
            flat.pop(key, None)
            paths.pop(key, None)
        return flat, paths

    def _left_to_another_rank(self, flat: Flat) -> list[str]:
        """The keys that their owner saves: rank 0 of the DDP group that broadcasts them, or rank 0 as declared."""
        found = [key for key, (_, owner) in self._sent().items() if owner != int(self._rank)]
        if self._from_rank_0.patterns:
            declared = [key for key in flat if self._from_rank_0.matches(key)]
            for key in declared:
                if isinstance(flat[key], DTensor):
                    raise UsageError(
                        f"`{key}` is declared to be saved from rank 0, and it is a sharded tensor (DTensor)",
                        "its mesh says which rank holds what",
                        "take it out of from_rank_0",
                    )
            found += declared if self._rank != "0" else []
        return found

    def shapes(self) -> tuple[Flat, Paths]:
        """Like `to_save`, for callers that need only shapes. An optimizer that has not stepped yet stays so."""
        with undisturbed():
            shapes = self.to_save()
        self._looked = False  # a module may be wrapped later
        return shapes

    def broadcast(self) -> Flat:
        """The buffers that DDP broadcasts before each forward, and which may differ until then."""
        return {key: buffer for key, (buffer, _) in self._sent().items()}

    def _sent(self) -> dict[str, tuple[torch.Tensor, int]]:
        """The same, each with the rank that DDP broadcasts it from."""
        sent = {id(one): owner for found in self._wrappers if (ddp := found()) for one, owner in _sent_by(ddp)}
        if not sent:
            return {}
        return {
            f"{name}.{key}": (buffer, sent[id(buffer)])
            for name, value in self._entries.items()
            if isinstance(value, torch.nn.Module)
            for key, buffer in self._buffers(name, unwrap(value))
            if id(buffer) in sent and not self._per_rank.matches(f"{name}.{key}")
        }

    def _buffers(self, name: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        held = dict(module.named_buffers())
        short = self._canonical_names(name, BUFFERS, module, held)
        return ((short[key], buffer) for key, buffer in held.items())

    def from_first(self, keys: Iterable[str]) -> frozenset[str]:
        """Those of `keys` whose value on rank 0 counts for all: buffers that DDP broadcasts, and declared ones."""
        self._look_for_wrappers()
        sent = self._sent()
        return frozenset(key for key in keys if key in sent or self._from_rank_0.matches(key))

    def _look_for_wrappers(self) -> None:
        """Find the DDP modules of this process: an entry may be what one of them wraps."""
        modules = [value for value in self._entries.values() if isinstance(value, torch.nn.Module)]
        if self._alone or not any(True for module in modules for _ in module.buffers()):
            return
        kinds: list[type[Any]] = [torch.nn.parallel.DistributedDataParallel]
        for kind in kinds:
            kinds += type.__subclasses__(kind)
        ids = {id(kind) for kind in kinds}  # there may be millions of objects
        self._wrappers = [weakref.ref(one) for one in gc.get_objects() if id(type(one)) in ids]

    def write(self, flat: Flat, paths: Paths, afresh: Collection[str] = (), *, per_rank: bool) -> None:
        """Write loaded values into the live state. Modules and tensors were loaded in place already.

        Random number generators come last: nothing draws after them.

        Args:
            afresh: entries that are left as they are.
            per_rank: also write per-rank values.

        Raises:
            StateMismatch: an optimizer has other parameters. Also raises what `load_state_dict` of an object raises.
        """
        paths = self.translated({key: paths[key] for key in flat})
        now = {key: ".".join(map(str, path)) for key, path in paths.items()}
        self.renamed = {key: name for key, name in now.items() if key != name}
        tree = unflatten(flat, {key: within(path) for key, path in paths.items()})
        names = self._parameter_names()
        for name, value in self._live():
            if name in afresh:
                continue
            loaded = tree.get(name)
            if isinstance(value, torch.nn.Module):
                self._write_module(name, unwrap(value), tree.get(name, {}))  # a stage may have no parameters
                continue
            sharded = functools.partial(_sharded_at, self.parameters(name) or {})
            loaded = rebuild(loaded, (name,), sharded)
            if isinstance(value, torch.optim.Optimizer) and name not in self._as_it_is:
                together = self._groups[1].get(name)
                self._renamed_in_groups[name] = optimizers.write(value, names, loaded, together)
            elif _is_stateful(value):
                if name in tree:
                    value.load_state_dict(loaded)
            elif isinstance(value, torch.Tensor):
                in_place.put_tensor(value, loaded, name)
            else:
                self._entries[name] = in_place.put(value, loaded, name)
        if per_rank:
            write_rng(tree[RNG])

    def translated(self, paths: Paths) -> Paths:
        """The paths of a checkpoint, with the names that parameters and buffers have in this training.

        Raises:
            StateMismatch: two names of the checkpoint would be one here.
        """
        at = {key: self._position(path) for key, path in paths.items()}
        stored: dict[str, set[str]] = {}  # by entry
        for key, path in paths.items():
            if at[key]:
                stored.setdefault(str(within(path)[0]), set()).add(str(path[at[key]]))
        renamed = {name: translation(names, self._live_names(name)) for name, names in stored.items()}
        found: Paths = {}
        for key, path in paths.items():
            i = at[key]
            name = renamed[str(within(path)[0])](str(path[i])) if i else ""
            found[key] = (*path[:i], name, *path[i + 1 :]) if i else path
        return found

    def _position(self, path: Path) -> int:
        """Where a path has the name of a parameter or buffer; 0: nowhere."""
        inner = within(path)
        value, above = self._entries.get(str(inner[0])), len(path) - len(inner)
        if isinstance(value, torch.nn.Module):
            return above + 1 if len(inner) > 1 else 0
        usual = isinstance(value, torch.optim.Optimizer) and str(inner[0]) not in self._as_it_is
        return above + 2 if usual and len(inner) > 2 and inner[1] == "state" else 0

    def _live_names(self, name: str) -> set[str]:
        value = self._entries[name]
        if isinstance(value, torch.optim.Optimizer):
            return set(optimizers.parameter_names(value, self._parameter_names()))
        module = unwrap(value)
        return set(self._canonical_names(name, VALUES, module, module.state_dict()).values())

    def _write_module(self, name: str, module: torch.nn.Module, loaded: dict[str, Any]) -> None:
        """Dense tensors, and those inside a subclass, were loaded in place already.

        Raises:
            StateMismatch: a tensor cannot take the value that was saved. Also raises what `load_state_dict` raises.
        """
        held = module.state_dict(keep_vars=True)  # a sparse tensor cannot be written through another one
        given = self._canonical_names(name, VALUES, module, held)
        others: dict[str, Any] = {}
        odd: list[str] = []
        if extra := sorted(set(loaded) - {given[key] for key in held}):
            raise StateMismatch(f"the trainer has no {name}.{extra[0]}")
        for key, live in held.items():
            if given[key] not in loaded:
                continue
            value, whole = loaded[given[key]], f"{name}.{given[key]}"
            if not isinstance(live, torch.Tensor):
                others[key] = value
            elif inner_tensors(local_part(live)) is not None:
                odd.append(key)
                check_description(local_part(live), value, whole)
            elif not is_dense(live):
                odd.append(key)
                in_place.put_tensor(live, value, whole)
            else:
                others[key] = value
        found = module.load_state_dict(others, strict=False)
        missing = sorted({*found.missing_keys} - {*odd})
        if missing or found.unexpected_keys:
            odd = [*missing, *found.unexpected_keys]
            raise StateMismatch(f"{name} does not fit the checkpoint: {', '.join(odd)}")

    def _held(self, name: str, value: Any, names: dict[torch.Tensor, str]) -> Any:
        if isinstance(value, torch.nn.Module):
            module = unwrap(value)
            held = module.state_dict()
            short = self._canonical_names(name, VALUES, module, held)
            return {short[key]: one for key, one in held.items()}
        if isinstance(value, torch.optim.Optimizer):
            packed = value.state_dict()
            if optimizers.usual(packed):
                self._as_it_is.discard(name)
                tree = optimizers.named(value, packed, names)
                own, together = (found.get(name) for found in self._groups)
                if own and together:
                    tree["param_groups"] = optimizers.widen(tree["param_groups"], own, together)
                return tree
            self._as_it_is.add(name)
            return packed
        return value.state_dict() if _is_stateful(value) else in_place.with_generator_states(value)

    def _with_declared(self, flat: Flat, paths: Paths) -> tuple[Flat, Paths]:
        """Move values that are declared per rank."""
        found: Flat = {}
        where: Paths = {}
        for key, value in flat.items():
            path = paths[key]
            if path[0] != RANKS and self._per_rank.matches(key):
                if isinstance(value, DTensor):
                    raise UsageError(
                        f"`{key}` is declared per rank, and it is a sharded tensor (DTensor)",
                        "its mesh says which rank holds what",
                        "take it out of per_rank",
                    )
                key, path = f"{RANKS}.{self._rank}.{key}", self._own(path)
            found[key], where[key] = value, path
        return found, where

    def _differs_by_rank(self, name: str, value: Any) -> bool:
        return _is_object(value) and not self._from_rank_0.matches(name)

    def _own(self, path: Path) -> Path:
        return path if path[0] == RANKS else (RANKS, self._rank, *path)

    def _live(self) -> Iterator[tuple[str, Any]]:
        """The entries. A generator is given as an object with `state_dict`."""
        for name, value in list(self._entries.items()):
            yield name, in_place.GeneratorEntry(value, name) if in_place.is_generator(value) else value

    @property
    def to_come(self) -> int:
        """Roughly the bytes that the optimizers of this rank will allocate in their first step."""
        return sum(
            optimizers.to_come(value)
            for name, value in self._entries.items()
            if isinstance(value, torch.optim.Optimizer) and name not in self._as_it_is
        )

    def stepped(self) -> frozenset[int]:
        """The storages, by address, that only an optimizer step changes: parameters and their optimizer state."""
        found: set[int] = set()
        for value in self._entries.values():
            if isinstance(value, torch.optim.Optimizer):
                held = [p for group in value.param_groups for p in group["params"]]
                held += [t for kept in value.state.values() for t in kept.values() if isinstance(t, torch.Tensor)]
                found.update(one.untyped_storage().data_ptr() for t in held for one in parts(local_part(t)))
        return frozenset(found)

    def unstored(self, flat: Flat) -> Flat:
        """Parameters that an optimizer changes and that no value in `flat` stores, such as its own fp32 copies."""
        stored = {local_part(v).untyped_storage().data_ptr() for v in flat.values() if type(v) in PLAIN or _sharded(v)}
        return {
            f"{name}.param_groups.param-{number}": parameter
            for name, value in self._entries.items()
            if isinstance(value, torch.optim.Optimizer) and name not in self._as_it_is
            for number, parameter in enumerate(p for group in value.param_groups for p in group["params"])
            if local_part(parameter).numel() and local_part(parameter).untyped_storage().data_ptr() not in stored
        }

    def with_stored_names(self, flat: Flat) -> Flat:
        """The same values; groups of optimizers name their parameters as the checkpoint does that was written here."""
        found = dict(flat)
        for name, stored in self._renamed_in_groups.items():
            for number in range(len(self._entries[name].param_groups)):
                key = f"{name}.param_groups.{number}.params"
                if isinstance(flat.get(key), list):
                    found[key] = [stored.get(one, one) for one in flat[key]]
        return found

    def parameter_values(self) -> frozenset[str]:
        """The names of all parameters of modules; one that has several names counts under each."""
        found: set[str] = set()
        for name, value in self._entries.items():
            if isinstance(value, torch.nn.Module):
                held = dict(unwrap(value).named_parameters(remove_duplicate=False))
                short = self._canonical_names(name, VALUES, unwrap(value), unwrap(value).state_dict())
                found.update(f"{name}.{short[key]}" for key in held if key in short)
        return frozenset(found)

    def loads_in_place(self, path: Path) -> bool:
        """Whether a restore writes into the tensor at this path."""
        kinds = (torch.nn.Module, torch.Tensor)
        return path[0] != RNG and isinstance(self._entries[str(path[0])], kinds) and not self.is_extra_state(path)

    def is_extra_state(self, path: Path) -> bool:
        """Whether it is in what a module's `get_extra_state` returns: values of any kind, and tensors of any size."""
        extra = len(path) > 1 and str(path[1]).rpartition(".")[2] == _EXTRA
        return extra and isinstance(self._entries.get(str(path[0])), torch.nn.Module)

    def names(self) -> list[str]:
        """The names of all entries, including the random number generators."""
        return [RNG, *self._entries]

    def is_object(self, name: str) -> bool:
        """Whether it may start afresh if per-rank values cannot be carried over: random numbers, a data loader."""
        return name == RNG or _is_object(self._entries[name]) or in_place.is_generator(self._entries[name])

    def kept_per_rank(self) -> list[str]:
        """The names of objects that are stored per rank, such as data loaders."""
        with undisturbed():
            return [name for name, value in self._entries.items() if self._differs_by_rank(name, value)
                    and not _holds_sharded(value.state_dict())]  # fmt: skip

    def seed(self, seed: int) -> None:
        """Start all generators from a seed: those of the process, and entries."""
        for name, value in sorted(self._entries.items()):
            if in_place.is_generator(value):
                in_place.seed_generator(value, derived(f"{seed} {name}"))
        seed_rng(seed)

    def parameters(self, name: str) -> dict[str, torch.Tensor] | None:
        """The parameters of an optimizer by name; None if it is none, or has a state with a layout of its own."""
        optimizer = self._entries.get(name)
        if not isinstance(optimizer, torch.optim.Optimizer) or name in self._as_it_is:
            return None
        return optimizers.parameters(optimizer, self._parameter_names())

    def exchange_groups(self, ranks: Ranks) -> None:
        """Learn which parameters the optimizers of all ranks have. A collective."""
        names = self._parameter_names()
        own = {
            name: optimizers.group_names(value, names)
            for name, value in self._entries.items()
            if isinstance(value, torch.optim.Optimizer) and name not in self._as_it_is
        }
        self._groups = own, optimizers.exchange(own, ranks)

    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """Map parameters to names, prefixed with the module's name if there are several modules."""
        modules = {name: unwrap(v) for name, v in self._entries.items() if isinstance(v, torch.nn.Module)}
        names: dict[torch.Tensor, str] = {}
        for name, module in modules.items():
            prefix = f"{name}." if len(modules) > 1 else ""
            held = dict(module.named_parameters())
            short = self._canonical_names(name, PARAMETERS, module, held)
            for key, parameter in held.items():
                names.setdefault(parameter, prefix + short[key])
        return names

    def _canonical_names(self, name: str, what: str, module: torch.nn.Module, given: Iterable[str]) -> dict[str, str]:
        return self._canonical.setdefault((name, what), CanonicalNames(name)).of(module, given)


def within(path: Path) -> Path:
    """Return the key of the value in the rank's own state, without the `ranks.<rank>` prefix."""
    return path[2:] if path[0] == RANKS else path


def _sharded_at(parameters: Mapping[str, torch.Tensor], path: Path) -> DTensor | None:
    """The sharded parameter that a moment of an optimizer belongs to."""
    found = parameters.get(str(path[2])) if len(path) == 4 and path[1] == "state" else None
    return found if isinstance(found, DTensor) else None


def _sent_by(wrapper: torch.nn.parallel.DistributedDataParallel) -> Iterator[tuple[torch.Tensor, int]]:
    if wrapper.broadcast_buffers:
        owner = torch.distributed.get_global_rank(wrapper.process_group, 0)
        named = wrapper.module.named_buffers()
        yield from ((buffer, owner) for key, buffer in named if key not in wrapper.parameters_to_ignore)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Undo the step that torch's `get_optimizer_state_dict` makes with an optimizer that has not stepped yet.

    torch makes it, with zero gradients and rates, to have a state to return. Step counters would stay at 1.
    """
    stepped: list[torch.optim.Optimizer] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not optimizer.state:
            stepped.append(optimizer)

    hook = register_optimizer_step_pre_hook(note)
    try:
        yield
    finally:
        hook.remove()
        for optimizer in stepped:
            optimizer.state.clear()


class Declared:
    """Values that an argument declares: by names, by patterns, and all below them. Names of wrappers do not matter."""

    def __init__(self, argument: str, given: Collection[str]) -> None:
        """Raises UsageError: it is no list of names."""
        if isinstance(given, str) or not all(isinstance(one, str) and one for one in given):
            raise UsageError(
                f"{argument}={given!r} must be a list of names or patterns", "", f'{argument}=["model.experts.*"]'
            )
        names = [name for one in given for name in dict.fromkeys((one, canonical(one)))]
        self.patterns = [re.compile(translate(name) + "|" + translate(f"{name}.*")) for name in names]
        self._known: dict[str, bool] = {}

    def matches(self, key: str) -> bool:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = any(one.match(key) for one in self.patterns)
        return known


def _refused(name: str, why: str, error: Exception) -> UsageError:
    return UsageError(
        f"`{name}` cannot be checkpointed: {why}",
        f"{type(error).__name__}: {error}",
        "take it out of the state that the Checkpointer is given, or give what it is made of",
    )


def _is_object(value: Any) -> bool:
    """Whether it has a `state_dict` that may differ between ranks."""
    return _is_stateful(value) and not _is_shared(value)


def _holds_sharded(held: Any) -> bool:
    """Whether there is a DTensor in it, at any depth of dicts, lists and tuples."""
    if isinstance(held, dict):
        return any(map(_holds_sharded, held.values()))
    if isinstance(held, (list, tuple)):
        return any(map(_holds_sharded, held))
    return isinstance(held, DTensor)


def _sharded(value: Any) -> bool:
    return isinstance(value, DTensor)


def _is_stateful(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _is_shared(value: Any) -> bool:
    shared = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
    return isinstance(value, shared) or getattr(value, "same_on_all_ranks", False) is True


def _is_fsdp1(module: torch.nn.Module) -> bool:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return isinstance(module, FullyShardedDataParallel)
