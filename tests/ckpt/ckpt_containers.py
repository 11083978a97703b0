"""Stand-ins for torchtitan's containers, in plain PyTorch: they hand out, and take, what torchtitan's do.

`ModelWrapper` is a Stateful that keeps the model's state (DTensors under FSDP2). `OptimizersContainer` is an Optimizer
over several optimizers, whose state is flat: `<parameter>.<moment>` and `param_groups.<parameter>.<option>`, with no
"state" and no list of groups.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful


class ModelWrapper(Stateful):
    def __init__(self, parts: list[nn.Module]) -> None:
        self.parts = parts
        self.cached = self._read()

    def _read(self):
        return {k: v for part in map(get_model_state_dict, self.parts) for k, v in part.items()}

    def state_dict(self):
        return self.cached

    def load_state_dict(self, state_dict) -> None:
        load = partial(set_model_state_dict, model_state_dict=state_dict, options=StateDictOptions(strict=False))
        list(map(load, self.parts))
        self.cached = self._read()


class OptimizersContainer(torch.optim.Optimizer, Stateful):
    def __init__(self, parts: list[nn.Module], **options) -> None:
        self.parts = parts
        self.optimizers = [torch.optim.AdamW(part.parameters(), **options) for part in parts]
        super().__init__([p for part in parts for p in part.parameters()], options)

    def step(self, *args, **kwargs) -> None:
        for optimizer in self.optimizers:
            optimizer.step(*args, **kwargs)

    def zero_grad(self, *args, **kwargs) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(*args, **kwargs)

    def state_dict(self):
        read = partial(get_optimizer_state_dict, options=StateDictOptions(flatten_optimizer_state_dict=True))
        return {k: v for state in map(read, self.parts, self.optimizers) for k, v in state.items()}

    def load_state_dict(self, state_dict) -> None:
        flat = StateDictOptions(flatten_optimizer_state_dict=True)
        list(
            map(
                partial(set_optimizer_state_dict, optim_state_dict=state_dict, options=flat),
                self.parts,
                self.optimizers,
            )
        )
