"""The operator: owns the run, on a login node or as a job of its own."""
