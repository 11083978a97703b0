"""Settings: the model (`model`), their layers (`load`), validation, and their documentation (`describe`)."""
