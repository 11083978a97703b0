"""Print the results of `make test-frameworks` as a table: framework by property.

Usage: frameworks_table.py RESULTS.xml
"""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

CASE = re.compile(r"test_(?P<what>\w+)\[(?:(?P<case>\w+)-)?(?P<framework>\w+)\]")


def main(path: str) -> None:
    cells: dict[tuple[str, str], str] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        found = CASE.fullmatch(case.get("name", ""))
        if found:
            outcomes = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
            word = {"skipped": "not installed"}.get(outcomes[0], "FAILED") if outcomes else "yes"
            what = found["what"].replace("_", " ") + (f" ({found['case']} newer)" if found["case"] else "")
            cells[found["framework"], what] = word
    frameworks = list(dict.fromkeys(framework for framework, _ in cells))
    width = max((len(what) for _, what in cells), default=0)
    print(" " * width, *(f"{framework:>14}" for framework in frameworks))
    for what in dict.fromkeys(what for _, what in cells):
        print(f"{what:<{width}}", *(f"{cells.get((one, what), '-'):>14}" for one in frameworks))


if __name__ == "__main__":
    main(sys.argv[1])
