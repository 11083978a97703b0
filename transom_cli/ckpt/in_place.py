"""Write restored values into the trainer's own objects, and read and set the random number generators among them.

A trainer may refer to a dict, list, tensor, array or object that it has put into the state under another name. If a
restore replaced it, the trainer would use the value from before, and nobody would notice. What cannot be changed
(numbers, texts, tuples) is replaced in the container that holds it.
"""

import collections
import random
import sys
from collections.abc import Mapping
from typing import Any

import torch

from transom_cli.ckpt.failures import StateMismatch
from transom_cli.ckpt.tree import context, inner_tensors, is_dense

KIND, STATE = "random number generator", "state"  # keys of what `read_generator` returns


def is_generator(value: Any) -> bool:
    """Whether it is a generator of torch, numpy or Python."""
    return _kind(value) != ""


def read_generator(generator: Any) -> dict[str, Any]:
    """Return the generator's state as plain values."""
    kind = _kind(generator)
    if kind.startswith("torch"):
        return {KIND: kind, STATE: generator.get_state()}
    if kind == "random.Random":
        return {KIND: kind, STATE: generator.getstate()}
    if kind == "numpy.random.RandomState":
        return {KIND: kind, STATE: generator.get_state(legacy=False)}
    return {KIND: kind, STATE: generator.bit_generator.state}


def is_generator_state(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {KIND, STATE}


def write_generator(generator: Any, saved: Any, name: str) -> None:
    """Set the state that `read_generator` returned. Raises StateMismatch if it is not one of such a generator."""
    found = saved[KIND] if is_generator_state(saved) else type(saved).__name__
    if found != _kind(generator):
        raise StateMismatch(f"{name} is {found} in the checkpoint and {_kind(generator) or 'no generator'} here")
    if found.startswith("torch"):
        generator.set_state(saved[STATE].cpu())
    elif found == "random.Random":
        generator.setstate(saved[STATE])
    elif found == "numpy.random.RandomState":
        generator.set_state(saved[STATE])
    else:
        generator.bit_generator.state = saved[STATE]


def seed_generator(generator: Any, seed: int) -> None:
    """Start the generator from a seed of 63 bits."""
    kind = _kind(generator)
    if kind.startswith("torch"):
        generator.manual_seed(seed)
    elif kind == "random.Random":
        generator.seed(seed)
    elif kind == "numpy.random.RandomState":
        generator.seed(seed % 2**32)
    else:
        generator.bit_generator.state = type(generator.bit_generator)(seed).state


def with_generator_states(value: Any) -> Any:
    """Replace generators by their states, in dicts and lists. Other values are not copied."""
    if is_generator(value):
        return read_generator(value)
    if type(value) is list or isinstance(value, dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        changed = {key: new for key, one in items if (new := with_generator_states(one)) is not one}
        if changed and isinstance(value, dict):
            return {**value, **changed}
        if changed:
            return [changed.get(i, one) for i, one in enumerate(value)]
    return value


class GeneratorEntry:
    """A generator as an object with `state_dict` and `load_state_dict`. It is kept per rank."""

    def __init__(self, generator: Any, name: str) -> None:
        self._generator, self._name = generator, name

    def state_dict(self) -> dict[str, Any]:
        return read_generator(self._generator)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        write_generator(self._generator, saved, self._name)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Generator):
        return f"torch.Generator({value.device.type})"
    if type(value) is random.Random:
        return "random.Random"
    if "numpy" in sys.modules and type(value).__module__.startswith("numpy.random"):
        import numpy as np

        if isinstance(value, np.random.Generator):
            return f"numpy.random.Generator({value.bit_generator.state['bit_generator']})"
        if isinstance(value, np.random.RandomState):
            return "numpy.random.RandomState"
    return ""


_ALSO_DICTS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class written in Python


def put(live: Any, loaded: Any, name: str) -> Any:
    """Write `loaded` into `live` where possible. Return the object that has the value now: often `live`.

    Raises:
        StateMismatch: a generator cannot take the state.
    """
    return _Writing().put(live, loaded, name)


def put_tensor(live: torch.Tensor, loaded: Any, name: str) -> None:
    """Write into the tensor. Raises StateMismatch if it cannot hold the value exactly."""
    if not isinstance(loaded, torch.Tensor) or _Writing().put(live, loaded, name) is not live:
        raise StateMismatch(
            f"{name} cannot be written into the tensor of the trainer: {_about(loaded)}, {_about(live)}"
        )


class _Writing:
    def __init__(self) -> None:
        self._made: dict[int, Any] = {}  # by id of a loaded object: what holds it now
        self._taken: dict[int, Any] = {}  # by id of a live object: what it was given
        self._kept: list[Any] = []  # so that no id is used twice

    def put(self, live: Any, loaded: Any, name: str) -> Any:
        if live is loaded or id(loaded) in self._made:
            return self._made.get(id(loaded), live)
        if is_generator(live):
            write_generator(live, read_generator(loaded) if is_generator(loaded) else loaded, name)
            return live
        if is_generator_state(loaded):
            raise StateMismatch(f"{name} is a generator in the checkpoint, and {type(live).__name__} here")
        if id(live) in self._taken and not _alike(self._taken[id(live)], loaded):
            return loaded  # two values of the checkpoint, and one object here
        if isinstance(live, torch.Tensor):
            return _tensor(live, loaded) if isinstance(loaded, torch.Tensor) else loaded
        write = self._way(live, loaded)
        if write is None:
            return loaded
        self._kept += [live, loaded]
        self._taken[id(live)] = loaded
        self._made[id(loaded)] = live
        self._made[id(loaded)] = held = write(live, loaded, name)
        return held

    def _way(self, live: Any, loaded: Any) -> Any:
        if type(live) in _ALSO_DICTS and type(loaded) in _ALSO_DICTS:
            return self._dict
        if type(live) is not type(loaded):
            return None
        if type(live) in (list, collections.deque):
            return self._list
        if type(live) in (set, bytearray):
            return _replace_all
        if isinstance(live, tuple):
            return self._tuple if len(live) == len(loaded) else None
        if "numpy" in sys.modules and isinstance(live, sys.modules["numpy"].ndarray):
            same = live.dtype == loaded.dtype and live.shape == loaded.shape
            return _array if same and live.flags.writeable else None
        return self._object if _has_plain_attributes(live) else None

    def _dict(self, live: dict[Any, Any], loaded: dict[Any, Any], name: str) -> dict[Any, Any]:
        found = {key: self.put(live.get(key), value, f"{name}.{key}") for key, value in loaded.items()}
        live.clear()
        live.update(found)
        return live

    def _list(self, live: Any, loaded: Any, name: str) -> Any:
        had = [*live, *[None] * len(loaded)]
        found = [self.put(had[i], value, f"{name}.{i}") for i, value in enumerate(loaded)]
        live.clear()
        live.extend(found)
        return live if getattr(live, "maxlen", None) == getattr(loaded, "maxlen", None) else loaded

    def _tuple(self, live: Any, loaded: Any, name: str) -> Any:
        found = [self.put(one, value, f"{name}.{i}") for i, (one, value) in enumerate(zip(live, loaded, strict=True))]
        return type(loaded)(*found) if hasattr(loaded, "_fields") else type(loaded)(found)

    def _object(self, live: Any, loaded: Any, name: str) -> Any:
        self._dict(vars(live), vars(loaded), name)
        return live


def _tensor(live: torch.Tensor, loaded: torch.Tensor) -> torch.Tensor:
    if (live.shape, live.dtype, live.layout) != (loaded.shape, loaded.dtype, loaded.layout) or live.is_meta:
        return loaded if live.is_meta else loaded.to(live.device)
    with torch.no_grad():
        inner = inner_tensors(live)
        if inner is not None:
            theirs = inner_tensors(loaded)
            if type(live) is not type(loaded) or theirs is None or context(live) != context(loaded):
                return loaded.to(live.device)
            kept = [_tensor(inner[key], theirs[key]) is inner[key] for key in inner]
            return live if all(kept) else loaded.to(live.device)
        if is_dense(live) and torch._debug_has_internal_overlap(live) == 1:
            return loaded.to(live.device)
        if live.layout not in (torch.strided, torch.sparse_coo):
            live.resize_as_sparse_(loaded)  # torch copies only where the numbers of elements are equal
        live.copy_(loaded)
    return live


def _replace_all(live: Any, loaded: Any, _: str) -> Any:
    live.clear()
    live.extend(loaded) if isinstance(live, bytearray) else live.update(loaded)
    return live


def _array(live: Any, loaded: Any, _: str) -> Any:
    live[...] = loaded
    return live


def _has_plain_attributes(value: Any) -> bool:
    """Whether an object is nothing but its attributes: it is pickled and copied by them."""
    kind = type(value)
    return (
        hasattr(value, "__dict__")
        and all(base is object or base.__flags__ & _HEAP for base in kind.__mro__)
        and (kind.__reduce_ex__, kind.__reduce__) == (object.__reduce_ex__, object.__reduce__)
        and not any(hasattr(kind, one) for one in ("__setstate__", "__getnewargs__", "__getnewargs_ex__"))
        and not any("__slots__" in vars(base) for base in kind.__mro__)
        and not getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
    )


def _alike(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    try:
        return bool(one == other)
    except Exception:  # an array, or an object of the trainer's own
        return False


def _about(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{type(value).__name__} {str(value.dtype).removeprefix('torch.')}{list(value.shape)} {value.layout}"
