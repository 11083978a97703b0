"""When to save, and which saves are to last."""
