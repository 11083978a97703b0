"""Slowness: when a training became slower, and which rank, node, link or storage it waits for. Pure."""
