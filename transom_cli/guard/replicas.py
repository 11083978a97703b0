"""Do all data-parallel replicas hold the same bits? Compared after each step, a part of the state at a time.

Each step takes the digests of some tensors (`ckpt.digest`) and reduces them to one minimum and maximum over the ranks:
16 bytes, in the background, read a step later. If both differ, all ranks exchange the digests, and those that differ
from the majority are named. In `cycle` steps, every parameter and every moment has its turn.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from transom_cli.ckpt.digest import Part, digests
from transom_cli.ckpt.save.replicas import outside_majority

_MASK = (1 << 62) - 1  # so that the negative fits too


Equal = tuple[int, int, int]  # step, turn and digest of a comparison that found no difference


@dataclass(frozen=True)
class Difference:
    """Replicas differ after `step`. odd: the ranks outside the majority, or all if there is none; tensors: by name."""

    step: int
    turn: int
    odd: tuple[int, ...]
    majority: bool
    tensors: tuple[str, ...]
    digests: tuple[int, ...]  # of each rank, over the tensors of this step
    equal: tuple[Equal, ...]  # the comparisons before it


class Replicas:
    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, group: Any, cycle: int, step: int
    ) -> None:
        self._model, self._optimizer, self._group, self._cycle = model, optimizer, group, cycle
        self.excluded: set[str] = set()  # differed at their first comparison, so they are no replicas
        self._verified: dict[int, int] = dict.fromkeys(range(cycle), step)  # turn -> newest step found equal
        self._equal: deque[Equal] = deque(maxlen=cycle)
        self._known: set[str] = set()  # tensors that were equal once
        self._names: list[str] = []
        self._values: list[int] = []
        self._step, self._turn, self._pair = -1, 0, torch.zeros(2, dtype=torch.int64)
        self._work: Any = None

    @staticmethod
    def comparable(model: torch.nn.Module, group: Any) -> str:
        """Return why there is nothing to compare; "" if there is."""
        if not dist.is_initialized() or dist.get_world_size(group) < 2:
            return "one rank has no replica"
        if any(hasattr(p, "placements") and any(x.is_shard() for x in p.placements) for p in model.parameters()):
            return "the parameters are sharded"
        return ""

    @property
    def clean(self) -> int:
        """The newest step up to which all tensors were proven equal."""
        return min(self._verified.values())

    def digest(self, turn: int) -> int:
        """Digest the tensors whose turn it is."""
        chosen = [(name, tensor) for name, tensor in self._tensors()[turn :: self._cycle] if name not in self.excluded]
        self._names = [name for name, _ in chosen]
        self._values = digests([Part(t, tuple(t.shape), (0,) * t.dim()) for _, t in chosen])
        return sum(self._values) & _MASK

    def begin(self, step: int, turn: int) -> int:
        """Start to compare the tensors whose turn it is. Return the sum of their digests."""
        total = self.digest(turn)
        device = next(self._model.parameters()).device
        self._step, self._turn, self._pair = step, turn, torch.tensor([total, -total], device=device)
        self._work = dist.all_reduce(self._pair, dist.ReduceOp.MAX, self._group, async_op=True)
        return total

    def finish(self) -> Difference | None:
        """Read the comparison that `begin` started."""
        if self._work is None:
            return None
        self._work.wait()
        self._work = None
        most, least = self._pair.tolist()
        if most == -least:
            self._known.update(self._names)
            self._verified[self._turn] = self._step
            self._equal.append((self._step, self._turn, most))
            return None
        return self._differ()

    def _differ(self) -> Difference | None:
        own = torch.tensor([v & _MASK for v in self._values], device=self._pair.device)
        world = dist.get_world_size(self._group)
        gathered = [torch.zeros_like(own) for _ in range(world)]
        dist.all_gather(gathered, own, self._group)
        rows = [tuple(one.tolist()) for one in gathered]
        differ = [i for i, _ in enumerate(self._names) if len({row[i] for row in rows}) > 1]
        new = {self._names[i] for i in differ} - self._known
        self.excluded |= new
        differ = [i for i in differ if self._names[i] not in new]
        if not differ:
            return None
        odd, majority = outside_majority([tuple(row[i] for i in differ) for row in rows])
        ranks = dist.get_process_group_ranks(self._group) if self._group is not None else list(range(world))
        totals = tuple(sum(row) & _MASK for row in rows)
        names = tuple(self._names[i] for i in differ)
        return Difference(
            self._step, self._turn, tuple(ranks[i] for i in odd), majority, names, totals, tuple(self._equal)
        )

    def _tensors(self) -> list[tuple[str, Tensor]]:
        """Parameters and moments, in an order that all ranks share."""
        found = []
        for name, parameter in self._model.named_parameters():
            found.append((name, parameter.detach()))
            for key, value in sorted(self._optimizer.state.get(parameter, {}).items()):
                if isinstance(value, Tensor) and value.dim():
                    found.append((f"{name} ({key})", value))
        return found
