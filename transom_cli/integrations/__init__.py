"""Integrations with training frameworks: one module per framework. Only its users import it."""
