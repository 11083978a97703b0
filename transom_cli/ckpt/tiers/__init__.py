"""Which checkpoints are kept, and copies of them in object storage."""
