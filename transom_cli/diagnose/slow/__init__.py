"""Slowness: when a training got slower, and which rank, node, link or storage it waits for. Pure."""
