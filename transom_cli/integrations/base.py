"""What all integrations share: heartbeats, the request for a final checkpoint, and seals.

A final checkpoint is requested before a time limit, on preemption, on a stop and when a node is drained. Under
transom's launcher all ranks save at the same step without communicating (`ckpt.save.final_checkpoint`), training
continues, and the launcher ends it once the checkpoint is sealed. In a script without a launcher, Slurm's warning
reaches each rank as SIGUSR2, perhaps in different steps: the ranks agree by one small all-reduce per step, save and
stop. Nothing is ever saved inside a signal handler.
"""

import os
import signal
import sys
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from transom_cli.ckpt import names, seal
from transom_cli.ckpt.failures import describe
from transom_cli.ckpt.save import final_checkpoint
from transom_cli.errors import UsageError
from transom_cli.heartbeat import client, paths, reentry
from transom_cli.integrations import experiment
from transom_cli.integrations.memory import Snapshots


def latest(output_dir: str | Path) -> str | None:
    """Return the newest sealed checkpoint that verifies, as `ckpt.seal.latest`; experiments continue from its step."""
    path = seal.latest(output_dir)
    found = seal.read_seal(Path(path)) if path else None
    if found is not None:
        experiment.resume_after(found.step)
    return path


def checkpoint_step(checkpoint: str | Path) -> int | None:
    """The step of a checkpoint, by its seal or its name."""
    found = seal.read_seal(Path(checkpoint))
    return found.step if found is not None else names.step_of(Path(checkpoint).name)


class Rank:
    """One rank of a framework's training. Create it before the framework sets its signal handlers.

    due: the newest finished step is to be saved now, on all ranks. stop: training is to end after that.
    """

    def __init__(self) -> None:
        self.due = self.stop = False
        experiment.prepare()
        self._requests = final_checkpoint.listen()
        self._warned = False
        self._sealer = ThreadPoolExecutor(1, thread_name_prefix="transom-seal")
        self._sealing: Future[None] | None = None
        replaceable = signal.getsignal(signal.SIGUSR2) in (signal.SIG_DFL, signal.SIG_IGN)
        if self._requests is None and replaceable and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR2, self._warn)
        reentry.at_reentry(weakref.WeakMethod(self._abandon))

    def begin(self, step: int) -> None:
        """Training begins, or continues, after `step`. Raises UsageError if this rank would train alone."""
        ranks = os.environ.get("WORLD_SIZE", "1")
        if ranks != "1" and os.environ.get(paths.RUN_DIR) and _distributed() is None:
            raise UsageError(
                f"Each of {ranks} ranks would train alone, and write the same checkpoints",
                "torch.distributed is not initialized",
                "give the trainer its numbers of nodes and devices, such as L.Trainer(num_nodes=2, devices=1)",
            )
        client.resumed(step)
        experiment.keep()
        experiment.at(step)
        if self._requests is not None:
            self._requests.at(step)

    def step(self, step: int, loss: Any = None, grad_norm: Any = None) -> bool:
        """Report a finished step. Return whether it is to be saved; `due` stays true until `saved`."""
        client.beat(step, loss=loss, grad_norm=grad_norm)
        experiment.at(step)
        if self._requests is not None:
            self.due = self._requests.due(step) or self.due
        elif not self.stop and self._agreed():
            self.due = self.stop = True
        return self.due

    def report(self, step: int, loss: Any, grad_norm: Any = None) -> None:
        """Report the loss of a step that was reported without it."""
        client.beat(step, loss=loss, grad_norm=grad_norm)

    def saved(self, checkpoint: str | Path, step: int) -> None:
        """Seal a checkpoint that all ranks have written. All ranks call this.

        Rank 0 seals in the background, unless the checkpoint is final: then all ranks wait, since they may be ended as
        soon as they continue.
        """
        barrier()  # all parts are written
        if first():
            experiment.keep()
            if self._sealing is not None:
                self._sealing.result()
            self._sealing = self._sealer.submit(_seal, Path(checkpoint), step)
        if self.due:
            if self._sealing is not None:
                self._sealing.result()
            barrier()
            self.due = False
            if self._requests is not None:
                self._requests.follow(None)

    def close(self) -> None:
        """Wait for the last seal."""
        if self._sealing is not None:
            self._sealing.result()
        if self._requests is not None:
            self._requests.close()

    def _abandon(self) -> None:
        """This process enters its training again, which makes another Rank."""
        self._sealer.shutdown()  # or the new training could write what is being sealed
        if self._requests is not None:
            self._requests.close()
        experiment.reentered()
        state = sys.modules.get("accelerate.state")
        if state is not None:  # of the process: it refers to the group that ends
            state.AcceleratorState._reset_state(reset_partial_state=True)
            state.GradientState._reset_state()

    def _warn(self, *_: object) -> None:
        self._warned = True

    def _agreed(self) -> bool:
        """Whether any rank was warned; the same on all ranks."""
        dist = _distributed()
        if dist is None:
            return self._warned
        import torch

        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        flag = torch.tensor([int(self._warned)], device=device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())


class Attached:
    """A training loop of the user's own, as `attach` returns it.

    step: finished optimizer steps. due: a final checkpoint is requested, on all ranks: save now. stop: then leave the
    loop (only in a script without transom's launcher). memory: snapshots in memory, if the script wants some.
    """

    def __init__(self) -> None:
        self.rank = Rank()
        self.step = 0
        self.memory: Snapshots | None = None
        self._restored = -1
        self._begun = False

    @property
    def due(self) -> bool:
        return self.rank.due

    @property
    def stop(self) -> bool:
        return self.rank.stop

    def remember(self, state: dict[str, Any], every: int) -> None:
        """Keep snapshots of `state`, which includes this object, and resume from the newest one."""
        self.memory = Snapshots(state, every)
        self._restored = self.memory.resume()
        if self._restored >= 0:
            experiment.resume_after(self._restored)

    def is_newer(self, checkpoint: str | Path) -> bool:
        """Whether training has resumed from a snapshot in memory that is newer than a checkpoint on disk."""
        step = checkpoint_step(checkpoint)
        newer = step is not None and step <= self._restored
        if not newer and self.memory is not None:
            self.memory.failure, self._restored = None, -1  # all of the state is loaded now
        return newer

    def snapshot(self) -> None:
        """Keep a snapshot in memory if one is due. Call it at the end of each step, where the state is complete."""
        if self.memory is not None:
            self.memory.save(self.step)

    def begin(self, step: int) -> None:
        """The first step of this process follows `step`."""
        if not self._begun:
            if self.memory is not None and self.memory.failure is not None:
                raise self.memory.failure
            self._begun, self.step = True, step
            self.rank.begin(step)

    def stepped(self, step: int, loss: Any) -> None:
        self.begin(step - 1)
        self.step = step
        self.rank.step(step, loss)

    def close(self) -> None:
        """Wait until the last checkpoint is sealed, and give up the memory. Call it at the end of the training."""
        if self.memory is not None:
            self.memory.end()
        self.rank.close()

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step, self._begun = int(state["step"]), False


def _seal(checkpoint: Path, step: int) -> None:
    try:
        seal.seal(checkpoint, step)
    except OSError as error:  # training matters more; a framework may also have deleted an old checkpoint already
        print(f"transom: {checkpoint} is not sealed: {describe(error)}", file=sys.stderr, flush=True)


def _distributed() -> Any:
    """torch.distributed if it is in use."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def barrier() -> None:
    dist = _distributed()
    if dist is not None:
        dist.barrier()


def first() -> bool:
    dist = _distributed()
    return dist is None or dist.get_rank() == 0
