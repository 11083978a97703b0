"""Make `import torch` faster, because a restarted rank trains only after it.

Optional, and independent of transom. Two measures help if many ranks start at
the same time on few cores:

- no garbage collection while modules are loaded (they create no garbage);
- no `torch._dynamo` until something is compiled. Every optimizer imports it
  (with sympy and FSDP) only to mark itself "not compiled", which takes 1.3 s of CPU
  per rank with torch 2.13. A stub provides those marks. Any other use loads the
  real package, which then replaces the stub.
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
    """Disable garbage collection inside, and exclude the loaded objects from later collections."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _UntilNeeded(types.ModuleType):
    """Replaces `torch._dynamo` until something is compiled."""

    def __init__(self) -> None:
        super().__init__(DYNAMO)
        # Used by DistributedDataParallel and destroy_process_group; the values are those of an unused dynamo.
        self.utils = types.SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
        self.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)

    def graph_break(self, msg: str = "") -> None:
        """Do nothing, like the real function outside a compiled region."""

    def disable(self, fn: Callable[..., Any], recursive: bool = True, **_: Any) -> Callable[..., Any]:
        return fn

    def __getattr__(self, name: str) -> Any:
        # Importing a submodule reads `__path__`, which also loads the real package.
        if name in ("__spec__", "__file__"):
            raise AttributeError(name)
        if sys.modules.get(DYNAMO) is self:
            del sys.modules[DYNAMO]
        return getattr(importlib.import_module(DYNAMO), name)


def without_dynamo() -> None:
    """Install the stub. Call this before `import torch`; it has no effect if dynamo is already loaded."""
    sys.modules.setdefault(DYNAMO, _UntilNeeded())
