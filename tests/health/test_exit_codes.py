"""Resource limits of the job's processes, and exit codes for Slurm and Nagios."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from transom_cli.core import codec
from transom_cli.health import exit_codes
from transom_cli.health.check import About
from transom_cli.health.checks.ulimits import UlimitsLimits, UlimitsReading, judge_ulimits, read_ulimits
from transom_cli.health.finding import Finding, Remedy, Verdict

ROOT = Path(__file__).resolve().parents[2]


def found(verdict: Verdict, check: str = "ecc", evidence: str = "3 errors") -> Finding:
    return Finding(check, verdict, "n1", evidence)


PASS, MONITOR, SUSPECT, FAIL, UNKNOWN = (found(v) for v in Verdict)


@pytest.mark.parametrize(
    ("findings", "prolog", "nagios", "line"),
    [
        ([PASS, PASS], 0, 0, "TRANSOM OK - 2 of 2 checks passed"),
        ([PASS, UNKNOWN], 0, 0, "TRANSOM OK - 1 of 2 checks passed"),
        ([PASS, MONITOR], 0, 1, "TRANSOM WARNING - ecc: 3 errors"),
        ([MONITOR, SUSPECT, PASS], 0, 1, "TRANSOM WARNING - ecc: 3 errors"),
        ([FAIL, SUSPECT, FAIL], 1, 2, "TRANSOM CRITICAL - ecc: 3 errors (and 1 more)"),
        ([UNKNOWN, UNKNOWN], 0, 3, "TRANSOM UNKNOWN - ecc: 3 errors (and 1 more)"),
        ([], 0, 3, "TRANSOM UNKNOWN - 0 of 0 checks passed"),
    ],
)
def test_each_caller_gets_its_exit_code_and_line(findings: list[Finding], prolog: int, nagios: int, line: str) -> None:
    assert exit_codes.prolog(findings) == exit_codes.epilog(findings) == exit_codes.Answer(prolog, line)
    assert exit_codes.nagios(findings) == exit_codes.Answer(nagios, line)
    answer = exit_codes.health_check_program("n1", findings)
    assert (answer.code, answer.line, bool(answer.argv)) == (0, line, prolog == 1)


def test_health_check_program_drains_on_proof_only() -> None:
    bad = found(Verdict.FAIL, "edac_new", "mc0: ue_count=1\x1b[31m\nmore | words")
    answer = exit_codes.health_check_program("gpu007", [SUSPECT, bad], "i2")
    reason = "reason=transom: edac_new: mc0: ue_count:1 [31m more | words (i2)"
    assert answer.argv == ("scontrol", "update", "nodename=gpu007", "state=drain", reason)
    assert "|" not in answer.line
    assert len(exit_codes.drain_reason(found(Verdict.FAIL, evidence="x" * 999))) <= 200


def test_limits_of_this_process_are_read() -> None:
    reading = read_ulimits(About())
    assert codec.build(UlimitsReading, codec.plain(reading)) == reading
    assert reading.nofile == resource.getrlimit(resource.RLIMIT_NOFILE)


def test_low_limit_set_by_the_shell_is_monitored() -> None:
    program = (
        "from transom_cli.health.check import About\n"
        "from transom_cli.health.checks.ulimits import *\n"
        "print(judge_ulimits('n1', read_ulimits(About()), About(), UlimitsLimits())[0])\n"
    )
    words = ["sh", "-c", 'ulimit -Sn 800; ulimit -Hn 900; exec "$0" -c "$1"', sys.executable, program]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert (
        "MONITOR" in said
        and "soft limit 800 open files (ulimit -n), hard limit 900; at least 4096 is recommended" in said
    )


def test_locked_memory_limit_matters_only_with_rdma() -> None:
    low = UlimitsReading((8192, -1), (-1, -1), (8 << 20, 8 << 20), True)
    verdicts = {f.check: (f.verdict, f.remedy) for f in judge_ulimits("n1", low, About(), UlimitsLimits())}
    assert verdicts == {
        "nofile": (Verdict.PASS, Remedy.NONE),
        "nproc": (Verdict.PASS, Remedy.NONE),
        "memlock": (Verdict.MONITOR, Remedy.SETUP),
    }
    without = UlimitsReading((8192, -1), (-1, -1), (8 << 20, 8 << 20), False)
    assert not judge_ulimits("n1", without, About(), UlimitsLimits())[2].applies
