"""From what is left after a fault to the trainer's tensors."""
