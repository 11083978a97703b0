"""Export checkpoints to files, and import files as checkpoints."""
