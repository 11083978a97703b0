"""Detects silent corruption in a training: hardware that computes wrong, without an error."""

from transom_cli.guard.guard import Guard, guard

__all__ = ["Guard", "guard"]
