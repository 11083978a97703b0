"""Checkpoints to and from single files of other formats."""
