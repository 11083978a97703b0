"""A PyTorch training as anybody writes it: it knows nothing of transom, and saves and resumes by itself."""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--steps", type=int, default=320)
parser.add_argument("--save-every", type=int, default=10, help="0: never")
parser.add_argument("--die", default="", help="RANK:STEP,...: that rank is killed there, once")
parser.add_argument("--crash", type=int, default=0, help="each process crashes after so many steps of its own")
args = parser.parse_args()

torch.set_num_threads(1)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if world > 1:
    dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
newest, done = args.folder / "own.pt", 0
if newest.exists():
    state = torch.load(newest)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    done = state["step"]
print(f"rank {rank} goes on from step {done}", flush=True)
first = done
for step in range(done + 1, args.steps + 1):
    time.sleep(0.02)
    if world > 1:
        dist.barrier()
    optimizer.zero_grad()
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    if rank == 0 and args.save_every and step % args.save_every == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, newest.with_suffix(".tmp"))
        newest.with_suffix(".tmp").rename(newest)
    if f"{rank}:{step}" in args.die.split(","):
        died = args.folder / f"died-{rank}-{step}"
        if not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if args.crash and step - first == args.crash:
        raise RuntimeError("a shape that does not fit")
