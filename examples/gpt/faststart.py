"""Start Python's heaviest import sooner: a restarted rank trains only after `import torch` is over.

Optional, and nothing to do with transom. Two measures, each worth it because
many ranks start at the same moment on few cores:

- no garbage collection while modules are being loaded (nothing of it is garbage);
- no `torch._dynamo` until something is compiled. Every optimizer imports it
  (and sympy, and FSDP) only to mark itself "not compiled": 1.3 s of CPU a rank with
  torch 2.13. A stand-in answers those marks; whatever else is asked of it
  loads the real package, which then takes its place.
"""

from __future__ import annotations

import gc
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

DYNAMO = "torch._dynamo"


@contextmanager
def quiet_imports() -> Iterator[None]:
    """No garbage collection inside; afterwards, what was loaded is never scanned again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _UntilNeeded(types.ModuleType):
    """`torch._dynamo` as long as nothing is compiled."""

    def __init__(self) -> None:
        super().__init__(DYNAMO)
        # What DistributedDataParallel and destroy_process_group ask, with the answers of an unused dynamo.
        self.utils = types.SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
        self.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)

    def graph_break(self, msg: str = "") -> None:
        """Outside a compiled region this does nothing in the real package, too."""

    def disable(self, fn: Callable[..., Any], recursive: bool = True, **_: Any) -> Callable[..., Any]:
        return fn

    def __getattr__(self, name: str) -> Any:
        # Also asked for `__path__` when a submodule is imported: that, too, brings the real package.
        if name in ("__spec__", "__file__"):
            raise AttributeError(name)
        if sys.modules.get(DYNAMO) is self:
            del sys.modules[DYNAMO]
        return getattr(importlib.import_module(DYNAMO), name)


def without_dynamo() -> None:
    """Put the stand-in in place. Before `import torch`; without effect where dynamo is loaded already."""
    sys.modules.setdefault(DYNAMO, _UntilNeeded())
