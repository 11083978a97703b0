"""The one place that picks real parts: which Slurm, which probe, which files, for which settings."""
