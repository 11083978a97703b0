"""Train a small GPT on the source code of the Python standard library, with one process or many; resumable.

The lines that transom needs are marked `# transom`: three calls (restore,
beat, save), their two imports and one constructor, a close() that waits
for the last write, and a decorator. Without a checkpoint directory this is an ordinary training
script; with `--no-beat` it sends no heartbeats itself.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import faststart  # torch is imported in main(), so that a wrong flag fails at once

if TYPE_CHECKING:
    from transom_cli.integrations.recoverable import Context


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's own sources.")
    parser.add_argument("--steps", type=int, default=200)
    parallel = parser.add_mutually_exclusive_group()
    parallel.add_argument("--ddp", action="store_true", help="DistributedDataParallel (default with several processes)")
    parallel.add_argument("--fsdp", action="store_true", help="FSDP2: parameters and optimizer sharded")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=96, help="a multiple of 4, the number of heads")
    parser.add_argument("--context", type=int, default=128, help="tokens (bytes) per window")
    parser.add_argument("--batch", type=int, default=8, help="windows per rank and step")
    parser.add_argument("--every", type=int, default=10, help="steps between snapshots in memory")
    parser.add_argument("--persist", type=int, default=1, help="write every Nth snapshot to disk", metavar="N")
    parser.add_argument("--protect", default="none", help="protect snapshots on other nodes: replica, xor:K, rs:K+M")
    parser.add_argument("--keep", type=int, default=3, help="number of checkpoints to keep")
    parser.add_argument("--checkpoint-dir", type=Path, help="default: $TRANSOM_CHECKPOINT_DIR, else none")
    parser.add_argument("--no-beat", action="store_true", help="leave heartbeats to transom's auto_beat")
    parser.add_argument("--step-delay", type=float, default=0.0, metavar="SECONDS", help="sleep in each step")
    parser.add_argument("--log-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--final-hash", type=Path, metavar="FILE", help="write a hash of the final state here")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    began = time.monotonic()
    faststart.without_dynamo()
    with faststart.quiet_imports():
        import torch
        from data import Sampler, read_corpus
        from fingerprint import fingerprint, write_json
        from model import GPT, Shape
        from ranks import Place, die, join, leave, spread

        from transom_cli import beat, recoverable  # transom
        from transom_cli.ckpt.checkpointer import Checkpointer
    imported = time.monotonic()

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic algorithms need it on GPUs
    torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms(True), without importing inductor
    place = Place.of(os.environ)

    @recoverable  # transom: after a fault of another rank, this process may enter it again (`launch.recoverable`)
    def train(ctx: Context) -> None:
        entered = time.monotonic()
        device = join(place, group=place.world > 1 or args.ddp or args.fsdp)
        joined = time.monotonic()
        torch.manual_seed(args.seed)  # the same first weights on every rank
        model = GPT(Shape(layers=args.layers, width=args.width, context=args.context)).to(device)
        called = spread(model, fsdp=args.fsdp, device=device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        torch.manual_seed(args.seed * 1009 + 1 + place.rank)  # different dropout on every rank
        sampler = Sampler(
            ctx.keep("corpus", read_corpus),
            context=args.context,
            batch=args.batch,
            seed=args.seed,
            rank=place.rank,
            world=place.world,
        )
        built = time.monotonic()

        checkpointer, done = None, 0
        if args.checkpoint_dir or os.environ.get("TRANSOM_CHECKPOINT_DIR"):
            state = {"model": model, "optimizer": optimizer, "data": sampler}
            checkpointer = Checkpointer(  # transom
                state, args.checkpoint_dir, every=args.every, keep=args.keep,
                persist=args.persist, protect=args.protect,
            )  # fmt: skip
            done = checkpointer.restore() or 0  # transom: the newest good checkpoint's step, or a fresh start
        if place.rank == 0:
            laps = (imported - began, joined - entered, built - joined, time.monotonic() - built)
            print("start-up: import {:.2f} s, join {:.2f} s, build {:.2f} s, restore {:.2f} s".format(*laps))
            print(f"training from step {done} to {args.steps} on {place.world} ranks, {device.type}", flush=True)

        for step in range(done + 1, args.steps + 1):
            tokens, targets = sampler.next_batch()
            loss = called(tokens.to(device), targets.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if args.step_delay:
                time.sleep(args.step_delay)
            if not args.no_beat:
                beat(step, loss=loss.item())  # transom: a sign of life and progress
            if checkpointer:
                checkpointer.save(step)  # transom: every `--every` steps, written beside the training
            if place.rank == 0 and (step % args.log_every == 0 or step in (done + 1, args.steps)):
                print(f"step {step} loss {loss.item():.4f}", flush=True)

        if checkpointer:
            checkpointer.close()  # transom: the last write is durable when this returns
        if args.final_hash:
            result = fingerprint(model, optimizer, args.steps)
            if place.rank == 0:
                write_json(args.final_hash, result)
                print(f"final state: sha256 {result['sha256']}", flush=True)
        leave()

    try:
        train()
    except Exception as error:
        die(error)


if __name__ == "__main__":
    main()
