"""Whether pyslurm does its work here, tried once, as `transom doctor` tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from transom_cli.errors import TransomError
from transom_cli.slurm.pyslurm.client import ALWAYS, PySlurm


@dataclass(frozen=True)
class Trial:
    """``works``: in a few words; empty where it does not, with ``why_not``. ``detours``: by call, why not by it.
    ``wish``: the setting that asks for it in so many words.
    """

    works: str = ""
    why_not: str = ""
    detours: Mapping[str, str] = field(default_factory=dict)
    wish: str = ""


def try_out(client: PySlurm) -> Trial:
    try:
        pyslurm, python, slurm = client.about()
        jobs = len(client.jobs())
    except TransomError as error:
        return Trial(why_not="; ".join(error.why.splitlines()) or error.what)
    if client.given_up:
        return Trial(why_not=client.given_up)
    words = f"{pyslurm} on Python {python}, with Slurm {slurm}: {jobs} jobs of yours"
    return Trial(words, detours={**ALWAYS, **client.detours})
