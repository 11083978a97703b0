"""Train with any number of ranks: the same samples, the same global batch, and if asked for the same bits.

`GlobalBatches` says which samples each rank takes in each step. `VirtualRanks` makes the gradient independent of the
number of ranks, bit for bit. Neither starts or stops ranks: the launcher does.
"""

from transom_cli.elastic.batches import GlobalBatches, MicroBatch
from transom_cli.elastic.virtual import VirtualRanks

__all__ = ["GlobalBatches", "MicroBatch", "VirtualRanks"]
