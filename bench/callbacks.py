"""What do the framework callbacks cost per step? Median and 99th percentile in microseconds, and memory in MB.

    .frameworks/bin/python bench/callbacks.py [--steps 20000]

Each callback is called as its framework calls it, by a rank with a heartbeat record in node memory. A framework that is
not installed is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

NAMES = {
    "huggingface": "transformers",
    "lightning": "lightning",
    "accelerate": "accelerate",
    "torchtitan": "torchtitan",
}

# What a script has imported anyway, so that its memory is not the callback's.
LOADED = {
    "huggingface": ("transformers.trainer",),
    "lightning": ("lightning.pytorch",),
    "torchtitan": ("torchtitan.components.checkpointer",),
}


def huggingface() -> Callable[[int], Any]:
    from transom_cli.integrations.huggingface import TransomCallback

    callback, state, control = TransomCallback(), SimpleNamespace(global_step=0), SimpleNamespace()

    def step(number: int) -> None:
        state.global_step = number
        callback.on_step_end(None, state, control)

    return step


def lightning() -> Callable[[int], Any]:
    import torch

    from transom_cli.integrations.lightning import TransomCallback

    callback, trainer, outputs = TransomCallback("."), SimpleNamespace(global_step=0), {"loss": torch.tensor(1.0)}

    def step(number: int) -> None:
        trainer.global_step = number
        callback.on_train_batch_end(trainer, None, outputs, None, 0)

    return step


def accelerate() -> Callable[[int], Any]:
    import torch

    from transom_cli.integrations.base import Attached  # DeepSpeed's, too

    run, loss = Attached(), torch.tensor(1.0)
    return lambda number: run.stepped(number, loss)


def torchtitan() -> Callable[[int], Any]:
    from transom_cli.integrations.torchtitan import TransomCheckpointManager

    manager = TransomCheckpointManager.Config(enable=True, interval=10**9, keep_latest_k=0).build(
        dataloader=None, model_parts=[], optimizers=None, lr_schedulers=None, states={}, sd_adapter=None
    )
    return lambda number: manager.save(number)


def measure(name: str, steps: int) -> None:
    for module in ("torch.optim", "torch.distributed.checkpoint", *LOADED.get(name, (NAMES[name],))):
        importlib.import_module(module)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = globals()[name]()
    times = []
    for number in range(1, steps + 1):
        began = time.perf_counter_ns()
        step(number)
        times.append((time.perf_counter_ns() - began) / 1000)
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    p99 = statistics.quantiles(times, n=100)[-1]
    print(f"{name:<12} {statistics.median(times):7.2f} us {p99:9.2f} us {more:6.1f} MB   n={steps}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--only", choices=NAMES)
    options = parser.parse_args()
    if options.only:
        measure(options.only, options.steps)
        return
    print(f"{'':<12} {'median':>10} {'99%':>12} {'memory':>9}")
    for name, package in NAMES.items():
        if importlib.util.find_spec(package) is None:
            print(f"{name:<12} not installed")
            continue
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            env = {**os.environ, "TRANSOM_BEAT_DIR": folder, "RANK": "0"}
            command = (sys.executable, __file__, "--only", name, "--steps", str(options.steps))
            subprocess.run(command, env=env, check=True)


if __name__ == "__main__":
    main()
