"""What went wrong, where, and what to do: from logs, stacks, collectives, beats and losses to one diagnosis."""
