"""What became of nodes over all runs of a user: isolations, lifts, and how long nodes ran and failed."""
