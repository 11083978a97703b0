"""The memory that outlives the trainer, and its protection on other nodes. No torch here."""
