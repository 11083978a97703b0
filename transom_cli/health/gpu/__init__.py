"""GPU checks: NVML readings by subject, Xids, and DCGM's diagnostic."""
