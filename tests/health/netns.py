"""Re-export for the tests; `bench/health_matrix.py` uses it too."""

from transom_cli.sandbox.network import NOBODY, Network, why_not

__all__ = ["NOBODY", "Network", "why_not"]
