"""What a view makes of a state."""

from __future__ import annotations

from transom_cli.core.operator.state import Phase, State
from transom_cli.view.model import build_view


def test_words_of_several_lines_are_told_in_one() -> None:
    said = "Cannot submit the job:\nsbatch: error: Invalid partition\n  name specified"
    view = build_view("r1", State(phase=Phase.FAILED, verdict=said), {}, 0.0, operator=False)
    assert view.verdict == "Cannot submit the job: sbatch: error: Invalid partition name specified"
