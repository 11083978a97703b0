"""transom keeps large training runs alive on Slurm clusters."""

from typing import Any

from transom_cli.heartbeat.client import beat

__all__ = ["__version__", "beat", "recoverable"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "recoverable":  # imports torch
        from transom_cli.integrations.recoverable import recoverable

        return recoverable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
