"""The random number generators of a process: Python's, torch's, numpy's and CUDA's."""

import hashlib
import random
import sys
from typing import Any

import torch


def read_rng() -> dict[str, Any]:
    """Read the state of all generators. numpy's only if it is imported, CUDA's only if this process uses it."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        import numpy as np

        state["numpy"] = np.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = {str(i): torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())}
    return state


def derived(text: str) -> int:
    """A seed of 63 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def seed_rng(seed: int) -> None:
    """Start the generators of `read_rng` from a seed."""
    random.seed(seed)
    torch.manual_seed(seed)  # also CUDA's
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed(seed % 2**32)


def write_rng(state: dict[str, Any]) -> None:
    """Set the generators to what `read_rng` returned. A generator that was not saved is left as it is."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy as np

        np.random.set_state(state["numpy"])
    for index, cuda_state in state.get("cuda", {}).items():
        if torch.cuda.is_available() and int(index) < torch.cuda.device_count():
            torch.cuda.set_rng_state(cuda_state, int(index))
