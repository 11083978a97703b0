"""Slurm of another Debian release, unpacked into a folder and run from there, beside this machine's own Slurm."""
