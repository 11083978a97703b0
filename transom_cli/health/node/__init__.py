"""What the host says of itself: memory, mounts, limits, processes, network ports, clocks; and the site's own checks."""
