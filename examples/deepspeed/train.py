"""A tiny network under DeepSpeed's ZeRO, trained without downloads. The lines for transom are marked.

transom run -N 2 -- deepspeed train.py out
"""

import argparse
import hashlib
import time
from pathlib import Path

import deepspeed
import torch

from transom_cli.integrations.deepspeed import attach, resume  # transom

parser = argparse.ArgumentParser()
parser.add_argument("out", help="folder of the checkpoints")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
parser.add_argument("--snapshot-every", type=int, help="steps between two snapshots in memory")
parser.add_argument("--step-delay", type=float, default=0.0, help="seconds; a real step takes longer than this one")
parser.add_argument("--final", type=Path, help="file for a hash of the final parameters")
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # on CPUs, gloo alone: nothing is compiled
deepspeed.init_distributed("gloo")
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
engine, *_ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    },
)
run = attach(engine, snapshot_every=args.snapshot_every)  # transom
resume(engine, args.out)  # transom: also with another number of ranks

while engine.global_steps < args.steps and not run.stop:
    time.sleep(args.step_delay)
    seed = engine.global_steps * torch.distributed.get_world_size() + torch.distributed.get_rank()
    batch = torch.randn(4, 16, generator=torch.Generator().manual_seed(seed))
    engine.backward(torch.nn.functional.mse_loss(engine(batch), batch.sum(1, keepdim=True)))
    engine.step()
    if engine.global_steps % args.every == 0 or run.due:  # transom: a final checkpoint is due
        engine.save_checkpoint(args.out)

run.close()  # transom: the last checkpoint is sealed
if args.final and torch.distributed.get_rank() == 0:
    parameters = b"".join(p.detach().float().numpy().tobytes() for p in engine.module.parameters())
    args.final.write_text(hashlib.sha256(parameters).hexdigest())
torch.distributed.destroy_process_group()
