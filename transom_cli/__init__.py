"""transom keeps large training runs alive on Slurm clusters."""

TYPE_CHECKING = False  # as typing has it, without 7 ms for its import in every rank's wrapper
if TYPE_CHECKING:
    from transom_cli.heartbeat.client import beat
    from transom_cli.integrations.recoverable import recoverable

__all__ = ["__version__", "beat", "recoverable"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "beat":
        from transom_cli.heartbeat.client import beat

        return beat
    if name == "recoverable":  # imports torch
        from transom_cli.integrations.recoverable import recoverable

        return recoverable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
