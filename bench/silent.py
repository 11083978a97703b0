"""How often is a wrong bit found, by whom, and what does it do to the loss if it is not?

    python bench/silent.py [--injections 2000] [--from 0]

Each injection is a training of 64 steps (a GPT of 2 layers, or an MLP) in which one value goes wrong from step 24 on:
resolution x bit x type, drawn from the number of the injection. Wrong products are permanent (a broken unit), wrong
weights, moments and reduced gradients happen once. The guard checks one product in each step. Replicas are stood for by
the same training without the fault: in each step the digest of a sixteenth of the state is compared. Beside it:
`diagnose.numerics` on the loss alone and on the gradient norm alone, with every step as a sample.

`harmless`: not found, and the mean loss of the last 8 steps changed by less than 1%. Results are kept in
.test-results/silent.jsonl, so that a campaign can be interrupted and split.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from transom_cli.ckpt.digest import Part, digests
from transom_cli.diagnose import numerics
from transom_cli.guard import guard
from transom_cli.inject import (
    ACTIVATION,
    GRADIENT,
    INPUT_GRADIENT,
    MOMENT,
    REDUCED,
    WEIGHT,
    WEIGHT_GRADIENT,
    Fault,
    Injector,
)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples/gpt"))
from model import GPT, Shape

RESULTS = Path(__file__).resolve().parent.parent / ".test-results" / "silent.jsonl"
STEPS, WHEN, CYCLE = 64, 24, 16
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
STATE = (REDUCED, MOMENT, WEIGHT)
PLACES = (ACTIVATION, INPUT_GRADIENT, WEIGHT_GRADIENT, GRADIENT, *STATE)
VALUES = ("inf", "nan", "near_inf")


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        data = functional.one_hot(tokens % 32, 32).to(self.layers[0].weight.dtype)
        return functional.cross_entropy(self.layers(data).flatten(0, 1).float(), targets.flatten() % 16)


def built(kind: str, dtype: torch.dtype) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = (GPT(Shape(2, 32, 2, 32, 64, 0.0)) if kind == "gpt" else MLP()).to(dtype)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4 if dtype is torch.float16 else 1e-8)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[float, float, tuple[int, ...]]]:
    """Yield loss, gradient norm, and the digests of the tensors whose turn it is."""
    for step in range(1, STEPS + 1):
        tokens = torch.randint(0, 64, (4, 33), generator=torch.Generator().manual_seed(step))
        tokens[:, 1:] = (tokens[:, :1] + torch.arange(1, 33)) % 64  # a sequence that can be learned
        optimizer.zero_grad()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        norm = float(torch.stack([p.grad.float().norm() for p in model.parameters() if p.grad is not None]).norm())
        optimizer.step()
        tensors = [t for p in model.parameters() for t in (p.detach(), *optimizer.state[p].values()) if t.dim()]
        turn = tensors[step % CYCLE :: CYCLE]
        yield loss.item(), norm, tuple(digests([Part(t, tuple(t.shape), (0,) * t.dim()) for t in turn]))


@cache
def undisturbed(kind: str, dtype: torch.dtype) -> list[tuple[float, float, tuple[int, ...]]]:
    return list(steps(*built(kind, dtype)))


def drawn(number: int) -> tuple[str, torch.dtype, Fault]:
    chance = random.Random(f"silent/{number}")
    kind, dtype = ("gpt", "mlp")[number % 2], DTYPES[number // 2 % 3]
    where, shape = PLACES[number // 6 % len(PLACES)], chance.choice(("element", "element", "row", "stuck"))
    value = chance.choice(VALUES) if chance.random() < 0.15 else ""
    bit = None if value else chance.randrange(8 * dtype.itemsize)
    names = [n for n, m in built(kind, dtype)[0].named_modules() if isinstance(m, nn.Linear)]
    name = chance.choice(names if where == ACTIVATION else names[1:])
    lasting = where in (ACTIVATION, INPUT_GRADIENT, WEIGHT_GRADIENT) or shape == "stuck"
    fault = Fault(
        where, name, bit, value, "element" if value and shape == "stuck" else shape, WHEN, 0 if lasting else 1
    )
    return kind, dtype, Fault(**{**vars(fault), "seed": number})


def inject(number: int) -> dict[str, Any]:
    kind, dtype, fault = drawn(number)
    clean = undisturbed(kind, dtype)
    model, optimizer = built(kind, dtype)
    injector = Injector(model, optimizer, [fault])
    watching = guard(model, optimizer, budget=1e9)
    found = {"guard": 0, "replicas": 0, "loss": 0, "norm": 0}
    losses = []
    loss_state = norm_state = numerics.NumericsState()
    for step, (loss, norm, digest) in enumerate(steps(model, optimizer), 1):
        losses.append(loss)
        if watching.events and not found["guard"]:
            found["guard"] = step
        if fault.where in STATE and digest != clean[step - 1][2] and not found["replicas"]:
            found["replicas"] = step
        loss_state, of_loss = numerics.watch(loss_state, step, loss)
        norm_state, of_norm = numerics.watch(norm_state, step, 1.0 + 1e-3 * step, norm)
        found["loss"] = found["loss"] or (step if of_loss else 0)
        found["norm"] = found["norm"] or (step if of_norm else 0)
    watching.close()
    injector.close()
    usual = sum(c[0] for c in clean[-8:]) / 8
    change = sum(losses[-8:]) / 8 / usual - 1
    width = 8 * dtype.itemsize
    exponent = {torch.float32: (23, 31), torch.bfloat16: (7, 15), torch.float16: (10, 15)}[dtype]
    bit = fault.bit
    part = (
        fault.value if bit is None else "sign" if bit == width - 1
        else "exponent, high" if bit >= (exponent[0] + exponent[1]) // 2 else "exponent, low" if bit >= exponent[0]
        else "mantissa, high" if bit >= exponent[0] // 2 else "mantissa, low"
    )  # fmt: skip
    located = (
        any(e["kind"] == "product" and e["item"].startswith(injector.done[0][1]) for e in watching.events)
        if injector.done
        else False
    )
    return {
        "number": number,
        "model": kind,
        "dtype": str(dtype)[6:],
        "where": fault.where,
        "shape": fault.shape,
        "part": part,
        "hits": len(injector.done),
        "found": found,
        "located": located,
        "change": change if math.isfinite(change) else None,
    }


def table(rows: list[dict[str, Any]]) -> None:
    hit = [row for row in rows if row["hits"]]
    print(f"{len(rows)} injections, {len(hit)} of them hit a value; found after step {WHEN}, of {STEPS}")
    heads = f"{'guard':>7} {'steps':>6} {'located':>8} {'loss':>6} {'norm':>6} {'missed':>7} {'harmless':>9}"
    for title, key in (("resolution", "where"), ("bit", "part"), ("type", "dtype"), ("all", "")):
        print(f"\n{title:16} {'n':>5} {heads}")
        for name in dict.fromkeys(row[key] if key else "all" for row in hit):
            line(name, [row for row in hit if not key or row[key] == name])


def line(name: str, rows: list[dict[str, Any]]) -> None:
    def ours(row: dict[str, Any]) -> int:
        return min((row["found"][k] for k in ("guard", "replicas") if row["found"][k] >= WHEN), default=0)

    found = sorted(ours(row) - WHEN for row in rows if ours(row))
    missed = [row for row in rows if not ours(row)]
    harmless = sum(row["change"] is not None and abs(row["change"]) < 0.01 for row in missed)
    shares = [sum(row["found"][k] >= WHEN for row in rows) / len(rows) for k in ("loss", "norm")]
    median = found[len(found) // 2] if found else 0
    located = sum(row["located"] or row["found"]["replicas"] >= WHEN for row in rows) / max(1, len(found))
    print(
        f"{name:16} {len(rows):>5} {len(found) / len(rows):>7.1%} {median:>6} {located:>8.0%} {shares[0]:>6.1%} "
        f"{shares[1]:>6.1%} {len(missed):>7} {harmless:>9}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--injections", type=int, default=2000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.parent.mkdir(exist_ok=True)
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    known = {row["number"] for row in rows}
    with RESULTS.open("a") as file:
        for number in range(args.first, args.injections):
            if number not in known:
                rows.append(inject(number))
                file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
    table([row for row in rows if args.first <= row["number"] < args.injections])


if __name__ == "__main__":
    main()
