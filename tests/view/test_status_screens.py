"""Every screen as text: `screens/<scene>.txt` has it at 80 and at 120 columns, and as a pipe gets it.

`pytest tests/view --rewrite-screens` writes them anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from view_scenes import SCENES

from transom_cli.core.operator.state import Phase
from transom_cli.view.model import RunView
from transom_cli.view.status import screen
from transom_cli.view.text import plain

SCREENS = Path(__file__).parent / "screens"


def _drawn(view: RunView) -> str:
    parts = []
    for title, width in (("80 columns", 80), ("120 columns", 120), ("a pipe", None)):
        lines = "\n".join(plain(one) for one in screen(view, width))
        parts.append(f"--- {title}\n{lines}\n")
    return "\n".join(parts)


@pytest.mark.parametrize("name", SCENES)
def test_a_screen_is_as_it_was(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    drawn, file = _drawn(SCENES[name](tmp_path)), SCREENS / f"{name}.txt"
    if request.config.getoption("--rewrite-screens", default=False):
        file.write_text(drawn)
    assert drawn == file.read_text()


def test_every_phase_has_a_screen(tmp_path: Path) -> None:
    phases = set()
    for name, scene in SCENES.items():
        (tmp_path / name).mkdir()
        phases.add(scene(tmp_path / name).phase)
    assert phases == {phase.value for phase in Phase}


def test_no_screen_is_left_over() -> None:
    assert {file.stem for file in SCREENS.iterdir()} == set(SCENES)
