"""Save: copy the state into memory, commit it on all ranks, and make it durable."""
