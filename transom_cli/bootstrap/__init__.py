"""The one place that chooses real implementations: which Slurm client, which probe, which files, for which settings.

Only `cli` imports this package. Everything below it gets its clients and factories passed in.
"""
