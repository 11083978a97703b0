"""Notifications and metrics of a run."""
