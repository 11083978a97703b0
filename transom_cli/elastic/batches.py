"""Which samples each rank takes in each step, for any number of ranks. See `GlobalBatches`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from transom_cli.errors import UsageError


@dataclass(frozen=True)
class MicroBatch:
    """One forward and backward pass of a rank."""

    samples: tuple[int, ...]  # indices into the dataset
    # what to multiply the mean loss of these samples with. 0: the rank has no samples for this pass, which it makes
    # because others do (`samples` are then some that another rank has).
    weight: float
    last: bool  # whether it is the rank's last one in this step, after which gradients are averaged over the ranks
    data: Any = None  # what the loader made of the samples


class GlobalBatches:
    """A fixed order of all samples, from which each step takes the next `global_batch`, with any number of ranks.

        batches = GlobalBatches(len(dataset), global_batch=256, micro_batch=8)
        ck = Checkpointer({"model": model, "optim": optimizer, "data": batches}, every=100)
        start = ck.restore() or 0
        for step in range(start, steps):
            for micro in batches.step():
                loss = loss_function(model, dataset, micro.samples) * micro.weight
                loss.backward()
            optimizer.step()

    The position is one number for the whole run: the samples taken so far. So a training may continue with another
    number of ranks: each sample of an epoch is used once, in the same global order, and the gradient is that of the
    same global batch. Batches may span two epochs.

    All ranks make the same number of passes in a step, as sharded models need. `weight` makes gradients that are
    averaged over the ranks (DDP, FSDP2) the mean over the global batch. With DDP, use `no_sync()` for all but the last
    pass.

    Args:
        dataset_size: number of samples.
        global_batch: samples of a step, over all ranks.
        micro_batch: most samples of one pass of a rank.
        seed: of the order. Each epoch has its own.
        shuffle: False: the dataset's own order.
        rank, world: default: those of torch.distributed, or 0 of 1.

    Raises:
        UsageError: a size is below 1.
    """

    same_on_all_ranks = True  # a checkpoint stores it once (`ckpt.state`)

    def __init__(
        self, dataset_size: int, global_batch: int, micro_batch: int, *,
        seed: int = 0, shuffle: bool = True, rank: int | None = None, world: int | None = None,
    ) -> None:  # fmt: skip
        given = {"dataset_size": dataset_size, "global_batch": global_batch, "micro_batch": micro_batch}
        for name, size in given.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise UsageError(f"{name}={size!r} must be a number of samples, at least 1")
        self.size, self.global_batch, self.micro_batch = dataset_size, global_batch, micro_batch
        self.seed, self.shuffle = seed, shuffle
        self._rank, self._world = rank, world
        self.position = 0

    @property
    def rank(self) -> int:
        """As of now: elastic replicas change it."""
        return self._rank if self._rank is not None else dist.get_rank() if _distributed() else 0

    @property
    def world(self) -> int:
        return self._world if self._world is not None else dist.get_world_size() if _distributed() else 1

    @property
    def epoch(self) -> int:
        """The epoch of the next sample."""
        return self.position // self.size

    def step(self) -> list[MicroBatch]:
        """Return this rank's passes of the next step, and advance the position by a global batch."""
        found = self._passes(self.position)
        self.position += self.global_batch
        return found

    def share(self, part: int, parts: int, position: int | None = None) -> list[int]:
        """Return the samples of one of `parts` equal parts of a global batch; their sizes differ by one at the most.

        Args:
            position: where the batch starts. Default: the current position.
        """
        start = self.position if position is None else position
        return self.samples(start + self._border(part, parts), start + self._border(part + 1, parts))

    def samples(self, first: int, last: int) -> list[int]:
        """Return the samples from position `first` to before `last`, counted from the start of the training."""
        found: list[int] = []
        while first < last:
            epoch, place = divmod(first, self.size)
            end = min(last - epoch * self.size, self.size)
            places = np.arange(place, end, dtype=np.uint64)
            found += (permuted(places, self.size, self.seed, epoch) if self.shuffle else places).tolist()
            first += end - place
        return found

    def loader(
        self,
        dataset: Any,
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        workers: int = 0,
        make: Callable[..., Iterable[Any]] = torch.utils.data.DataLoader,
        **options: Any,
    ) -> Iterator[list[MicroBatch]]:
        """Iterate over steps, with data: workers load ahead, and the position counts what was handed out.

        Make it after the restore, since it starts at the current position. It does not end.

        Args:
            dataset: with `__getitem__`: a torch dataset of that kind, one of Hugging Face, a list.
            collate: as `collate_fn` of a DataLoader.
            make: another loader with the arguments of DataLoader, such as torchdata's StatefulDataLoader. Its own state
                is that of one rank: store these batches in the checkpoint instead.
            options: further arguments of the loader.

        Raises:
            UsageError: the dataset has no positions.
        """
        if not hasattr(dataset, "__getitem__") or isinstance(dataset, torch.utils.data.IterableDataset):
            raise UsageError(
                f"{type(dataset).__name__} has no positions, which an order of samples needs",
                "it has no __getitem__, or is an IterableDataset",
                "use a dataset with __getitem__ and a length (Hugging Face: load_dataset without streaming)",
            )
        loaded = iter(make(
            dataset, batch_sampler=self.sampler(), collate_fn=collate, num_workers=workers, **options
        ))  # fmt: skip
        while True:
            yield [replace(one, data=next(loaded)) for one in self.step()]

    def sampler(self) -> Sampler:
        """Return a `batch_sampler` for a DataLoader of your own: this rank's passes from the current position on.

        It runs ahead of the training, so it does not move the position. Call `step` once for each step that you train:
        it returns the weights of the passes that the loader yields next.
        """
        return Sampler(self)

    def sample_progress(self) -> dict[str, int | str]:
        """Return what `transom explain --samples` needs to know of the position (`ckpt.samples`)."""
        order = f"seed {self.seed}" if self.shuffle else "the dataset's own"
        return {
            "position": self.position, "global_batch": self.global_batch, "size": self.size, "world": self.world,
            "order": order,
        }  # fmt: skip

    def state_dict(self) -> dict[str, int | bool]:
        return {"position": self.position, "size": self.size, "seed": self.seed, "shuffle": self.shuffle}

    def load_state_dict(self, state: dict[str, int | bool]) -> None:
        """Raises UsageError: the position is one in another order. Another global batch is fine."""
        mine = self.state_dict()
        for name in ("size", "seed", "shuffle"):
            if state[name] != mine[name]:
                raise UsageError(
                    f"The saved data position is of {name}={state[name]}, and this training has {name}={mine[name]}",
                    "samples would be repeated and left out",
                    "use the same dataset and seed, or start another training",
                )
        self.position = int(state["position"])

    def _passes(self, position: int) -> list[MicroBatch]:
        mine = self.share(self.rank, self.world, position)
        largest = math.ceil(self.global_batch / self.world)
        passes = math.ceil(largest / self.micro_batch)  # the same on all ranks
        found = []
        for number in range(passes):
            chosen = mine[number * self.micro_batch : (number + 1) * self.micro_batch]
            weight = len(chosen) * self.world / self.global_batch
            padding = chosen or self.samples(position, position + 1)
            found.append(MicroBatch(tuple(padding), weight, number == passes - 1))
        return found

    def _border(self, part: int, parts: int) -> int:
        return self.global_batch * part // parts


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


class Sampler(torch.utils.data.Sampler[list[int]]):
    """Yields the indices of pass after pass, from the position at its start. It does not end."""

    def __init__(self, batches: GlobalBatches) -> None:
        self._batches, self._start = batches, batches.position

    def __iter__(self) -> Iterator[list[int]]:
        position = self._start
        while True:
            for one in self._batches._passes(position):
                yield list(one.samples)
            position += self._batches.global_batch


ROUNDS = 6
Numbers = NDArray[np.uint64]


def permuted(places: Numbers, size: int, seed: int, epoch: int) -> Numbers:
    """Return the numbers at these places of a pseudorandom order of 0 to `size` - 1, which needs no table.

    A Feistel network permutes the numbers of 2k bits. Numbers outside the range are permuted again until they fall into
    it (cycle walking), on average at most 3 more times. The order depends on the arguments alone, not on a library's
    version.

    Args:
        places: uint64 (n,), each below `size`.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = np.frombuffer(hashlib.blake2b(f"{seed} {epoch} {size}".encode(), digest_size=8 * ROUNDS).digest(), np.uint64)
    found = _feistel(places, half, keys)
    while (outside := np.flatnonzero(found >= size)).size:
        found[outside] = _feistel(found[outside], half, keys)
    return found


def _feistel(numbers: Numbers, half: int, keys: Numbers) -> Numbers:
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = numbers >> shift, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return (left << shift) | right


def _mixed(value: Numbers) -> Numbers:
    """The finaliser of splitmix64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
