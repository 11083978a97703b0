"""Make a training compute wrong on purpose: flip bits of chosen tensors at a chosen step. For tests and the sandbox.

Only tests and `transom sandbox fault corrupt` set `TRANSOM_INJECT`, the name of a JSON file with a list of faults
(`Fault`). The file is read again when it changes, so a fault may begin in a running training. Without the variable,
nothing imports this module.

The elements are drawn from the seed, so that a fault hits the same ones each time. Values are changed in place without
autograd's knowledge, as hardware would.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transom_cli.heartbeat import paths

VARIABLE = "TRANSOM_INJECT"
ACTIVATION, INPUT_GRADIENT, WEIGHT_GRADIENT = "activation", "input_gradient", "weight_gradient"  # of a product
GRADIENT, REDUCED, MOMENT, WEIGHT = "gradient", "reduced", "moment", "weight"  # of a parameter
MODULES = (ACTIVATION, INPUT_GRADIENT, WEIGHT_GRADIENT)
PLACES = (*MODULES, GRADIENT, REDUCED, MOMENT, WEIGHT)
SHAPES = ("element", "row", "stuck")
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_VIEWS = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0")


@dataclass(frozen=True)
class Fault:
    """What goes wrong, where and when.

    Args:
        where: one of `PLACES`. "gradient" is a rank's own one, before the reduction; "reduced" is the result of the
            reduction as this rank received it, like a message that was damaged on its way.
        name: text in the name of the module, or of the parameter; the first one that contains it is hit.
        bit: is flipped, counted from the lowest; or `value`: "inf", "nan" or "near_inf" is written.
        shape: one element, a row (along the last dimension), or one element whose bit is stuck at 1.
        step: the first optimizer step, counted from 1. steps: for how many; 0: without end.
        chance: that it happens in a step. one_in: only for every nth pattern of data, by a hash of the tensor; 0: any.
        rank, node, launch: where it happens; None and "": everywhere.
    """

    where: str
    name: str = ""
    bit: int | None = None
    value: str = ""
    shape: str = "element"
    step: int = 1
    steps: int = 1
    chance: float = 1.0
    one_in: int = 0
    rank: int | None = None
    node: str = ""
    launch: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.where not in PLACES or self.shape not in SHAPES:
            raise ValueError(f"where={self.where!r} is none of {PLACES}, or shape={self.shape!r} none of {SHAPES}")
        if (self.bit is None) == (self.value not in ("inf", "nan", "near_inf")):
            raise ValueError("a fault has either a bit or a value: inf, nan, near_inf")

    @property
    def here(self) -> bool:
        """Whether it concerns this process."""
        return (
            self.rank in (None, paths.own_rank())
            and self.node in ("", os.environ.get("SLURMD_NODENAME", ""))
            and self.launch in (None, paths.own_launch())
        )


def damage(tensor: Tensor, fault: Fault, step: int) -> tuple[int, ...] | None:
    """Damage the tensor in place. Return the element's index (the row's for a row); None if it is not hit this time."""
    data = tensor.data
    draw = random.Random(f"{fault.seed}/{fault.where}/{fault.name}/{'' if fault.shape == 'stuck' else step}")
    bits = data.view(_BITS[data.element_size()])
    if draw.random() >= fault.chance or (fault.one_in and int(bits.sum(dtype=torch.int64)) % fault.one_in):
        return None
    index = tuple(draw.randrange(size) for size in data.shape)
    index = index[:-1] if fault.shape == "row" else index
    if fault.bit is not None:
        width = 8 * data.element_size()
        mask = 1 << fault.bit if fault.bit < width - 1 else -(1 << fault.bit)
        bits[index] = bits[index] | mask if fault.shape == "stuck" else bits[index] ^ mask
    else:
        largest = torch.finfo(data.dtype).max
        data[index] = {"inf": float("inf"), "nan": float("nan"), "near_inf": largest / 2}[fault.value]
    return index


class Injector:
    """Injects faults into one training. done: (step, name, index) of what was damaged."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, faults: Sequence[Fault] = (), *, step: int = 0
    ) -> None:
        self.step = step  # finished ones
        self.done: list[tuple[int, str, tuple[int, ...]]] = []
        self._model, self._optimizer = model, optimizer
        self._hooks: list[Any] = []
        self._file = Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None
        self._seen = -1
        self._install(faults)
        self._read()
        self._own = [
            optimizer.register_step_pre_hook(lambda *_: self._each((REDUCED, MOMENT))),
            optimizer.register_step_post_hook(lambda *_: self._stepped()),
        ]

    def close(self) -> None:
        for hook in (*self._hooks, *self._own):
            hook.remove()

    def _read(self) -> None:
        if self._file is None or not self._file.exists() or self._file.stat().st_mtime_ns == self._seen:
            return
        self._seen = self._file.stat().st_mtime_ns
        self._install([Fault(**one) for one in json.loads(self._file.read_text())])

    def _install(self, faults: Sequence[Fault]) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._parameters = [], []
        for fault in faults:
            if not fault.here:
                continue
            if fault.where in MODULES:
                modules = [(n, m) for n, m in self._model.named_modules() if isinstance(m, nn.Linear)]
                name, module = next((n, m) for n, m in modules if fault.name in n)
                self._hooks.append(module.register_forward_hook(self._forward(fault, name)))
                continue
            name, parameter = next((n, p) for n, p in self._model.named_parameters() if fault.name in n)
            self._parameters.append((fault, name, parameter))
            if fault.where == GRADIENT:
                self._hooks.append(parameter.register_hook(lambda g, f=fault, n=name: self._hit(g, f, n)))

    def _forward(self, fault: Fault, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            if fault.where == ACTIVATION:
                self._hit(output, fault, name)
            elif output.requires_grad:
                node = output.grad_fn
                while node is not None and node.name() in _VIEWS:
                    node = node.next_functions[0][0]
                which = -2 if fault.where == INPUT_GRADIENT else -1  # of (bias,) input, weight
                assert node is not None
                node.register_hook(
                    lambda gradients, _: None if gradients[which] is None else self._hit(gradients[which], fault, name)
                )

        return hook

    def _hit(self, tensor: Tensor, fault: Fault, name: str) -> None:
        now = self.step + 1
        if now >= fault.step and (not fault.steps or now < fault.step + fault.steps):
            index = damage(tensor, fault, now)
            if index is not None:
                self.done.append((now, name, index))

    def _each(self, places: tuple[str, ...]) -> None:
        for fault, name, parameter in self._parameters:
            if fault.where not in places:
                continue
            moments = self._optimizer.state.get(parameter, {})
            tensor = {REDUCED: parameter.grad, MOMENT: moments.get("exp_avg_sq"), WEIGHT: parameter}[fault.where]
            if tensor is not None:
                self._hit(tensor, fault, name)

    def _stepped(self) -> None:
        self._each((WEIGHT,))
        self.step += 1
        self._read()
