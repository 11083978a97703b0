"""Where the tests have it from; `bench/health_matrix.py` uses it too."""

from transom_cli.sandbox.netns import NOBODY, Network, why_not

__all__ = ["NOBODY", "Network", "why_not"]
