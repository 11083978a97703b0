"""Slurm's many reasons that name a limit of a QOS or an account, in plain words. Pure.

They are put together of parts: whose limit (QOS, Assoc), of one or of all together (Max, Grp, Min), of what (Cpu, Node,
GRES, Jobs, ...), and among whom (PerJob, PerUser, PerAccount, PerNode).
"""

from __future__ import annotations

import re

_LIMIT = re.compile(
    r"(QOS|Assoc(?:iation)?|)(Grp|Max|Min|)(.*?)(PerJob|PerUser|PerAccount|PerNode|)(?:Limit|NotSatisfied)?"
)
_OF_WHAT = (
    ("SubmitJob", "submitted jobs"),
    ("Job", "running jobs"),
    ("Minutes", "processor or node minutes"),
    ("Wall", "time"),
    ("Time", "time"),
    ("CPU", "processors"),
    ("NODE", "nodes"),
    ("GRES", "GPUs or other gres"),
    ("MEM", "memory"),
    ("LICENSE", "licences"),
    ("BILLING", "billing units"),
    ("BB", "burst buffer"),
    ("ENERGY", "energy"),
    ("RESOURCE", "resources"),
)


def limit_words(word: str) -> str:
    """ "" where the word names no limit that is known here."""
    read = _LIMIT.fullmatch(word)
    if read is None or not (read[1] or (read[2] and read[4] == "PerAccount")):
        return ""
    whose, kind, what, among = read.groups()
    rest = what.upper()
    of = next((words for part, words in _OF_WHAT if part.upper() in rest), "")
    if not of:
        return f"a limit of your {_whose(whose)} is reached"
    if kind == "Min":
        return f"it asks for less {of} than your {_whose(whose)} wants of a job: it will not start"
    if among == "PerNode" or among == "PerJob" or (of == "time" and kind == "Max"):
        one = "one node" if among == "PerNode" else "one job"
        return f"it asks for more {of} than your {_whose(whose)} allows {one}: it will not start"
    if kind == "Grp":
        return f"all jobs of your {_whose(whose)} together have as much as they may: {of}"
    of_whom = {"PerUser": "your jobs have", "PerAccount": "your account's jobs have"}.get(among, "your jobs have")
    return f"{of_whom} as much as your {_whose(whose)} allows: {of}"


def _whose(prefix: str) -> str:
    return "QOS" if prefix in ("QOS", "") else "account"
