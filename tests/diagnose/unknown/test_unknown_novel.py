"""What is new near a failure: found and reported once, the most telling first; and the draft of a rule for it."""

from __future__ import annotations

import re
import stat
import sys
from pathlib import Path

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.diagnose.clue import Action, Category
from transom_cli.diagnose.unknown.draft import LITERAL, draft, expression
from transom_cli.diagnose.unknown.novel import Line, New, find_new
from transom_cli.diagnose.unknown.store import BYTES, load, save
from transom_cli.diagnose.unknown.templates import Template, Templates, mine
from transom_cli.errors import TransomError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

STEP = "[rank{}]: step {} loss 0.{} ok"
TEMPLATES = mine(STEP.format(i % 4, i, i) for i in range(100))


def near(*said: tuple[int, str]) -> list[Line]:
    """A few healthy lines of each of four ranks, and then what these ranks said."""
    calm = [Line(STEP.format(rank, i, i), f"rank-{rank}.log", i + 1, rank) for i in range(5) for rank in range(4)]
    return [*calm, *(Line(text, f"rank-{rank}.log", 6 + i, rank) for i, (rank, text) in enumerate(said))]


def test_a_healthy_end_has_nothing_new() -> None:
    assert find_new(TEMPLATES, near()) == ()
    assert find_new(TEMPLATES, []) == ()


def test_the_failure_comes_before_its_stack_and_its_consequences() -> None:
    found = find_new(
        TEMPLATES,
        near(
            (3, "[rank3]: shuffling buffers of epoch two"),
            (2, "[rank2]: Traceback (most recent call last):"),
            (2, '[rank2]:   File "/app/train.py", line 31, in <module>'),
            (2, "[rank2]: FluxError: capacitor 12 lost its phase"),
            *((rank, f"[rank{rank}]: peer 2 closed the connection") for rank in (0, 1, 3)),
        ),
    )
    result = [new.first.text for new in found]
    assert result[0] == "[rank2]: FluxError: capacitor 12 lost its phase"
    assert result[1] == "[rank0]: peer 2 closed the connection"
    assert result.index("[rank3]: shuffling buffers of epoch two") < result.index(
        "[rank2]: Traceback (most recent call last):"
    )
    assert found[1].count == 3 and found[1].ranks == (0, 1, 3)
    assert found[0].template == "[rank#]: FluxError: capacitor # lost its phase"
    assert found[0].words == "unrecognised, first seen at rank-2.log:9: [rank2]: FluxError: capacitor 12 lost its phase"


def test_equal_lines_are_ordered_by_first_occurrence() -> None:
    lines = [
        Line("AlphaError: late", "a", 1, 0, 20.0),
        Line("BetaError: early", "b", 1, 1, 10.0),
        Line("AlphaError: late", "c", 1, 2, 15.0),
        Line("x", "d", 1, 3, 1.0),
    ]
    found = find_new(Templates(), lines)
    assert [new.first.file for new in found[:1]] == ["b"]
    (alpha,) = [new for new in found if new.first.text.startswith("Alpha")]
    assert alpha.first.at == 15.0 and alpha.ranks == (0, 2)


def test_line_of_one_rank_ranks_above_a_line_of_all() -> None:
    everyone = [(rank, "gathering of pieces begins") for rank in range(4)]
    found = find_new(TEMPLATES, near(*everyone, (1, "zeta went round again"), (1, "zeta went round again")))
    assert [new.first.text for new in found] == ["zeta went round again", "gathering of pieces begins"]


def test_shown_text_has_no_control_characters() -> None:
    (new,) = find_new(Templates(), [Line("bad \x1b]0;x\x07 Error", "log\x1b[31m", 3)])
    assert "\x1b" not in new.words and "\x07" not in new.words


# --- the draft of a rule ---


def rule_of(line: str) -> dict[str, object]:
    (new,) = find_new(Templates(), [Line(line, "rank-2.log", 9, 2)])
    (rule,) = tomllib.loads(draft(new))["rule"]
    assert isinstance(rule, dict)
    return rule


def test_a_draft_recognises_its_line_and_others_of_its_kind() -> None:
    rule = rule_of("[rank2]: FluxError: capacitor 12 (of 0x7fab) lost its  phase in /app/train.py at 3.5e-3")
    assert rule == {
        "name": rule["name"],
        "category": Category.UNKNOWN.value,
        "any": ["FluxError: capacitor"],
        "match": rule["match"],
        "scope": "job",
        "action": Action.REQUEUE.value,
        "note": "learned from rank-2.log:9",
        "examples": ["[rank2]: FluxError: capacitor 12 (of 0x7fab) lost its  phase in /app/train.py at 3.5e-3"],
    }
    assert re.fullmatch(r"site-fluxerror-capacitor-[0-9a-f]{6}", str(rule["name"]))
    expression = re2.compile(str(rule["match"]))
    assert expression.search("[rank7]: FluxError: capacitor 990 (of 0x1) lost its phase in /b.py at -1")
    assert not expression.search("[rank7]: FluxError: capacitor 990 found its phase in /b.py at -1")


def test_no_draft_without_six_literal_characters() -> None:
    assert draft(New("# #", 1, Line("12 boo 3", "f", 1))) == ""


NASTY = [
    r"C:\path 'quoted' \"and\" \\ back lost",
    "tab\there and more words",
    "ends with a quote of words'",
    "triple ''' quotes in the middle of it",
    "a+b*c?(d)[e]{f}|g^h$ symbols.everywhere",
    "日本語の エラー that failed",
]


@pytest.mark.parametrize("line", NASTY)
def test_nasty_lines_make_rules_that_load_and_match(line: str) -> None:
    check(line)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80))
def test_any_line_makes_a_rule_that_loads_and_matches(line: str) -> None:
    check(line)


def check(line: str) -> None:
    found = find_new(Templates(), [Line(line, "f", 1)])
    text = draft(found[0]) if found else ""
    if not text:
        return
    (rule,) = tomllib.loads(text)["rule"]
    (example,) = rule["examples"]
    assert all(len(literal) >= LITERAL and literal in example for literal in rule["any"])
    assert re2.search(rule["match"], example), rule["match"]
    assert re.search(expression(example), example)
    assert re.fullmatch(r"[a-z0-9-]+", rule["name"])


# --- the file ---


def test_templates_come_back_from_their_file_which_only_the_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "templates.json"
    save(path, TEMPLATES)
    assert load(path) == TEMPLATES and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load(tmp_path / "none.json") == Templates()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=40), max_size=10))
def test_any_lines_templates_can_be_kept(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("kept") / "templates.json"
    save(path, mine(lines))
    assert load(path) == mine(lines)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"schema": 2, "lines": 0, "templates": []}',
        '{"schema": 1, "lines": 0, "templates": [{"count": -1, "words": ["a"]}]}',
        '{"schema": 1, "lines": 0, "templates": [{"count": 1, "words": []}]}',
        '{"schema": 1, "lines": 0, "templates": [{"count": 1, "words": [3]}]}',
        '{"schema": 1, "lines": "x", "templates": []}',
        '{"schema": 1, "lines": 1, "templates": {"py/object": "os.system"}}',
        "[" * 100_000,
    ],
)
def test_foreign_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "templates.json"
    path.write_text(text)
    with pytest.raises(TransomError, match="does not contain a run's templates") as refused:
        load(path)
    assert f"rm {path}" in refused.value.hint


def test_a_file_is_of_bounded_size(tmp_path: Path) -> None:
    path = tmp_path / "templates.json"
    many = tuple(Template(tuple(f"{chr(0x4E00 + i)}{j}" * 60 for j in range(64)), 1) for i in range(400))
    save(path, Templates(many, 400))
    assert path.stat().st_size < BYTES and 0 < len(load(path).templates) < 400
    path.write_bytes(b" " * (BYTES + 1))
    with pytest.raises(TransomError, match="does not contain a run's templates"):
        load(path)
