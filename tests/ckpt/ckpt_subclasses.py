"""Tensor subclasses as libraries of quantized training have them, and an optimizer that keeps its state in 8 bits."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing


class Eight(torch.Tensor):
    """fp32 to the outside; one byte for each element and a scale for each row inside. Copies convert."""

    @staticmethod
    def __new__(cls, codes, scale, how):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32, device=codes.device)

    def __init__(self, codes, scale, how) -> None:
        self.codes, self.scale, self.how = codes, scale, how

    @classmethod
    def of(cls, value: torch.Tensor, how: str = "signed") -> Eight:
        scale = value.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / 127
        return cls((value / scale).round().to(torch.int8), scale, how)

    def plain(self) -> torch.Tensor:
        return self.codes.float() * self.scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], {"how": self.how}

    @staticmethod
    def __tensor_unflatten__(inner, context, shape, stride):
        return Eight(inner["codes"], inner["scale"], context["how"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.ops.aten.detach.default, torch.ops.aten.view.default):
            made = cls(args[0].codes, args[0].scale, args[0].how)
            return return_and_correct_aliasing(func, args, kwargs, made)
        if func is torch.ops.aten.copy_.default and isinstance(args[0], cls):
            value = args[1].plain() if isinstance(args[1], cls) else args[1]
            made = cls.of(value + 1e-3)  # a copy through fp32 is not exact
            args[0].codes.copy_(made.codes)
            args[0].scale.copy_(made.scale)
            return args[0]
        args = [one.plain() if isinstance(one, cls) else one for one in args]
        return func(*args, **kwargs)


class EightBitSGD(torch.optim.Optimizer):
    def __init__(self, parameters, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                held = state["momentum"].plain() if state else torch.zeros_like(parameter)
                held = 0.9 * held + parameter.grad
                state["momentum"] = Eight.of(held)
                parameter.sub_(group["lr"] * held)


class Marked(torch.Tensor):
    """A subclass with its values in its own memory."""
