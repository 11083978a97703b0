"""What does the guard against silent corruption cost, and does it ever raise a false alarm?

    python bench/guard.py alarms --products 1000000     checked products without a fault: how many fail their checksum?
    python bench/guard.py overhead --turns 20           a step of the example's GPT, guard on and off in turns;
                                                        CPU time, which other processes disturb less, on one thread

`alarms` draws shapes, types and values: normal, with a common offset, with a few large values, tiny, and so large that
16-bit types overflow. Every tenth is an attention, forward and backward. Beside them, whole trainings run under the
guard: float32, and mixed precision with a gradient scaler whose scale overflows again and again. Results are added to
.test-results/guard-alarms.json, so that a campaign can be interrupted and continued.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from transom_cli.guard import guard, products

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples/gpt"))
RESULTS = Path(__file__).resolve().parent.parent / ".test-results" / "guard-alarms.json"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SPREADS = ("normal", "offset", "outliers", "tiny", "huge")


def drawn(rows: int, columns: int, spread: str) -> torch.Tensor:
    data = torch.randn(rows, columns)
    if spread == "offset":
        return data + 3
    if spread == "outliers":
        return torch.where(torch.rand_like(data) < 0.01, data * 100, data)
    return data * {"tiny": 1e-4, "huge": 300.0}.get(spread, 1.0)


def one_product(chance: random.Random, dtype: torch.dtype) -> float:
    """Return the largest distance from a checksum, as a share of its limit."""
    n, k, m = (chance.choice((1, 3, 8, 16, 33, 64, 96, 128)) for _ in range(3))
    spread = chance.choice(SPREADS)
    a, b = drawn(n, k, spread).to(dtype), drawn(k, m, chance.choice((spread, "normal"))).to(dtype)
    bias = torch.randn(m).to(dtype) if chance.random() < 0.5 else None
    c = a @ b if bias is None else torch.addmm(bias, a, b)
    return float(products.product(a, b, c, bias)[0].max())


def one_attention(chance: random.Random, dtype: torch.dtype) -> float:
    length, width = chance.choice((4, 16, 48)), chance.choice((8, 16, 32))
    q, k, v = (
        (drawn(length, width, chance.choice(("normal", "outliers", "tiny"))).to(dtype))[None, None].requires_grad_()
        for _ in range(3)
    )
    causal = chance.random() < 0.5
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    gradient = torch.randn_like(out)
    out.backward(gradient)
    head = products.head(*(t.detach() for t in (q, k, v, out)), None, causal, None, 0)
    assert q.grad is not None and k.grad is not None and v.grad is not None
    backward = products.attention_backward(head, gradient[0, 0], q.grad[0, 0], k.grad[0, 0], v.grad[0, 0])
    return max(float(products.attention(head)[0].max()), float(backward[0].max()))


def one_training(chance: random.Random, dtype: torch.dtype) -> tuple[int, int]:
    """Return the number of checked products and of findings in 60 steps of a training whose gradients overflow."""
    width = chance.choice((16, 48))
    model = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    narrow = dtype is torch.float16
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=5, enabled=narrow)
    watching = guard(model, optimizer, budget=1e9)
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            loss = model(drawn(32, width, chance.choice(SPREADS))).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    watching.close()
    assert not watching.failed, watching.failed
    for event in watching.events:
        print("false alarm:", event, flush=True)
    return watching.checked, len(watching.events)


def alarms(wanted: int) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    done = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    torch.set_num_threads(1)
    while sum(row["products"] for row in done.values()) < wanted:
        start = sum(row["products"] for row in done.values())
        chance = random.Random(start)
        torch.manual_seed(start)
        for dtype in DTYPES:
            checked, findings = one_training(chance, dtype)
            row = done.setdefault(f"training {str(dtype)[6:]}", {"products": 0, "alarms": 0, "worst": 0.0})
            row["products"] += checked
            row["alarms"] += findings
        for number in range(3000):
            dtype = DTYPES[number % 3]
            kind = "attention" if chance.random() < 0.1 else "product"
            share = one_attention(chance, dtype) if kind == "attention" else one_product(chance, dtype)
            row = done.setdefault(f"{kind} {str(dtype)[6:]}", {"products": 0, "alarms": 0, "worst": 0.0})
            row["products"] += 3 if kind == "attention" else 1  # O; dQ, dK and dV count as two
            row["alarms"] += share > 1
            row["worst"] = max(row["worst"], share)
        RESULTS.write_text(json.dumps(done))
    print(f"{'checked':24} {'products':>10} {'alarms':>7} {'largest share of the limit':>28}")
    for name, row in sorted(done.items()):
        print(f"{name:24} {row['products']:>10} {row['alarms']:>7} {row['worst']:>28.3f}")
    print(f"{'all':24} {sum(r['products'] for r in done.values()):>10} {sum(r['alarms'] for r in done.values()):>7}")


def overhead(turns: int, layers: int, width: int) -> None:
    from model import GPT, Shape

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = GPT(Shape(layers=layers, width=width, dropout=0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> tuple[float, float]:
        tokens = torch.randint(0, 256, (8, 129))
        began, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=True)
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
        return time.perf_counter() - began, time.process_time() - cpu

    for _ in range(5):
        step()
    times: dict[bool, list[float]] = {True: [], False: []}
    used: dict[bool, list[float]] = {True: [], False: []}  # CPU seconds of a turn
    checked = 0
    for turn in range(2 * turns):
        on = turn % 2 == turn // 2 % 2  # off first in every other pair
        watching = guard(model, optimizer) if on else None
        if on:
            step()  # starts with a check, before anything is known about its cost
        mine = [step() for _ in range(30)]
        times[on] += [wall for wall, _ in mine]
        used[on].append(sum(cpu for _, cpu in mine))
        if watching is not None:
            checked += watching.checked
            watching.close()
    for on, name in ((False, "off"), (True, "on")):
        ordered = sorted(times[on])
        p99 = ordered[int(0.99 * len(ordered))]
        print(
            f"guard {name:4} n={len(ordered)} median {1e3 * statistics.median(ordered):.2f} ms, p99 {1e3 * p99:.2f} ms"
        )
    ratios = sorted(a / b - 1 for a, b in zip(used[True], used[False], strict=True))
    middle = " to ".join(f"{100 * ratios[len(ratios) * at // 4]:+.2f}" for at in (1, 3))
    total = sum(used[True]) / sum(used[False]) - 1
    print(f"CPU time of 30 steps, {turns} pairs: median {100 * statistics.median(ratios):+.2f}% (quartiles {middle})")
    print(f"CPU time in all: {100 * total:+.2f}%; {checked} products checked")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("alarms", "overhead"))
    parser.add_argument("--products", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=96)
    args = parser.parse_args()
    if args.what == "alarms":
        alarms(args.products)
    else:
        overhead(args.turns, args.layers, args.width)


if __name__ == "__main__":
    main()
