"""Resume a training again and again in other layouts: is every good resume proven, and every corruption refused?

    python bench/ckpt_proof.py [--resumes 200] [--seed 1] [--corruptions 1] [--layouts fsdp,tp] [--json]
    python bench/ckpt_proof.py --cost 512 [--saves 8]

Four processes stay up and form one group after another: one rank, DDP, FSDP2, TP, HSDP, and FSDP2 with TP. Each resume
restores the newest checkpoint in a layout drawn at random, requires that it is proven, trains a step, and saves. Then
each kind of corruption is injected, in each layout that can have it, `--corruptions` times: between load and proof, or
between the training state and the buffer of a save. `--cost` measures what the proof costs one rank beside copy and
load, with that many MiB of state.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAYOUTS = {
    "single": 1,
    "ddp": 2,
    "ddp4": 4,
    "fsdp": 2,
    "fsdp3": 3,
    "fsdp4": 4,
    "tp": 2,
    "tp4": 4,
    "hsdp": 4,
    "fsdp-tp": 4,
}
WIDTH = 40


def build(layout: str, seed: int) -> tuple[dict[str, Any], Callable[[], None]]:
    """The state of a training in that layout, and a function that trains a step."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
            self.square = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, x: Any) -> Any:
            return self.square(self.out(torch.relu(self.qkv(x))))

    class Data:
        def __init__(self) -> None:
            self.position = 0

        def state_dict(self) -> dict[str, int]:
            return {"position": self.position}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.position = state["position"]

    torch.manual_seed(seed)
    model: Any = nn.Sequential(nn.Linear(7, WIDTH), Block(), Block(), nn.Linear(WIDTH, 5))
    model.register_buffer("seen", torch.zeros(3, dtype=torch.float64))
    if not layout.startswith(("fsdp", "tp", "hsdp")):
        model[3].weight = nn.Parameter(model[3].weight.detach())
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    mesh: Any = None
    if layout.startswith("tp"):
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    elif layout == "fsdp-tp":
        mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("dp", "tp"))
    elif layout == "hsdp":
        mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "dp"))
    elif layout.startswith("fsdp"):
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
    if "tp" in layout:
        for block in (model[1], model[2]):
            parallelize_module(block, mesh["tp"], {"qkv": ColwiseParallel(), "out": RowwiseParallel()})
    if layout.startswith(("fsdp", "hsdp")):
        shards = mesh["dp"] if layout == "fsdp-tp" else mesh
        for part in model:
            fully_shard(part, mesh=shards)
        fully_shard(model, mesh=shards)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    data = Data()
    expert = {"w": torch.full((32, 16), float(seed))}
    state = {"model": model, "optim": optimizer, "schedule": schedule, "data": data, "expert": expert, "steps": 0}

    def step() -> None:
        x = torch.randn(6, 7, generator=torch.Generator().manual_seed(state["steps"]))
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            model.seen.add_(1)
            state["expert"]["w"].add_(1)
        data.position += 1
        state["steps"] += 1

    return state, step


# A corruption of the live state after a load. Each takes the state; on one rank, or on all where the state is shared


def _local(tensor: Any) -> Any:
    return getattr(tensor, "_local_tensor", tensor).detach()


def _weight(state: dict[str, Any], name: str) -> Any:
    return _local(dict(state["model"].named_parameters())[name])


def _rearrange_qkv(state: dict[str, Any]) -> None:
    weight = _weight(state, "1.qkv.weight")
    weight.copy_(
        weight.flip(0)
        if weight.shape[0] % 3
        else weight.view(3, -1, weight.shape[1]).transpose(0, 1).reshape(weight.shape)
    )


def _moments(state: dict[str, Any]) -> Any:
    return next(held for held in state["optim"].state.values() if _local(held["exp_avg"]).numel())


def _lose_step(state: dict[str, Any]) -> None:
    _local(_moments(state)["step"]).sub_(1)


AFTER_LOAD: dict[str, tuple[Callable[[dict[str, Any]], Any], bool]] = {  # on one rank alone?
    "lost moments": (lambda s: s["optim"].state.clear(), False),
    "a moment zeroed": (lambda s: _local(_moments(s)["exp_avg"]).zero_(), True),
    "a wrong step": (_lose_step, True),
    "a wrong step of the schedule": (lambda s: setattr(s["schedule"], "last_epoch", 0), False),
    "a transposed matrix": (lambda s: _weight(s, "1.square.weight").copy_(_weight(s, "1.square.weight").flip(1)), True),
    "a re-split QKV": (_rearrange_qkv, False),
    "one stale shard": (lambda s: _weight(s, "2.out.weight").mul_(0.999), True),
    "a rank's data state dropped": (lambda s: setattr(s["data"], "position", 0), True),
    "one expert's weights for all": (lambda s: s["expert"]["w"].add_(1), True),
    "a buffer": (lambda s: s["model"].seen.add_(1), True),
}
AT_SAVE = ("a shard left stale by the copy", "one expert's weights saved for all")


def worker(rank: int) -> None:
    """Carry out cases, each a line of JSON on stdin; answer with a line."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        case = json.loads(line)
        began = time.monotonic()
        if case["ranks"] > 1:
            os.environ["WORLD_SIZE"] = str(case["ranks"])
            dist.init_process_group("gloo", init_method=f"file://{case['store']}", rank=rank, world_size=case["ranks"])
        else:
            os.environ["WORLD_SIZE"] = "1"
        try:
            found = carry_out(case, rank)
        except BaseException as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        if dist.is_initialized():
            with contextlib.suppress(Exception):
                dist.destroy_process_group()
        found["seconds"] = time.monotonic() - began
        answers.write(json.dumps(found) + "\n")
        answers.flush()


def carry_out(case: dict[str, Any], rank: int) -> dict[str, Any]:
    from transom_cli.ckpt.checkpointer import Checkpointer
    from transom_cli.ckpt.failures import RestoredStateDiffers
    from transom_cli.ckpt.restore import resume
    from transom_cli.ckpt.save import staging

    state, step = build(case["layout"], case["seed"])
    kind = case["kind"]
    proven: list[bool] = []
    differing: list[str] = []
    load, check, copy = resume.load, resume.check, staging.Stager._copy

    def faulty(*arguments: Any, **options: Any) -> str:
        reason: str = load(*arguments, **options)
        corrupt, one = AFTER_LOAD[kind]
        if not reason and (rank == case["victim"] or not one):
            import torch

            with torch.no_grad():
                corrupt(state)
        return reason

    def noted(*arguments: Any, **options: Any) -> Any:
        answer = check(*arguments, **options)
        proven.append(answer.proven)
        if answer.differs:  # an older checkpoint may restore after that
            differing.append(answer.reason)
        return answer

    resume.check = noted
    if kind in AFTER_LOAD:
        resume.load = faulty
    try:
        checkpointer = Checkpointer(state, case["directory"], every=1, keep=2, reshard=True)
        try:
            found: dict[str, Any] = {"restored": checkpointer.restore(), "proven": proven[-1:] == [True]}
            found["refused"] = "; ".join(differing)
        except RestoredStateDiffers as error:
            return {"refused": error.why}
        done = (found["restored"] or 0) + 1
        step()
        checkpointer.save(done)
        checkpointer.wait()
        if kind in AT_SAVE:
            step()
            if kind == AT_SAVE[1] and rank == case["victim"]:
                state["expert"]["w"].mul_(2)
            if kind == AT_SAVE[0] and rank == case["victim"]:
                staging.Stager._copy = lambda self, buffer, sources: copy(self, buffer, sources[1:])
            checkpointer.save(done + 1)
            checkpointer.wait()
        found["failed"] = checkpointer.last_error.why if checkpointer.last_error is not None else ""
        found["saved"] = checkpointer._saver.saved
        checkpointer.close()
        return found
    finally:
        resume.load, resume.check, staging.Stager._copy = load, check, copy


class Pool:
    """The processes, and where they meet."""

    def __init__(self, directory: Path) -> None:
        self.directory, self._count = directory, 0
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "TRANSOM_MEMORY_LINGER": "60"}
        self._log = (directory / "log").open("w")
        self._workers = [
            subprocess.Popen(
                [sys.executable, __file__, "--worker", str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._log, text=True, env=env,
            )
            for rank in range(4)
        ]  # fmt: skip

    def run(self, layout: str, checkpoints: Path, kind: str = "", victim: int = 0) -> list[dict[str, Any]]:
        self._count += 1
        ranks = LAYOUTS[layout]
        case = {
            "layout": layout, "ranks": ranks, "store": str(self.directory / f"store-{self._count}"), "kind": kind,
            "directory": str(checkpoints), "seed": self._count + 10, "victim": victim % ranks,
        }  # fmt: skip
        some = self._workers[:ranks]
        for one in some:
            assert one.stdin is not None
            one.stdin.write(json.dumps(case) + "\n")
            one.stdin.flush()
        return [json.loads(one.stdout.readline() or '{"error": "the worker died"}') for one in some if one.stdout]

    def close(self) -> None:
        for one in self._workers:
            one.kill()
            one.wait()
        self._log.close()


def campaign(given: argparse.Namespace, layouts: list[str]) -> dict[str, Any]:
    draw = random.Random(given.seed)
    refusals: list[str] = []
    table: dict[str, list[int]] = {}
    missed: list[str] = []
    by_change: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="transom-proof-") as folder:
        pool, checkpoints = Pool(Path(folder)), Path(folder) / "c"
        try:
            last = "single"
            pool.run(last, checkpoints)
            for number in range(given.resumes):
                layout = draw.choice(layouts)
                answers = pool.run(layout, checkpoints)
                by_change[f"{last} -> {layout}"] = by_change.get(f"{last} -> {layout}", 0) + 1
                good = all(a.get("restored") == number + 1 and a["proven"] and not a["failed"] for a in answers)
                if not good:
                    refusals.append(f"{number}: {last} -> {layout}: {answers}")
                    break
                last = layout
                if (number + 1) % 20 == 0:
                    print(f"{number + 1} resumes", file=sys.stderr, flush=True)
            for kind in [*AFTER_LOAD, *AT_SAVE]:
                print(f"{kind}: {table}", file=sys.stderr, flush=True)
                for layout in layouts:
                    if kind == AT_SAVE[1] and not (LAYOUTS[layout] > 1):
                        continue
                    for _ in range(given.corruptions):
                        per_rank = kind == "a rank's data state dropped"
                        if per_rank:  # other numbers of ranks start it afresh
                            pool.run(layout, checkpoints)
                        answers = pool.run(layout, checkpoints, kind, draw.randrange(4))
                        found = [a.get("refused") or a.get("failed") for a in answers]
                        row = table.setdefault(kind, [0, 0])
                        row[0] += 1
                        if all(found):
                            row[1] += 1
                        else:
                            missed.append(f"{kind} in {layout}: {answers}")
        finally:
            pool.close()
    return {
        "resumes": sum(by_change.values()), "layout changes": len(by_change), "false refusals": refusals,
        "corruptions": table, "missed": missed,
    }  # fmt: skip


def cost(mib: int, saves: int) -> dict[str, Any]:
    """One rank, GPT-like tensors: the copy, the sample, the digests beside the checksum, the load and the proof."""
    import torch

    from transom_cli.ckpt import files
    from transom_cli.ckpt.checkpointer import Checkpointer
    from transom_cli.ckpt.proof_save import Ledger
    from transom_cli.ckpt.restore import resume
    from transom_cli.ckpt.save.staging import Stager

    times: dict[str, list[float]] = {}
    used: dict[str, list[float]] = {}  # CPU time of the process

    def timed(owner: Any, name: str, label: str) -> None:
        call = getattr(owner, name)

        def measured(*arguments: Any, **options: Any) -> Any:
            began, cpu = time.perf_counter(), time.process_time()
            try:
                return call(*arguments, **options)
            finally:
                times.setdefault(label, []).append(time.perf_counter() - began)
                used.setdefault(label, []).append(time.process_time() - cpu)

        setattr(owner, name, measured)

    layers = 60
    side = int((mib * (1 << 20) / 4 / 3 / layers / 4) ** 0.5)
    parameters = {f"layer{n}.w{k}": torch.randn(side, side) for n in range(layers) for k in range(4)}
    parameters |= {f"layer{n}.b{k}": torch.randn(side) for n in range(layers) for k in range(2)}
    held = [torch.nn.Parameter(one) for one in parameters.values()]
    model = torch.nn.ParameterDict({name.replace(".", "_"): one for name, one in zip(parameters, held, strict=True)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for one in held:
        one.grad = torch.randn_like(one)
    optimizer.step()
    timed(Stager, "take", "copy (blocks)")
    timed(Ledger, "sample", "sample (blocks)")
    timed(Ledger, "_add", "digests of a save (background)")
    timed(files, "digest_segments", "checksum of a save (background)")
    timed(resume, "load", "load (cold load)")
    timed(resume, "check", "proof of a restore")
    with tempfile.TemporaryDirectory(prefix="transom-proof-") as folder:
        state = {"model": model, "optim": optimizer}
        checkpointer = Checkpointer(state, folder, every=1, keep=1)
        for step in range(1, saves + 1):
            checkpointer.save(step)
            checkpointer.wait(strict=True)
        for _ in range(saves):
            checkpointer.restore()
        checkpointer.close(strict=True)
    size = sum(p.nbytes for p in held) * 3 / (1 << 20)
    rows = {
        name: {"min": min(some), "median": statistics.median(some), "cpu": min(used[name]), "n": len(some)}
        for name, some in times.items()
    }
    return {"mib": round(size), "tensors": len(held) * 4, "load average": os.getloadavg()[0], "seconds": rows}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--resumes", type=int, default=200)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--corruptions", type=int, default=1)
    arguments.add_argument("--layouts", default=",".join(LAYOUTS), help="only these")
    arguments.add_argument("--cost", type=int, default=0, metavar="MIB")
    arguments.add_argument("--saves", type=int, default=8)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--worker", type=int, default=-1, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.worker >= 0:
        worker(given.worker)
        return
    found = cost(given.cost, given.saves) if given.cost else campaign(given, sorted(given.layouts.split(",")))
    if given.json:
        print(json.dumps(found, indent=1))
        return
    if given.cost:
        print(f"{found['mib']} MiB in {found['tensors']} tensors, load average {found['load average']:.1f}")
        for name, row in found["seconds"].items():
            seconds = f"min {row['min']:.4f} s  median {row['median']:.4f} s  CPU {row['cpu']:.4f} s"
            print(f"  {name:34} {seconds}  (n={row['n']})")
        return
    refused = len(found["false refusals"])
    print(f"{found['resumes']} resumes, {found['layout changes']} changes of layout, {refused} false refusals")
    for kind, (injected, detected) in found["corruptions"].items():
        print(f"  {kind:36} {detected} of {injected} detected")
    for line in (*found["false refusals"], *found["missed"]):
        print(line)
    raise SystemExit(bool(found["false refusals"] or found["missed"]))


if __name__ == "__main__":
    main()
