"""Settings: what they are (`model`), where they come from (`load`), and how they are described (`describe`)."""
