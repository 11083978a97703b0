"""Random number generators that a trainer has made itself: their state is saved, and set in the same object again."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from transom_cli.ckpt.failures import StateMismatch

KIND, STATE = "random number generator", "state"  # keys of what `read` returns


def is_generator(value: Any) -> bool:
    """Whether it is a generator of torch, numpy or Python."""
    return _kind(value) != ""


def read(generator: Any) -> dict[str, Any]:
    """Return the generator's state as plain values."""
    kind = _kind(generator)
    if kind.startswith("torch"):
        return {KIND: kind, STATE: generator.get_state()}
    if kind == "random.Random":
        return {KIND: kind, STATE: generator.getstate()}
    if kind == "numpy.random.RandomState":
        return {KIND: kind, STATE: generator.get_state(legacy=False)}
    return {KIND: kind, STATE: generator.bit_generator.state}


def is_state(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {KIND, STATE}


def write(generator: Any, saved: Any, name: str) -> None:
    """Set the state that `read` returned. Raises StateMismatch if it is not one of such a generator."""
    found = saved[KIND] if is_state(saved) else type(saved).__name__
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


def described(value: Any) -> Any:
    """Replace generators by their states, in dicts and lists. Other values are not copied."""
    if is_generator(value):
        return read(value)
    if type(value) is list or isinstance(value, dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        changed = {key: new for key, one in items if (new := described(one)) is not one}
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
        return read(self._generator)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        write(self._generator, saved, self._name)


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
