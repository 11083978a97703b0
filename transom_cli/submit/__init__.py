"""From settings or a user's own script to a run directory and what sbatch is given."""
