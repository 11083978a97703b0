"""Failures that no rule matches: new lines near their end, compared with the healthy phase and with past runs."""
