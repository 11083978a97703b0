"""The Debian mirror that this machine's own apt uses, and the settings with which apt reaches it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from transom_cli.errors import TransomError, UsageError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_TARGETS = [
    "apt-get",
    "indextargets",
    "--format",
    "$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)",
    "Created-By: Packages",
]


def host_mirror() -> str:
    """Raises UsageError where apt names no Debian archive."""
    found = debian_archive(_words(_TARGETS))
    if not found:
        raise UsageError(
            "This machine's apt names no Debian mirror",
            "`apt-get indextargets` tells no archive of origin and label Debian (run `apt-get update` first?)",
            "transom sandbox up --release NAME --mirror http://HOST/debian",
        )
    return found


def debian_archive(targets: str) -> str:
    """The first archive of Debian itself in apt's list (origin|label|component|address); "" where there is none."""
    rows = (line.split("|", 3) for line in targets.splitlines() if line.count("|") >= 3)
    found = (
        uri for origin, label, component, uri in rows if (origin, label, component) == ("Debian", "Debian", "main")
    )
    return next(found, "")


def host_settings() -> str:
    """How this machine's apt fetches (proxies, certificates, timeouts), in apt.conf's own words."""
    lines = _words(["apt-config", "dump"]).splitlines()
    return "\n".join(line for line in lines if line.startswith("Acquire::"))


def _words(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60)
    except FileNotFoundError as error:
        raise TransomError(
            "Another release of Slurm is fetched with apt, and this machine has none", str(error), "--release native"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise TransomError(f"`{argv[0]}` did not end within 60 s") from error
    return done.stdout
