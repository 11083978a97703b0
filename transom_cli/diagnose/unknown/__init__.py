"""Failures that no rule knows: what is new near their end, beside their own healthy phase and past runs."""
