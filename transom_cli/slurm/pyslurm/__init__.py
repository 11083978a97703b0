"""Slurm through pyslurm, in a process of its own, with the command line for all that pyslurm lacks or gets wrong."""
