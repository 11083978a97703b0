"""Restore: choose a checkpoint, verify it, and load it into the trainer's tensors."""
