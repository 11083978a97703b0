"""How long a rank waits in collectives: one line in a trainer, `collectives.install()`, after `import torch`.

    from transom_cli.heartbeat import collectives

    collectives.install()                 # torch.distributed's functions, and Work.wait
    model = DistributedDataParallel(...)
    collectives.watch_ddp(model)          # its reducer waits in C++, at the end of backward

The time counts for the phase "wait" of the rank's account (`heartbeat.account`), not for the phase around it. On the
CPU (gloo) it is the calling thread's time. With CUDA it is the device's, since the host does not wait: an event is put
on the current stream whenever the phase changes, and the time between two events is read once both have passed, a few
steps later. Nothing is ever synchronised for it. Then all phases are device time, and "data" is how long the device
waited for the loader.

Not seen: collectives in `torch.compile`d regions (these functions end a compiled graph) and in CUDA graphs, and those
of FSDP2, which waits for its streams with events of its own: there the wait stays in "forward" and "backward". torch is
imported only where the trainer calls one of these functions.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

from transom_cli.heartbeat import client
from transom_cli.heartbeat.account import WAIT

FUNCTIONS = (
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "barrier", "broadcast",
    "gather", "monitored_barrier", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send",
)  # fmt: skip
MOST = 4096  # pending events; beyond that, phases are merged
_installed = False


def install() -> bool:
    """Time collectives from now on. Returns False if nobody reads the times: outside transom, or in a forked child.

    Call it after the device is chosen (`torch.cuda.set_device`). Idempotent.
    """
    global _installed
    account = client.account()
    if account is None:
        return False
    if _installed:
        return True
    import torch
    import torch.distributed as dist

    if not dist.is_available():
        return False
    if torch.cuda.is_available():
        account.use(DeviceClock(torch.cuda))
    for name in FUNCTIONS:
        if hasattr(dist, name):
            timed = _timed(getattr(dist, name))
            setattr(dist, name, timed)
            setattr(dist.distributed_c10d, name, timed)  # where torch's other functions look it up
    work: Any = dist.Work
    work.wait = _timed(work.wait)
    _installed = True
    return True


def watch_ddp(model: Any) -> bool:
    """Time how long a DistributedDataParallel waits at the end of backward. Returns False if nobody reads the times.

    DDP reduces gradients during backward, and waits for the rest at its end. A hook on the parameter that is ready
    first queues callbacks before and after DDP's own; gradients stay untouched. The engine runs callbacks in the order
    in which they were queued, including those queued meanwhile, on the streams of the caller
    (torch/csrc/autograd/engine.cpp, exec_post_processing).
    """
    account = client.account()
    parameters = [p for p in model.parameters() if p.requires_grad]
    if account is None or not parameters:
        return False
    from torch.autograd import Variable

    engine: Any = Variable._execution_engine

    def ready(_: Any) -> None:
        engine.queue_callback(done)

    def done() -> None:
        former = account.change(WAIT)
        engine.queue_callback(lambda: account.change(former))  # after DDP's, which has been queued by now

    ready._torchdynamo_disable = True  # type: ignore[attr-defined]
    parameters[-1].register_post_accumulate_grad_hook(ready)
    return True


def _timed(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with client.phase("wait"):
            return function(*args, **kwargs)

    timed._torchdynamo_disable = True  # type: ignore[attr-defined]
    return timed


class DeviceClock:
    """Records ends of phases as events on the current stream (`account.Device`). cuda: torch.cuda."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._free: list[Any] = []
        self._ends: deque[tuple[int, Any]] = deque()
        self._last = self._event()

    def change(self, phase: int) -> None:
        if len(self._ends) < MOST and not self._cuda.is_current_stream_capturing():
            self._ends.append((phase, self._event()))

    def done(self) -> list[tuple[int, int]]:
        found = []
        while self._ends and self._ends[0][1].query():
            phase, end = self._ends.popleft()
            found.append((phase, int(self._last.elapsed_time(end) * 1e6)))
            self._free.append(self._last)
            self._last = end
        return found

    def _event(self) -> Any:
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record()
        return event
