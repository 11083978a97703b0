"""Gradients that do not depend on the number of ranks, bit for bit. See `VirtualRanks`."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from transom_cli.elastic.batches import GlobalBatches
from transom_cli.errors import UsageError

PIECE = 4 << 20  # elements that are sent at a time: the next rank adds to one while this rank sends the next


class VirtualRanks:
    """Data-parallel training whose result is the same with any number of ranks, bit for bit.

        virtual = VirtualRanks(model, batches, count=4)
        for step in range(start, steps):
            optimizer.zero_grad()
            loss = virtual.backward(lambda samples: loss_function(model, dataset, samples))
            optimizer.step()

    A global batch is divided among `count` virtual ranks; each rank computes some of them. Each has random numbers of
    its own, and its gradient is computed by itself. The gradients of all are added in their order: each rank adds its
    own to the sum of the ranks before it. So a training that continues with fewer or more ranks ends with the same
    bits, on processors and library versions of one kind, if its operations are deterministic.

    The module is a plain one, the same on every rank (no DDP or FSDP). What it keeps from batch to batch, such as batch
    norm statistics, would depend on the number of ranks, so it may have no such buffers.

    A rank keeps the gradients of all its virtual ranks until they are added: count / ranks times the parameters.

    Args:
        batches: says which samples.
        count: number of virtual ranks. At most this many ranks have work; best a multiple of each number used.
        seed: of the random numbers, with step and virtual rank.

    Raises:
        UsageError: count is below 1 or below the number of ranks, or the module has buffers that training changes.
    """

    def __init__(self, module: torch.nn.Module, batches: GlobalBatches, count: int, *, seed: int = 0) -> None:
        if count < batches.world:
            raise UsageError(
                f"count={count} virtual ranks are fewer than the {batches.world} ranks", "some would have no work",
                "give the largest number of ranks that this training will ever have",
            )  # fmt: skip
        changing = (torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.instancenorm._InstanceNorm)
        for name, part in module.named_modules():
            if isinstance(part, changing) and part.track_running_stats:
                raise UsageError(
                    f"{name or 'the module'} keeps batch statistics, which depend on the number of ranks", "",
                    "use a normalisation without them (LayerNorm, GroupNorm), or track_running_stats=False",
                )  # fmt: skip
        self._module, self._batches, self.count, self._seed = module, batches, count, seed
        self._parameters = [one for one in module.parameters() if one.requires_grad]
        if batches.world > 1:
            for one in module.state_dict().values():
                dist.broadcast(one, src=0)

    @property
    def mine(self) -> range:
        """The virtual ranks that this rank computes."""
        rank, world = self._batches.rank, self._batches.world
        return range(self.count * rank // world, self.count * (rank + 1) // world)

    def backward(self, compute: Callable[[list[int]], Tensor]) -> Tensor:
        """Take the next global batch, and set every parameter's gradient to that of its mean loss.

        Args:
            compute: the mean loss of some samples, of at most `micro_batch`; called under the virtual rank's own random
                numbers.

        Returns:
            The mean loss over the global batch, the same on all ranks.
        """
        batches = self._batches
        step, start = divmod(batches.position, batches.global_batch)
        sums: list[list[Tensor]] = []
        losses: list[Tensor] = []
        for virtual in self.mine:
            samples = batches.share(virtual, self.count)
            with _random_numbers(f"{self._seed} {step} {start} {virtual}"):
                gradients, loss = self._one(samples, compute)
            sums.append(gradients)
            losses.append(loss)
        batches.position += batches.global_batch
        loss = self._added([[one] for one in losses])[0]
        for parameter, gradient in zip(self._parameters, self._added(sums), strict=True):
            parameter.grad = gradient
        return loss

    def _one(self, samples: list[int], compute: Callable[[list[int]], Tensor]) -> tuple[list[Tensor], Tensor]:
        """The gradient of the samples' share in the mean loss of the global batch, and that share."""
        for one in self._parameters:
            one.grad = None
        size = self._batches.micro_batch
        share = torch.zeros((), dtype=torch.float64, device=self._parameters[0].device)
        for first in range(0, len(samples), size):
            chosen = samples[first : first + size]
            loss = compute(chosen) * (len(chosen) / self._batches.global_batch)
            loss.backward()  # type: ignore[no-untyped-call]
            share += loss.detach()
        # A parameter that no sample used has a gradient of zero: whether one did must not depend on who computes it.
        return [torch.zeros_like(one) if one.grad is None else one.grad for one in self._parameters], share

    def _added(self, of_virtual: list[list[Tensor]]) -> list[Tensor]:
        """Add the tensors of all virtual ranks in their order, and give every rank the sums."""
        found = list(of_virtual[0])
        for dtype in dict.fromkeys(one.dtype for one in found):
            which = [number for number, one in enumerate(found) if one.dtype == dtype]
            total = self._chained([torch.cat([one[number].reshape(-1) for number in which]) for one in of_virtual])
            sizes = [found[number].numel() for number in which]
            for number, part in zip(which, total.split(sizes), strict=True):
                found[number] = part.view_as(found[number])
        return found

    def _chained(self, own: list[Tensor]) -> Tensor:
        rank, world = self._batches.rank, self._batches.world
        total = torch.empty_like(own[0]) if rank else own.pop(0)
        for first in range(0, total.numel(), PIECE):
            piece = total[first : first + PIECE]
            if rank:
                dist.recv(piece, src=rank - 1)
            for one in own:
                piece += one[first : first + PIECE]
            if rank < world - 1:
                dist.send(piece, dst=rank + 1)
        if world > 1:
            dist.broadcast(total, src=world - 1)
        return total


@contextmanager
def _random_numbers(key: str) -> Iterator[None]:
    """torch's random numbers of one virtual rank in one step; those of the process come back afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1)
        yield
