"""Logs of any job: read in a stream, known failures found by rules, the cause told from its victims."""
