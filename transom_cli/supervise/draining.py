"""Keeps a node away from everybody, where that is allowed."""

from __future__ import annotations

import subprocess

from transom_cli.slurm.port import Slurm, SlurmDenied, SlurmRefused


def drain(slurm: Slurm, command: tuple[str, ...], node: str, reason: str) -> tuple[str, str]:
    """The ladder: scontrol, then the site's own command, else exclusion with the command an admin would run."""
    try:
        slurm.drain(node, reason)
        return "drained", ""
    except (SlurmDenied, SlurmRefused) as error:
        why = error.why or error.what
    if command:
        try:
            done = subprocess.run(
                [*command, node, reason],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            if done.returncode == 0:
                return "drained", f"by {command[0]}"
            why = f"{why}; {command[0]} ended with {done.returncode}: {done.stderr.strip()[:200]}"
        except (OSError, subprocess.TimeoutExpired) as error:
            why = f"{why}; {error}"
    return "excluded", f"drain refused by Slurm: {why}"
