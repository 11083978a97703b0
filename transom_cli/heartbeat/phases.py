"""What a step is spent on: the names that are known, in the order of a step. Pure, and light for the trainer's side."""

OTHER, WAIT = "other", "wait"
"""In none of the phases; waiting for other ranks, in collectives."""

KNOWN = (OTHER, "data", "forward", "backward", "optimizer", "checkpoint", "restore", WAIT)
