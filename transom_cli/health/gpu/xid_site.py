"""The site's own rows of the Xid catalogue: a file that TRANSOM_XID_RULES names, lines as in `xid_table`."""

from __future__ import annotations

import os
from pathlib import Path

from transom_cli.health.gpu.xid import SiteRules

FILE = "TRANSOM_XID_RULES"
_MOST = 1000  # lines


def site_rules() -> SiteRules:
    path = os.environ.get(FILE, "")
    if not path:
        return SiteRules()
    try:
        return SiteRules(tuple(Path(path).read_text(encoding="utf-8").splitlines()[:_MOST]))
    except (OSError, UnicodeError) as error:
        return SiteRules(trouble=str(error))
