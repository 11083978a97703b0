"""A rank's progress: the trainer's `beat()`, the record it writes, the node's table (standard library only)."""
