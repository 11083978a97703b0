"""A training with torch whose loss stops being a number at a batch, for as long as it trains on that batch.

One step a batch; which, the Checkpointer tells. At the end rank 0 prints a digest of the weights.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time

import torch
import torch.distributed as dist

from transom_cli.ckpt.checkpointer import Checkpointer


def batch(index: int, bad: range) -> torch.Tensor:
    data = torch.randn(8, 4, generator=torch.Generator().manual_seed(index))
    return data * float("nan") if index in bad else data


def weights(batches: list[int]) -> str:
    """Of a training on these batches, without interruption, in one process."""
    model = torch.nn.Linear(4, 1)
    begin(model)
    for index in batches:
        step_on(model, batch(index, range(0)))
    return digest(model)


def begin(model: torch.nn.Linear) -> None:
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.zero_()


def step_on(model: torch.nn.Linear, data: torch.Tensor) -> float:
    model.zero_grad()
    loss = (model(data) - data.sum(dim=1, keepdim=True)).square().mean()
    loss.backward()
    if dist.is_initialized():
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= 0.01 * weight.grad
    return loss.item()


def digest(model: torch.nn.Linear) -> str:
    values = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--bad", type=int, nargs=2, required=True, help="first and last batch that is not a number")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 1)
    begin(model)
    checkpointer = Checkpointer({"model": model}, every=10, keep=100)
    done = checkpointer.restore() or 0
    for step in range(done + 1, args.steps + 1):
        loss = step_on(model, batch(checkpointer.batch(step), range(args.bad[0], args.bad[1] + 1)))
        time.sleep(0.05)
        checkpointer.step(step, loss)
    checkpointer.close()
    if os.environ["RANK"] == "0":
        print(f"weights {digest(model)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
