"""The contract with Slurm on several releases, as a table: python scripts/slurm_contract.py [RELEASE ...]

Of each release (native, trixie, forky) the contract suite, accounting, and a run that loses a node; then a table, case
by world, and how many cases were kept in each. A release that cannot be had is named last. Ends with 1 where something
failed, and where native is missing.

    --obtain        only build what is missing, and try nothing; ends with 1 where one cannot be had
    --read FILE...  try nothing: the last table alone, of what pytest has written (--junitxml)
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from contract_table import End, Tried, cases_table, contract, read_results, worlds_table

from transom_cli.errors import TransomError
from transom_cli.sandbox.release.known import NATIVE, RELEASES, find_release
from transom_cli.sandbox.release.obtain import default_folder, obtain
from transom_cli.sandbox.tools import find_tools

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / ".test-results"
TESTS = (
    "tests/slurm/test_contract.py",
    "tests/slurm/test_accounting_history.py",
    "tests/e2e/test_spine.py::test_a_dead_node_is_isolated_and_the_job_requeued_without_it",
)
WORKERS = 4  # each with its own Slurm, even on two cores: a case mostly waits for Slurm


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("releases", nargs="*", default=[NATIVE, *RELEASES], metavar="RELEASE")
    parser.add_argument("--obtain", action="store_true", help="only build what is missing")
    parser.add_argument("--read", nargs="+", type=Path, metavar="FILE", help="print tables of pytest's result files")
    asked = parser.parse_args()
    if asked.read:
        return show([one for file in asked.read for one in read_results(file.read_text())], {}, in_full=False)
    for name in asked.releases:
        if name != NATIVE:
            find_release(name)  # a misspelt name is an error, not an unavailable release
    missing = {name: why for name in asked.releases if (why := without(name))}
    if asked.obtain:
        return int(say_missing(missing, "cannot be had"))
    tried = [one for name in asked.releases if name not in missing for one in run(name)]
    return show(tried, missing, in_full=True)


def without(release: str) -> str:
    """Build the release if necessary. Return why it is unavailable, or an empty text."""
    try:
        if release == NATIVE:
            find_tools(accounting=True)
        else:
            got = obtain(release, default_folder(), lambda words: print(words, file=sys.stderr, flush=True))
            if got.why_no_pyslurm:
                print(f"{release}: without pyslurm: {_line(got.why_no_pyslurm)}", file=sys.stderr)
    except TransomError as error:
        return _line("; ".join(filter(None, (error.what, error.why, error.hint))))
    return ""


def _line(words: str) -> str:
    return " / ".join(words.splitlines())


def run(release: str) -> list[Tried]:
    print(f"\n== Slurm: {release}", flush=True)
    RESULTS.mkdir(exist_ok=True)
    results = RESULTS / f"slurm-{release}.xml"
    results.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "pytest", *TESTS, f"-n{WORKERS}", "--dist=worksteal", f"--junitxml={results}"]
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ, "TRANSOM_SANDBOX_TEST_RELEASE": release})
    if done.returncode not in (0, 1) or not results.exists():  # 1: a case failed, and the results say which
        raise TransomError(f"pytest ended with {done.returncode} on {release}: not all cases were tried")
    return read_results(results.read_text(), release)


def show(tried: list[Tried], missing: dict[str, str], *, in_full: bool) -> int:
    if in_full:
        print(f"\n{cases_table(contract(tried))}")
    print(f"\n{worlds_table(contract(tried))}\n")
    for one in tried:
        if in_full and not one.world.by:
            print(f"{one.world}: {one.case}: {one.end.value} {one.why}".rstrip())
    say_missing(missing, "NOT TRIED")
    return int(NATIVE in missing or any(one.end is End.FAILED for one in tried))


def say_missing(missing: dict[str, str], words: str) -> bool:
    for release, why in missing.items():
        print(f"{release}: {words}: {why}", flush=True)
    return bool(missing)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TransomError as error:
        sys.exit(str(error))
