"""What the GPUs say of themselves: NVML, the Xid catalogue, DCGM."""
