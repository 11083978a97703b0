"""The training of bench/healthy.py: healthy, but hardly two steps take the same time.

A first step of many seconds (a compilation), an occasional evaluation on rank 0 while the others wait for it, an
occasional checkpoint on a slow file system, and slightly different times for each step of each rank. The model, the
data and the three calls are those of examples/gpt/train.py.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "gpt"))

import faststart  # torch itself is imported in main()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--first-step", type=float, default=20.0, metavar="S", help="seconds added to it [20]")
    parser.add_argument("--evaluation", type=float, default=4.0, metavar="S", help="seconds of one [4]")
    parser.add_argument("--evaluate-every", type=int, default=60, metavar="STEPS", help="[60]")
    parser.add_argument("--every", type=int, default=25, metavar="STEPS", help="between checkpoints [25]")
    parser.add_argument("--slow-checkpoint", type=float, default=8.0, metavar="S", help="every 4th takes as long [8]")
    parser.add_argument(
        "--step-delay", type=float, default=0.15, metavar="S", help="half to one and a half of it [0.15]"
    )
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    until = time.monotonic() + 60 * args.minutes
    faststart.without_dynamo()
    with faststart.quiet_imports():
        import torch
        from data import Sampler, read_corpus
        from model import GPT, Shape
        from ranks import Place, die, join, leave, spread
        from torch import distributed

        from transom_cli import beat
        from transom_cli.ckpt.checkpointer import Checkpointer
        from transom_cli.heartbeat.client import phase

    place = Place.of(os.environ)
    rng = random.Random(f"{args.seed}/{place.rank}")
    try:
        device = join(place, group=True)
        torch.manual_seed(args.seed)
        shape = Shape()
        model = GPT(shape).to(device)
        called = spread(model, fsdp=False, device=device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        sampler = Sampler(
            read_corpus(), context=shape.context, batch=8, seed=args.seed, rank=place.rank, world=place.world
        )
        checkpointer = Checkpointer({"model": model, "optimizer": optimizer, "data": sampler}, every=args.every)
        step = checkpointer.restore() or 0
        over = torch.zeros(1)
        while not over.item():
            step += 1
            tokens, targets = sampler.next_batch()
            loss = called(tokens.to(device), targets.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            time.sleep(args.step_delay * rng.uniform(0.5, 1.5) + (args.first_step if step == 1 else 0.0))
            if step % args.evaluate_every == 0 and place.rank == 0:
                time.sleep(args.evaluation)  # without a word: what a user who has changed no line would do
            beat(step, loss=loss.item())
            checkpointer.save(step)
            if step % (4 * args.every) == 0:
                with phase("checkpoint"):
                    checkpointer.wait()
                    time.sleep(args.slow_checkpoint)
            over.fill_(float(time.monotonic() > until))
            distributed.broadcast(over, 0)  # rank 0's clock decides for all
            if place.rank == 0 and step % 20 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
        checkpointer.close()
        print(f"healthy to the end: {step} steps", flush=True)
        leave()
    except Exception as error:
        die(error)


if __name__ == "__main__":
    main()
