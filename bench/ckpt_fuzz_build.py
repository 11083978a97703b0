"""Models, optimizers and other state of a fuzzer case, in any layout, with values that are known for every element.

Every tensor has random bits that depend on its name, the step and the case alone. To put them into a sharded tensor and
to compare them, each rank must know which elements it holds. A second model, laid out in the same way, tells: its
parameters hold their own element numbers. So nothing that is tested decides what is expected.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch
import xxhash
from ckpt_fuzz_case import Case, Layout
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

_WRAPPERS = re.compile(r"(_orig_mod|_checkpoint_wrapped_module|module)\.")
VOCABULARY = 7
_SAMPLE = (3, 2)


class Block(nn.Module):
    def __init__(self, case: Case, number: int) -> None:
        super().__init__()
        width = case.width
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=number % 2 == 0)
        if case.family == "norms":
            self.norm: nn.Module = nn.BatchNorm1d(width)
        else:
            self.norm = nn.LayerNorm(width)
        if case.family == "experts":
            self.experts = nn.Parameter(torch.zeros(3, width, 2))
        if case.family == "frozen":
            self.up.weight.requires_grad_(False)
            self.register_buffer("scale", torch.zeros(()))
            self.register_buffer("mask", torch.zeros(width, dtype=torch.int64))
            self.register_buffer("scratch", torch.zeros(2), persistent=False)


class Net(nn.Module):
    """blocks: the numbers of those that this rank has."""

    def __init__(self, case: Case, blocks: list[int], *, first: bool, last: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({str(number): Block(case, number) for number in blocks})
        if first:
            self.embed = nn.Embedding(VOCABULARY, case.width)
        if last:
            self.head = nn.Linear(case.width, VOCABULARY, bias=False)
        if case.family == "tied":
            self.head.weight = self.embed.weight


def model_of(case: Case, layout: Layout, rank: int, dtypes: tuple[torch.dtype, ...]) -> nn.Module:
    """Build the model in that layout, with zeros."""
    own = list(range(case.blocks))
    if layout.kind == "pipeline":
        own = [number for number in own if number * layout.ranks // case.blocks == rank]
    whole = layout.kind != "pipeline"
    net = Net(case, own, first=whole or rank == 0, last=whole or rank == layout.ranks - 1)
    for place, parameter in enumerate(net.parameters()):
        parameter.data = parameter.data.to(dtypes[place % len(dtypes)])
    return net


def laid_out(net: nn.Module, layout: Layout) -> nn.Module:
    """Wrap and shard."""
    blocks = net.blocks
    assert isinstance(blocks, nn.ModuleDict)
    if layout.kind in ("tp", "fsdp_tp"):
        _tensor_parallel(net, layout)
    if layout.recompute:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        for name, block in list(blocks.items()):
            blocks[name] = checkpoint_wrapper(block)
    if layout.compiled == "blocks":
        for name, block in list(blocks.items()):
            blocks[name] = torch.compile(block)  # type: ignore[assignment]
    if layout.kind in ("fsdp2", "hsdp", "fsdp_tp"):
        _sharded(net, layout)
    elif layout.kind == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        net = FullyShardedDataParallel(net, use_orig_params=True)
    elif layout.kind == "ddp":
        net = nn.parallel.DistributedDataParallel(net)
    return torch.compile(net) if layout.compiled == "whole" else net  # type: ignore[return-value]


def _tensor_parallel(net: nn.Module, layout: Layout) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = _mesh(layout)
    mesh = mesh["tp"] if layout.kind == "fsdp_tp" else mesh
    for block in net.blocks.values():  # type: ignore[union-attr,operator]
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def _sharded(net: nn.Module, layout: Layout) -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = _mesh(layout)
    mesh = mesh["dp"] if layout.kind == "fsdp_tp" else mesh
    for block in net.blocks.values():  # type: ignore[union-attr,operator]
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)


def _mesh(layout: Layout) -> Any:
    return _mesh_of(layout.kind, layout.ranks)


@functools.cache
def _mesh_of(kind: str, ranks: int) -> Any:
    if kind == "hsdp":
        return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    if kind == "fsdp_tp":
        return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return init_device_mesh("cpu", (ranks,))


def canonical(name: str) -> str:
    """The name of a parameter without the names that wrappers add."""
    return _WRAPPERS.sub("", name)


def local(tensor: torch.Tensor) -> torch.Tensor:
    found = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return found.detach()


class Elements:
    """Which elements of each global tensor this rank holds, by canonical name."""

    def __init__(self, case: Case, layout: Layout, rank: int) -> None:
        net = model_of(case, layout, rank, (torch.float64,))
        self._shapes = {name: tuple(p.shape) for name, p in net.named_parameters()}
        for parameter in net.parameters():
            parameter.data = torch.arange(parameter.numel(), dtype=torch.float64).reshape(parameter.shape)
        sharded = layout.kind in ("fsdp2", "tp", "hsdp", "fsdp_tp")
        wrapped = laid_out(net, Layout(layout.kind, layout.ranks)) if sharded else net
        self._own = {canonical(name): local(p).to(torch.int64) for name, p in wrapped.named_parameters()}

    def of(self, case: Case, name: str, slot: str, step: int, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The expected local part of a tensor. slot: of an optimizer's state, or "" for the parameter itself."""
        if tuple(like.shape) == self._shapes.get(name):
            return values(case, f"{name}/{slot}", step, like.shape, dtype).reshape(-1)[self._own[name]]
        return values(case, f"{name}/{slot}", step, like.shape, dtype)


def values(case: Case, name: str, step: int, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """Random bits of a whole tensor: NaNs with payloads, infinities and denormals among them."""
    count = torch.Size(shape).numel()
    bits = torch.Generator().manual_seed(xxhash.xxh3_64_intdigest(f"{case.seed}/{name}/{step}".encode()) >> 1)
    raw = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=bits)
    return raw.view(dtype).reshape(shape)


def optimizer_of(case: Case, net: nn.Module) -> torch.optim.Optimizer:
    """An optimizer. It has no state yet, but for Adagrad, which makes it at once."""
    held = [p for p in net.parameters() if p.requires_grad]
    if case.optimizer == "groups":
        some, rest = [p for p in held if p.ndim > 1], [p for p in held if p.ndim <= 1]
        groups = [{"params": rest, "weight_decay": 0.0}, {"params": some}]
        return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.5, foreach=False)
    kinds: dict[str, Any] = {
        "sgd": lambda: torch.optim.SGD(held, lr=0.5, foreach=False),
        "momentum": lambda: torch.optim.SGD(held, lr=0.5, momentum=0.9, foreach=False),
        "adam": lambda: torch.optim.Adam(held, lr=0.5, foreach=False),
        "amsgrad": lambda: torch.optim.Adam(held, lr=0.5, amsgrad=True, foreach=False),
        "rmsprop": lambda: torch.optim.RMSprop(held, lr=0.5, momentum=0.1, centered=True, foreach=False),
        "adagrad": lambda: torch.optim.Adagrad(held, lr=0.5, foreach=False),
    }
    made: torch.optim.Optimizer = kinds[case.optimizer]()
    return made


def make_state(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter the state that the optimizer makes in a step.

    Torch makes it for a small plain tensor of each type. A step of sharded parameters would take most of a case.
    """
    slots: dict[torch.dtype, dict[str, Any]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.dtype not in slots:
                slots[parameter.dtype] = _slots(type(optimizer), group, parameter.dtype)
            for slot, value in slots[parameter.dtype].items():
                made = value.clone() if isinstance(value, torch.Tensor) else value
                optimizer.state[parameter][slot] = _alike(parameter) if _is_sample(value) else made


def _slots(kind: type[torch.optim.Optimizer], group: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    sample = nn.Parameter(torch.zeros(_SAMPLE, dtype=dtype))
    sample.grad = torch.zeros_like(sample)
    made = kind([{**group, "params": [sample]}])
    made.step()
    return dict(made.state[sample])


def _is_sample(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and tuple(value.shape) == _SAMPLE


def _alike(parameter: nn.Parameter) -> torch.Tensor:
    if isinstance(parameter, DTensor):
        return DTensor(torch.zeros_like(parameter._local_tensor), parameter._spec, requires_grad=False)
    return torch.zeros_like(parameter, requires_grad=False)
