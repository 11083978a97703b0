"""From the trainer's tensors to a checkpoint that counts."""
