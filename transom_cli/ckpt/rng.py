"""The state of every random number generator that a trainer draws from: Python, numpy, torch, CUDA. Per rank."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def read() -> dict[str, Any]:
    """numpy's is read only when numpy is imported, CUDA's only when this process uses CUDA."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        import numpy as np

        state["numpy"] = np.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = {str(i): torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())}
    return state


def write(state: dict[str, Any]) -> None:
    """Set the generators to what `read` returned. A generator that was not saved is left as it is."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy as np

        np.random.set_state(state["numpy"])
    for index, cuda_state in state.get("cuda", {}).items():
        if torch.cuda.is_available() and int(index) < torch.cuda.device_count():
            torch.cuda.set_rng_state(cuda_state, int(index))
