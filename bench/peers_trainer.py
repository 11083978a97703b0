"""The training of bench/recovery_peers.py: examples/gpt's model, as a user of each tool writes it.

plain: DDP, and a checkpoint on disk by rank 0: torchrun, ft_launcher, and transom without a change of the script.
transom, elastic, inprocess, torchft: what the tool needs. Those lines end with the tool's name, and are counted.
elastic is transom's `recoverable(replicas="elastic")`.

Each rank appends a line per step to a file of its own. life: when it entered the training, or, with torchft, when
the number of replicas changed.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BEGAN = time.time()
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "gpt"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from data import Sampler, read_corpus  # noqa: E402
from model import GPT, Shape  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("way", choices=("plain", "transom", "elastic", "inprocess", "torchft"))
parser.add_argument("folder", type=Path)
parser.add_argument("--best", action="store_true", help="the tool's settings for a fast recovery")
parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
parser.add_argument("--steps", type=int, default=1_000_000, help="of the whole training, which is ended before")
parser.add_argument("--building", type=float, default=0.0, help="seconds that building the model takes")
parser.add_argument("--delay", type=float, default=0.1)
parser.add_argument("--active", type=int, default=3, help="ranks that train; the others are a reserve")
args = parser.parse_args()

if args.building:
    with contextlib.suppress(ImportError):
        from transformers import GPT2LMHeadModel, Trainer  # noqa: F401
if args.way == "transom":
    from transom_cli import beat, recoverable  # transom
    from transom_cli.ckpt import Checkpointer  # transom
elif args.way == "elastic":
    from transom_cli import beat, recoverable  # elastic
    from transom_cli.ckpt import Checkpointer  # elastic
    from transom_cli.elastic import GlobalBatches  # elastic
elif args.way == "inprocess":
    from datetime import timedelta  # inprocess

    from nvidia_resiliency_ext import inprocess  # inprocess
elif args.way == "torchft":
    from datetime import timedelta  # torchft

    import torchft  # torchft

torch.set_num_threads(1)
SHAPE, BATCH = Shape(layers=3, width=96, context=128), 8
IMPORTED = time.time()


class Trace:
    """What this rank has done."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._file = (args.folder / f"trace-{time.time_ns()}-{os.getpid()}.jsonl").open("a", buffering=1)

    def note(self, step: int, world: int, life: float) -> None:
        said = {"at": time.time(), "step": step, "rank": self._rank, "world": world, "life": life, "pid": os.getpid()}
        self._file.write(json.dumps({**said, "began": BEGAN, "imported": IMPORTED}) + "\n")


def build() -> tuple[GPT, torch.optim.Optimizer]:
    """With `--building`, a build or compilation that takes so long. It waits: real nodes have a core for each rank."""
    began = time.monotonic()
    torch.manual_seed(1)
    model = GPT(SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while time.monotonic() < began + args.building:
        GPT(SHAPE)
        time.sleep(0.2)
    return model, optimizer


def sampler_of(rank: int, world: int) -> Sampler:
    return Sampler(read_corpus(), context=SHAPE.context, batch=BATCH, seed=1, rank=rank, world=world)


def load(model: GPT, optimizer: torch.optim.Optimizer, sampler: Sampler) -> int:
    path = args.folder / "checkpoint.pt"
    if not path.exists():
        return 0
    held = torch.load(path)
    model.load_state_dict(held["model"])
    optimizer.load_state_dict(held["optimizer"])
    sampler.load_state_dict(held["data"])
    return int(held["step"])


def save(model: GPT, optimizer: torch.optim.Optimizer, sampler: Sampler, step: int) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": sampler.state_dict()}
    path = args.folder / "checkpoint.pt"
    torch.save({**state, "step": step}, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def steps(model: GPT, optimizer: torch.optim.Optimizer, sampler: Sampler, done: int) -> Iterator[int]:
    """Train without end after the step `done`, in the process group. Yields finished steps."""
    net = DistributedDataParallel(model)
    while True:
        tokens, targets = sampler.next_batch()
        optimizer.zero_grad()
        net(tokens, targets).backward()
        optimizer.step()
        time.sleep(args.delay)
        done += 1
        yield done


def plain() -> None:
    model, optimizer = build()
    dist.init_process_group("gloo")
    rank, world, life = dist.get_rank(), dist.get_world_size(), time.time()
    sampler, trace = sampler_of(rank, world), Trace(rank)
    for step in steps(model, optimizer, sampler, load(model, optimizer, sampler)):
        trace.note(step, world, life)
        if rank == 0 and step % args.every == 0:
            save(model, optimizer, sampler, step)


def transom() -> None:
    model, optimizer = build()  # before the function that is entered again: kept

    @recoverable  # transom
    def train(ctx: Any) -> None:  # transom
        dist.init_process_group("gloo")
        rank, world, life = dist.get_rank(), dist.get_world_size(), time.time()
        sampler, trace = sampler_of(rank, world), Trace(rank)
        state = {"model": model, "optimizer": optimizer, "data": sampler}  # transom
        checkpointer = Checkpointer(state, every=args.every, steps=args.steps)  # transom
        for step in steps(model, optimizer, sampler, checkpointer.restore() or 0):  # transom
            trace.note(step, world, life)
            beat(step)  # transom
            checkpointer.save(step)  # transom

    train()  # transom


def elastic() -> None:
    """The same global batch whatever the number of ranks is: each of its windows once, weighted."""
    corpus = read_corpus()
    windows = (len(corpus) - 1) // SHAPE.context

    def pass_of(net: DistributedDataParallel, samples: tuple[int, ...]) -> torch.Tensor:
        rows = [corpus[n * SHAPE.context : (n + 1) * SHAPE.context + 1] for n in samples]
        text = torch.stack(rows).long()
        loss: torch.Tensor = net(text[:, :-1], text[:, 1:])
        return loss

    @recoverable(replicas="elastic")  # elastic
    def train(ctx: Any) -> None:  # elastic
        model, optimizer = ctx.keep("model", build)  # elastic
        ctx.join("gloo")  # elastic
        rank, world, life = dist.get_rank(), dist.get_world_size(), time.time()
        trace = Trace(rank)
        batches = GlobalBatches(windows, global_batch=BATCH * args.active, micro_batch=BATCH)  # elastic
        state = {"model": model, "optimizer": optimizer, "data": batches}  # elastic
        checkpointer = Checkpointer(state, every=args.every, steps=args.steps)  # elastic
        done, net = checkpointer.restore() or 0, DistributedDataParallel(model)  # elastic
        while True:
            optimizer.zero_grad()
            for micro in batches.step():  # elastic
                with contextlib.nullcontext() if micro.last else net.no_sync():  # elastic
                    (pass_of(net, micro.samples) * micro.weight).backward()  # elastic
            optimizer.step()
            time.sleep(args.delay)
            done += 1
            trace.note(done, world, life)
            beat(done)  # elastic
            checkpointer.save(done)  # elastic

    train()  # elastic


def in_process() -> None:
    """As NVIDIA's optimal_example.py: what needs no process group is built once."""
    model, optimizer = build()
    world = int(os.environ["WORLD_SIZE"])  # inprocess
    store = dist.TCPStore(  # inprocess
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1, world,  # inprocess
        is_master=os.environ["RANK"] == "0", multi_tenant=True,  # inprocess
    )  # inprocess  # fmt: skip
    options: dict[str, Any] = {}
    if args.best:
        quick = timedelta(seconds=0.1)  # inprocess best
        options = {  # inprocess best
            "monitor_thread_interval": quick, "monitor_process_interval": quick,  # inprocess best
            "progress_watchdog_interval": quick, "last_call_wait": timedelta(0),  # inprocess best
            "rank_assignment": inprocess.rank_assignment.Tree([  # inprocess best
                inprocess.rank_assignment.Layer(  # inprocess best
                    min_ranks=1, max_ranks=args.active, key_or_fn="root",  # inprocess best
                    flag=inprocess.rank_assignment.LayerFlag.RESERVE,  # inprocess best
                )  # inprocess best
            ]),  # inprocess best
        }  # inprocess best  # fmt: skip

    @inprocess.Wrapper(store_kwargs={"port": int(os.environ["MASTER_PORT"]) + 2}, **options)  # inprocess
    def train(call: inprocess.CallWrapper | None = None) -> None:  # inprocess; it reads the annotation
        rank, world, life = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), time.time()
        dist.init_process_group(  # inprocess
            "gloo", store=dist.PrefixStore(str(call.iteration), store),  # inprocess
            rank=rank, world_size=world, timeout=timedelta(seconds=10),  # inprocess
        )  # inprocess  # fmt: skip
        sampler, trace = sampler_of(rank, world), Trace(rank)
        for step in steps(model, optimizer, sampler, load(model, optimizer, sampler)):
            trace.note(step, world, life)
            if rank == 0 and step % args.every == 0:
                with call.atomic():  # inprocess
                    save(model, optimizer, sampler, step)

    train()


def fault_tolerant() -> None:
    """As torchft's train_ddp.py: a replica group of one rank, which gets a peer's state when it joins."""
    model, optimizer = build()
    replica, replicas = int(os.environ["REPLICA_GROUP_ID"]), args.active
    manager = torchft.Manager(  # torchft
        torchft.ProcessGroupGloo(timeout=timedelta(seconds=1 if args.best else 5)),  # torchft
        min_replica_size=1, replica_id=f"train_{replica}", timeout=timedelta(seconds=30),  # torchft
        load_state_dict=lambda held: (  # torchft
            model.load_state_dict(held["model"]), optimizer.load_state_dict(held["optimizer"])  # torchft
        ),  # torchft
        state_dict=lambda: {  # torchft
            "model": model.state_dict(), "optimizer": optimizer.state_dict()  # torchft
        },  # torchft
    )  # torchft  # fmt: skip
    net = torchft.DistributedDataParallel(manager, model)  # torchft
    stepper = torchft.Optimizer(manager, optimizer)  # torchft
    sampler, trace, life, seen = sampler_of(replica, replicas), Trace(replica), time.time(), 0
    while True:
        step = manager.current_step()  # torchft
        tokens, targets = sampler.next_batch()
        stepper.zero_grad()
        net(tokens, targets).backward()
        took_part, world = manager.is_participating(), manager.num_participants()
        stepper.step()
        time.sleep(args.delay)
        if world != seen:
            life, seen = time.time(), world
        if took_part and manager.current_step() == step + 1:
            trace.note(step + 1, world, life)


{"plain": plain, "transom": transom, "elastic": elastic, "inprocess": in_process, "torchft": fault_tolerant}[args.way]()
