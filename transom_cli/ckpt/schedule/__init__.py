"""When to save, and which saves become durable."""
