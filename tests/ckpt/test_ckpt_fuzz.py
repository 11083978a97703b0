"""The checkpoint fuzzer (bench/ckpt_fuzz.py): its regressions replayed, its generator, what it expects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
REGRESSIONS = Path(__file__).with_name("ckpt_fuzz_regressions.jsonl")
sys.path.insert(0, str(BENCH))

from ckpt_fuzz_case import Case, Layout, decode, draw, encode, expected  # noqa: E402


def test_a_case_is_the_same_after_encoding():
    for number in range(300):
        case = draw(7, number)
        assert decode(encode(case)) == case == draw(7, number)


def test_all_kinds_of_cases_are_drawn():
    cases = [draw(1, number) for number in range(2000)]
    assert {case.fault for case in cases} >= {"", "kill ranks", "kill daemon", "flipped", "missing", "memory lost"}
    assert len({(case.save.kind, case.restore.kind) for case in cases}) > 40
    assert {case.source for case in cases} == {"disk", "memory", "dcp"}


@pytest.mark.parametrize(
    ("fault", "saves", "refused"),
    [("missing", 1, True), ("missing", 2, False), ("memory lost", 2, True), ("", 1, False)],
)
def test_damage_of_the_only_checkpoint_must_be_refused(fault: str, saves: int, refused: bool):
    one = Layout("single", 1)
    case = Case("0", "plain", 1, 4, ("float32",), "adam", (), one, one, saves=saves, fault=fault)
    assert expected(case, saves).must_refuse is refused


@pytest.mark.long
@pytest.mark.timeout(600)
def test_regressions_hold(tmp_path: Path):
    """The kept cases of one or two ranks."""
    cases = [decode(line) for line in REGRESSIONS.read_text().splitlines() if line.startswith("{")]
    few = tmp_path / "few"
    few.write_text("".join(f"{encode(c)}\n" for c in cases if max(c.save.ranks, c.restore.ranks) <= 2))
    ran = subprocess.run(
        [sys.executable, str(BENCH / "ckpt_fuzz.py"), "--file", str(few), "--jobs", "1"],
        capture_output=True, text=True, timeout=580,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert ", 0 failures" in ran.stdout
