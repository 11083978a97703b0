"""What people and systems are told of a run: notifications, and metrics. The operator's loop waits for none of it."""
