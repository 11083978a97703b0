"""What runs on a compute node: the node's agent and the wrapper around each rank (standard library only)."""
