"""A training that ends with the same bits on any number of ranks, also if that number changes while it runs.

    transom run -N 2-4 -- python examples/elastic/train.py

If a node is lost, the run continues on the others, and on all of them again when it gets a node back. `--check` prints
every loss and a digest of the final state exactly, to compare two runs.
"""

from __future__ import annotations

import argparse
import hashlib
import time

import torch
import torch.distributed as dist
from torch.nn import functional

from transom_cli.ckpt import Checkpointer
from transom_cli.elastic import GlobalBatches, VirtualRanks

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--virtual-ranks", type=int, default=4, help="the largest number of ranks of this training")
parser.add_argument("--delay", type=float, default=0.0, help="seconds to wait in each step")
parser.add_argument("--check", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
inputs = torch.randn(1000, 16)
labels = inputs[:, :4].argmax(dim=1)

batches = GlobalBatches(len(inputs), global_batch=48, micro_batch=6)
virtual = VirtualRanks(model, batches, count=args.virtual_ranks)
checkpointer = Checkpointer({"model": model, "optim": optimizer, "data": batches}, every=5)
start = checkpointer.restore() or 0
print(f"{dist.get_world_size()} ranks continue from step {start}", flush=True)


def loss_of(samples: list[int]) -> torch.Tensor:
    return functional.cross_entropy(model(inputs[samples]), labels[samples])


for step in range(start, args.steps):
    optimizer.zero_grad()
    loss = virtual.backward(loss_of)
    optimizer.step()
    time.sleep(args.delay)
    if args.check and dist.get_rank() == 0:
        print(f"step {step + 1} loss {float(loss).hex()}", flush=True)
    checkpointer.step(step + 1, float(loss))
checkpointer.close()
if args.check and dist.get_rank() == 0:
    state = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    print(f"step {args.steps}, final state {state.hexdigest()}", flush=True)
dist.destroy_process_group()
