"""The launcher: owns one attempt, in the batch script."""
