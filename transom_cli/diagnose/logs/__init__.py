"""Diagnose the logs of any job: read them as a stream, match lines with rules, find the cause behind its symptoms."""
