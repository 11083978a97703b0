"""Print the results of `make test-frameworks` as a table: framework by property.

Usage: frameworks_table.py RESULTS.xml ...
"""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

CASE = re.compile(r"test_(?P<what>\w+)\[(?:(?P<case>\w+)-)?(?P<framework>\w+)\]")
SEAM = {"test_torchtitan": "torchtitan"}  # tests of a framework that does not run on CPUs


def main(files: list[str]) -> None:
    cells: dict[tuple[str, str], str] = {}
    for case in (case for file in files for case in ElementTree.parse(file).iter("testcase")):
        module, found = str(case.get("classname")).rpartition(".")[2], CASE.fullmatch(str(case.get("name")))
        if found is None or module not in ("test_frameworks", *SEAM):
            continue
        outcomes = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        word = {"skipped": "not installed"}.get(outcomes[0], "FAILED") if outcomes else "yes"
        shown = next((str(one.get("value")) for one in case.iter("property") if one.get("name") == "cell"), word)
        what = found["what"].replace("_", " ") + (f" ({found['case']} newer)" if found["case"] else "")
        where = (SEAM[module], f"{what}, {found['framework']}") if module in SEAM else (found["framework"], what)
        cells[where] = shown if word == "yes" else word
    frameworks = list(dict.fromkeys(framework for framework, _ in cells))
    width = max((len(what) for _, what in cells), default=0)
    print(" " * width, *(f"{framework:>14}" for framework in frameworks))
    for what in dict.fromkeys(what for _, what in cells):
        print(f"{what:<{width}}", *(f"{cells.get((one, what), '-'):>14}" for one in frameworks))


if __name__ == "__main__":
    main(sys.argv[1:])
