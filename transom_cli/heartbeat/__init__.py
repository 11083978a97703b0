"""Heartbeats of training processes, and the phases that a step is split into. Pure, and cheap to import."""

from __future__ import annotations

OTHER, WAIT = "other", "wait"
"""Time outside all phases; waiting for other ranks in collectives."""

STEP_PHASES = (OTHER, "data", "forward", "backward", "optimizer", "checkpoint", "restore", WAIT)
