"""transom keeps large training runs alive on Slurm clusters."""

from transom_cli.heartbeat.client import beat

__all__ = ["__version__", "beat"]
__version__ = "0.1.0"
