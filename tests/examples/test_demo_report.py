"""The demo's last words: it says "bit-identical" only of what is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "demo"))

from report import compare, incident_table

RESULT = {"schema": 1, "step": 120, "sha256": "ab" * 32, "tensors": 160, "bytes": 4471072}
INCIDENT = {
    "id": "i1",
    "result": "recovered",
    "marks": [
        [1001.25, "seen", "rank 2 on node3 ended with exit code 1"],
        [1002.25, "diagnosed", "node2 lost: " + "no slurmd listens on it " * 20],
        [1013.5, "first_step", "step 41 done"],
    ],
}


def test_equal_results_are_called_bit_identical() -> None:
    equal, lines = compare(RESULT, dict(RESULT))
    assert equal
    assert lines[-1] == "bit-identical: 160 parameter and optimizer tensors, 4,471,072 bytes, after step 120"
    assert sum("ab" * 32 in line for line in lines) == 2  # both hashes are shown


@pytest.mark.parametrize("change", [{"sha256": "cd" * 32}, {"step": 119}, {"tensors": 159}, {"bytes": 1}])
def test_a_difference_is_never_called_bit_identical(change: dict[str, object]) -> None:
    equal, lines = compare(RESULT, {**RESULT, **change})
    assert not equal
    assert "bit-identical" not in "\n".join(lines) and "DIFFERENT" in lines[-1]


def test_two_missing_hashes_prove_nothing() -> None:
    nothing = {**RESULT, "sha256": ""}
    assert not compare(nothing, dict(nothing))[0]


def test_table_shows_durations_and_fits_the_width() -> None:
    lines = incident_table(INCIDENT, "node2", 1000.0, 80)
    assert all(len(line) <= 80 for line in lines)
    assert "node dies" in lines[1] and "node2" in lines[1]
    assert "1.25 s  first sign" in lines[2]
    assert "1.00 s  diagnosed" in lines[3] and lines[3].endswith("...")
    assert "11.25 s  training again   step 41 done" in lines[4]
    assert lines[-1].endswith("next step: 13.5 s.")


def test_an_incident_without_a_later_step_claims_none() -> None:
    stopped = {**INCIDENT, "result": "stopped", "marks": INCIDENT["marks"][:2]}
    assert "next step" not in "\n".join(incident_table(stopped, "node2", 1000.0, 80))
