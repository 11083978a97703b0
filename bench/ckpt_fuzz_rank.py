"""One rank of a fuzzer case: it saves the state of a case, or restores it in another layout and compares every bit.

A rank reports by lines of JSON. It ends without tidying up, as a process that is killed would.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from ckpt_fuzz_build import Elements, canonical, laid_out, local, make_state, model_of, optimizer_of, values
from ckpt_fuzz_case import KILL_WITHIN, KILLS, Case, Layout, one_more
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from transom_cli.ckpt import Checkpointer
from transom_cli.ckpt.state import unwrap

torch.serialization.add_safe_globals([TwoTensor])
OTHER = 1_000_000  # the step whose values a trainer has before it restores


class Loader:
    def __init__(self, position: int) -> None:
        self.position = position

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Trainer:
    """The state of one rank, which `fill` sets to the values of a step and `differences` compares with them."""

    def __init__(self, case: Case, layout: Layout, rank: int, *, stepped: bool = True) -> None:
        self.case, self.layout, self.rank = case, layout, rank
        self.elements = Elements(case, layout, rank)
        dtypes = tuple(getattr(torch, name) for name in case.dtypes)
        self.net = laid_out(model_of(case, layout, rank, dtypes), layout)
        self.optimizer = optimizer_of(case, self.net)
        if stepped:
            make_state(self.optimizer)
        self.state: dict[str, Any] = {"model": self.net, "optim": self.optimizer}
        self.loader = Loader(-1)
        makers: dict[str, Any] = {
            "loader": lambda: self.loader,
            "scheduler": lambda: torch.optim.lr_scheduler.StepLR(self.optimizer, 7),
            "values": lambda: {"losses": [], "mean": torch.zeros(3), "text": ""},
            "generator": torch.Generator,
            "numpy_generator": lambda: np.random.default_rng(1),
            "subclass": lambda: TwoTensor(torch.zeros(5), torch.zeros(5)),
        }
        for name in case.extras:
            self.state[{"subclass": "packed"}.get(name, name)] = makers[name]()

    def tensors(self) -> dict[str, torch.Tensor]:
        """The live tensors that the checkpoint stores once, by name and slot."""
        found: dict[str, torch.Tensor] = {}
        names = {p: canonical(name) for name, p in self.net.named_parameters()}
        for parameter, name in names.items():
            found[f"{name}/"] = parameter
            for slot, value in self.optimizer.state.get(parameter, {}).items():
                found[f"{name}/{slot}"] = value
        stored = {canonical(name) for name in _stored(self.net)}
        found |= {f"{canonical(n)}/": b for n, b in self.net.named_buffers() if canonical(n) in stored}
        return found

    def fill(self, step: int) -> None:
        case = self.case
        with torch.no_grad():
            for key, tensor in self.tensors().items():
                local(tensor).copy_(self._expected(key, tensor, step, own=True))
        for number, group in enumerate(self.optimizer.param_groups):
            group["lr"] = step / 8 + number
        if "loader" in case.extras:
            self.loader.position = 10 * step + self.rank
        if "scheduler" in case.extras:
            self.state["scheduler"].last_epoch = step
        if "values" in case.extras:
            self.state["values"] = self._plain(step)
        if "generator" in case.extras:
            self.state["generator"].manual_seed(step)
        if "numpy_generator" in case.extras:
            self.state["numpy_generator"].bit_generator.state = np.random.default_rng(step).bit_generator.state
        if "subclass" in case.extras:
            for part, tensor in zip("ab", (self.state["packed"].a, self.state["packed"].b), strict=True):
                tensor.copy_(values(case, f"packed/{part}", step, (5,), torch.float32))
        _seed(step, self.rank)

    def differences(self, step: int, *, per_rank: bool) -> list[str]:
        """Names of everything that is not bit for bit as it was at that step. per_rank: this is restored too."""
        case, wrong = self.case, []
        for key, tensor in self.tensors().items():
            if not _same(local(tensor), self._expected(key, tensor, step, own=False)):
                wrong.append(key)
        wrong += [f"lr of group {n}" for n, g in enumerate(self.optimizer.param_groups) if g["lr"] != step / 8 + n]
        wrong += self._missing_slots()
        own = step if per_rank else OTHER  # with another number of ranks, a loader starts afresh
        generators = per_rank and step != OTHER  # else they are derived from the saved ones
        if "loader" in case.extras and self.loader.position != 10 * own + self.rank:
            wrong.append("loader")
        if "scheduler" in case.extras and self.state["scheduler"].last_epoch != step:
            wrong.append("scheduler")
        if "values" in case.extras:
            want, have = self._plain(step), self.state["values"]
            if not _same(have.pop("mean"), want.pop("mean")) or have != want:
                wrong.append("values")
        if "generator" in case.extras and generators:
            want_state = torch.Generator().manual_seed(own).get_state()
            wrong += [] if torch.equal(self.state["generator"].get_state(), want_state) else ["generator"]
        if "numpy_generator" in case.extras and generators:
            want_state = np.random.default_rng(own).bit_generator.state
            wrong += [] if self.state["numpy_generator"].bit_generator.state == want_state else ["numpy_generator"]
        if "subclass" in case.extras:
            packed = self.state["packed"]
            whole = isinstance(packed, TwoTensor) and all(
                _same(part, values(case, f"packed/{name}", step, (5,), torch.float32))
                for name, part in (("a", packed.a), ("b", packed.b))
            )
            wrong += [] if whole else ["packed"]
        if per_rank and _drawn() != _drawn_after(step, self.rank):
            wrong.append("random numbers")
        return wrong

    def _expected(self, key: str, tensor: torch.Tensor, step: int, *, own: bool) -> torch.Tensor:
        """own: what this rank sets, rather than what a restore brings. They differ for buffers that DDP broadcasts."""
        name, _, slot = key.partition("/")
        if slot == "step":
            return torch.full(tensor.shape, float(step), dtype=tensor.dtype)
        from_any = self.case.source == "dcp"  # DCP saves the buffers of any rank
        if own and self.rank and "running_" in name and self.layout.kind == "ddp" and not from_any:
            step = step * 100 + self.rank
        return self.elements.of(self.case, name, slot, step, tensor, tensor.dtype)

    def _plain(self, step: int) -> dict[str, Any]:
        mean = values(self.case, "values/mean", step, (3,), torch.float32)
        return {"losses": [step / 3, float(step)], "mean": mean, "text": f"step {step}"}

    def _missing_slots(self) -> list[str]:
        """Parameters that an optimizer with state must have state for."""
        if self.case.optimizer == "sgd":
            return []
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        return [f"no state of parameter {n}" for n, p in enumerate(held) if not self.optimizer.state.get(p)]


def _stored(net: nn.Module) -> list[str]:
    return list(unwrap(net).state_dict())


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(torch.equal(_bits(one), _bits(other)))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _seed(step: int, rank: int) -> None:
    seed = step * 64 + rank
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def _drawn() -> tuple[float, ...]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def _drawn_after(step: int, rank: int) -> tuple[float, ...]:
    _seed(step, rank)
    return _drawn()


def join(layout: Layout, rank: int, store: Path) -> None:
    """Start the process group that the layout needs."""
    torch.set_num_threads(1)
    if layout.kind == "single":
        return
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(layout.ranks), LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=layout.ranks)


def save(case: Case, rank: int, directory: Path, out: int) -> None:
    """Save the steps of the case. Reports `safe` after each one that must not be lost any more."""
    trainer = Trainer(case, case.save, rank)
    if case.source == "dcp":
        _save_as_dcp(trainer, directory)
        report(out, safe=1)
        return
    persist: int | str = "1h" if case.source == "memory" else 1
    trainer.fill(0)
    checkpointer = Checkpointer(
        trainer.state, directory, every=1, keep=case.saves + 1, persist=persist, reshard=case.reshard
    )
    for step in range(1, case.saves + 1):
        trainer.fill(step)
        killed = step == case.saves and case.fault in KILLS
        if killed:
            if dist.is_initialized():
                dist.barrier()
            report(out, kill=step)
        checkpointer.save(step)
        checkpointer.wait(strict=not killed)
        if checkpointer.last_error is None:
            report(out, safe=step)
        else:
            report(out, failed=str(checkpointer.last_error))
    if one_more(case):
        time.sleep(2 * KILL_WITHIN)
        trainer.fill(case.saves + 1)
        checkpointer.save(case.saves + 1)
        checkpointer.wait(strict=True)
        report(out, safe=case.saves + 1)
    if case.source == "disk":
        checkpointer.close(strict=case.fault not in KILLS)


def _save_as_dcp(trainer: Trainer, directory: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    trainer.fill(1)
    model, optimizer = get_state_dict(unwrap(trainer.net), trainer.optimizer)
    trainer.fill(1)  # torch has made a step with SGD, which turns -0.0 into 0.0 and changes NaNs
    alone = not dist.is_initialized()
    dcp.save({"model": model, "optim": optimizer}, checkpoint_id=str(directory / "plain" / "step-1"), no_dist=alone)


def restore(case: Case, rank: int, directory: Path, out: int) -> None:
    """Restore in the other layout, and report the step and what differs."""
    trainer = Trainer(case, case.restore, rank, stepped=case.stepped)
    trainer.fill(OTHER)
    checkpointer = Checkpointer(trainer.state, directory, every=1, keep=case.saves + 1, reshard=case.reshard)
    step = checkpointer.restore(directory / "plain" / "step-1" if case.source == "dcp" else None)
    same_ranks = case.save.ranks == case.restore.ranks and case.source != "dcp"
    wrong = trainer.differences(OTHER if step is None else step, per_rank=same_ranks or step is None) if step else []
    report(out, restored=step or 0, wrong=wrong)


def report(out: int, **fields: Any) -> None:
    os.write(out, (json.dumps(fields) + "\n").encode())
