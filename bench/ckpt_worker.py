"""One rank of one turn of bench/ckpt.py, started by ckpt_turn.py: it saves and is killed, or it restarts and loads.

It reports to the bench in lines of JSON through the pipe `events`. The bench answers if the rank must wait.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ckpt_methods
from ckpt_pages import cached, drop
from ckpt_plan import Case, plan

ALONE = 20  # steps without a save before each save with steps beside it
_CHANGED = 1 << 30  # added to the step's number: what training makes of the state after a save


@dataclass(frozen=True)
class Order:
    """What the bench wants of a rank. `saves`: of each kind; `step_s`: length of a training step; seconds."""

    phase: str
    method: str
    size: int
    ranks: int
    sharded: bool
    rank: int
    folder: str
    store: str
    job: str
    peers: str
    saves: int
    step_s: float
    threads: int
    events: int

    @property
    def place(self) -> ckpt_methods.Place:
        return ckpt_methods.Place(Path(self.folder), self.rank, Case(self.size, self.ranks, self.sharded), self.job)


class Rank:
    def __init__(self, order: Order) -> None:
        method = ckpt_methods.find(order.method, order.peers)  # first: reports a missing package at once

        import torch
        import torch.distributed as dist
        from ckpt_state import State
        from torch.distributed.device_mesh import init_device_mesh

        torch.set_num_threads(order.threads)
        dist.init_process_group("gloo", init_method=f"file://{order.store}", rank=order.rank, world_size=order.ranks)
        self.dist, self.order = dist, order
        mesh = init_device_mesh("cpu", (order.ranks,)) if order.sharded and order.ranks > 1 else None
        self.state = State(plan(order.size), order.rank, order.ranks, mesh)
        if order.phase == "save":
            self.state.fill()
        self._method = method

    def make(self) -> None:
        self.method = self._method(self.state, self.order.place)

    def tell(self, event: str, wait: bool = False, **more: Any) -> None:
        """The first rank's word to the bench. With `wait`, all ranks wait for its answer."""
        if self.order.rank == 0:
            os.write(self.order.events, (json.dumps({"event": event, **more}) + "\n").encode())
            if wait:
                sys.stdin.readline()
        if wait:
            self.dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.order.ranks
        self.dist.all_gather_object(found, value)
        return found

    def timed(self, act: Callable[[], object]) -> float:
        """Seconds of a call that all ranks make together: the slowest one's. Raises on all what one raises."""
        self.dist.barrier()
        trouble, began = "", time.perf_counter()
        try:
            act()
        except Exception as error:
            traceback.print_exc()  # another rank may never come to hear of it
            trouble = f"{type(error).__name__}: {error}"
        took = time.perf_counter() - began
        answers = self.gather((took, trouble))
        if trouble := next((answer[1] for answer in answers if answer[1]), ""):
            raise RuntimeError(trouble)
        return float(max(answer[0] for answer in answers))

    def save_phase(self) -> None:
        from ckpt_step import Training

        training = Training(self.order.step_s)
        self.tell("memory", wait=True)  # before the method has any
        self.made: list[int] = []
        self.tell("made", seconds=self.timed(self.make))
        self.tell("save", kind="first", **self.one_save())
        for _ in range(self.order.saves):
            self.tell("save", kind="alone", **self.one_save())
        for _ in range(self.order.saves if self.method.background else 0):
            self.tell("save", kind="beside", **self.one_save(training))
        self.tell("watch", wait=True)
        self.one_save(change=True)
        self.tell("watched", wait=True)
        step = self.next_step()
        self.tell("killed", step=step)
        self.dist.barrier()
        self.method.save(step)
        try:
            self.dist.barrier()  # the call has returned on all ranks
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    def next_step(self) -> int:
        self.made.append(len(self.made) + 1)
        self.state.stamp(self.made[-1])
        return self.made[-1]

    def one_save(self, training: Any = None, change: bool = False) -> dict[str, Any]:
        """Save, and wait until it is durable; with training steps meanwhile, which change the state, or without."""
        step = self.next_step()
        alone = training.alone(ALONE) if training else None
        self.dist.barrier()
        began = time.perf_counter()
        stall = self.timed(lambda: self.method.save(step))
        if training or change:
            self.state.stamp(step + _CHANGED)
        found: dict[str, Any] = {"step": step, "stall": stall}
        if training:
            steps, pace = training.beside(self.method.done)
            found.update(alone_s=alone, beside_s=pace, steps=steps)
        self.timed(self.method.finish)
        found["durable"] = max(self.gather(time.perf_counter() - began))
        if self.order.rank == 0 and len(self.made) > 2:
            self.method.prune(self.made[-3])
        self.dist.barrier()
        return found

    def load_phase(self) -> None:
        """What a restart finds: first of all whatever is newest, then each way to load it, timed."""
        self.make()
        survived = self.survivor()
        self.tell("survived", **survived)
        if self.method.memory and survived["where"] == "memory":
            self.tell("load", kind="memory", **self.one_load(self.from_memory))
        self.method.forget()
        newest = next(iter(self.steps()), None)
        for kind in ("cold", "warm") if newest is not None else ():
            if kind == "cold" and self.order.rank == 0:
                drop(Path(self.order.folder))
            share = cached(Path(self.order.folder)) if kind == "cold" else None
            self.tell("load", kind=kind, cached=share, **self.one_load(lambda: self.from_files(newest or 0)))
        self.method.close()
        self.tell("over")

    def survivor(self) -> dict[str, Any]:
        """The newest step that loads, from where, and what was passed over; `silent`: it loaded, and is wrong."""
        passed, silent = [], []
        ways: list[tuple[str, Callable[[], int | None]]] = []
        if self.method.memory:
            ways.append(("memory", self.from_memory))
        ways += [("files", lambda step=step: self.from_files(step)) for step in self.steps()]  # type: ignore[misc]
        for where, way in ways:
            try:
                found = self.one_load(way)
            except RuntimeError as error:
                passed.append(f"{where}: {error}")
                continue
            if found["step"] is None:
                passed.append(f"{where}: nothing there")
            elif found["wrong"]:
                silent.append(f"{where}: step {found['step']} loaded with another {found['wrong']}")
            else:
                return {"step": found["step"], "where": where, "passed": passed, "silent": silent}
        return {"step": None, "where": "", "passed": passed, "silent": silent}

    def one_load(self, way: Callable[[], int | None]) -> dict[str, Any]:
        self.state.scrub()
        steps: list[int | None] = []
        seconds = self.timed(lambda: steps.append(way()))
        found = self.gather((steps[0], "" if steps[0] is None else self.state.wrong(steps[0])))
        wrong = next((answer[1] for answer in found if answer[1]), "")
        if len({answer[0] for answer in found}) > 1:
            wrong = "step on some ranks"
        return {"seconds": seconds, "step": found[0][0], "wrong": wrong}

    def from_memory(self) -> int | None:
        return self.method.load_memory()

    def from_files(self, step: int) -> int:
        self.method.load(step)
        return step

    def steps(self) -> list[int]:
        """As the first rank sees them, or ranks might try different ones."""
        return list(self.gather(self.method.steps())[0])


def main() -> int:
    if sys.argv[1] == "--companion":
        _, peers, job = sys.argv[1:]
        ckpt_methods.add_peers(peers)
        from ckpt_dlrover import serve

        serve(job)
    order = Order(**json.loads(sys.argv[1]))
    try:
        rank = Rank(order)
        if order.phase == "save":
            rank.save_phase()
        else:
            rank.load_phase()
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0]
        line = json.dumps({"event": "failed", "rank": order.rank, "why": f"{type(error).__name__}: {text}"})
        os.write(order.events, (line + "\n").encode())
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
