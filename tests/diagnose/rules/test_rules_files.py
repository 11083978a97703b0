"""The rules that ship: each knows its own examples best; and what a site's rule file may do wrong."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from transom_cli.diagnose.clue import Action, Category
from transom_cli.diagnose.logs import rule_files
from transom_cli.diagnose.logs.rule_files import check, load, parse
from transom_cli.diagnose.logs.rulebook import Level, Rule, compile_expression
from transom_cli.errors import UsageError

GOOD = """
[[rule]]
name = "site-fan"
category = "gpu_hardware"
any = ["fan failure"]
match = ['fan (?P<device>[0-9]+)']
examples = ["bmc: FAN FAILURE: fan 3"]
look_alikes = ["bmc: fan failure cleared"]
"""


def rules() -> tuple[Rule, ...]:
    return load()


def test_every_rule_knows_its_own_examples_best() -> None:
    assert check(rules()) == []


def test_every_built_in_expression_compiles() -> None:
    for rule in load():
        for expression in (*rule.match, *rule.unless, *rule.over):
            compile_expression(expression)


def test_every_category_but_the_unknown_has_a_rule() -> None:
    result = {rule.category for rule in rules()}
    assert set(Category) - result == set()


def test_what_stops_a_job_is_never_a_victims_word() -> None:
    signs = [rule for rule in rules() if rule.level is Level.SIGN and rule.action is Action.STOP]
    assert {rule.category for rule in signs} <= {
        Category.HOST_OOM,
        Category.DATA_LOADER,
        Category.SLURM_CANCELLED,
        Category.SLURM_LAUNCH,
        Category.USER_CODE,
    }


def test_a_site_adds_a_rule_and_replaces_one(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(
        GOOD + GOOD.replace("site-fan", "no-space").replace("fan failure", "volume is full").split("look_alikes")[0]
    )
    found = {rule.name: rule for rule in load([tmp_path])}
    assert found["site-fan"].source == str(tmp_path / "site.toml")
    assert found["no-space"].any == ("volume is full",)
    assert len(found) == len(rules()) + 1


def test_site_rule_that_misses_its_example_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(GOOD.replace("fan 3", "no number"))
    assert any("site-fan" in line and "no rule matches it" in line for line in check(load([path])))
    path.write_text(GOOD.replace("cleared", "cleared, fan 3"))
    assert any("matches a look-alike" in line for line in check(load([path])))


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(
        '[odd]\n[[rule]]\nname = "a"\ncategory = "gpu"\nlevel = "worst"\nany = ["x"]\nmatch = ["(?!a)"]\n'
        'weigth = 3\nover = ["(?=b)"]\n'
        '[[rule]]\ncategory = "cuda_oom"\nany = 3\nconfidence = "high"\n'
    )
    with pytest.raises(UsageError) as result:
        load([path])
    words = str(result.value)
    for part in (
        "unknown table [odd]",
        "unknown key weigth",
        "category must be one of",
        "'gpu'",
        "level must be one of",
        "at least 3 characters",
        "RE2 rejects '(?!a)'",
        "RE2 rejects '(?=b)'",
        "has no name",
        "any must be a list",
        "confidence must be a number",
    ):
        assert part in words, part  # fmt: skip


@pytest.mark.parametrize("text", ["[[rule]", "rule = 3"])
def test_file_without_toml_or_rules_is_refused(text: str) -> None:
    found, wrong = parse(text, "x.toml")
    assert found == [] and wrong


def test_missing_rules_folder_is_refused() -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load([Path("/nowhere/rules")])


def test_built_in_rules_are_kept_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(rule_files.OURS, tmp_path / "rules", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(rule_files, "OURS", tmp_path / "rules")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    parsed = rule_files.load()
    assert not (tmp_path / "rules" / "__pycache__").exists()
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert rule_files.load() == parsed
    (kept,) = (tmp_path / "rules" / "__pycache__").iterdir()
    with monkeypatch.context() as without_parser:
        without_parser.setattr(rule_files, "parse", None)
        assert rule_files.load() == parsed
    kept.write_bytes(kept.read_bytes()[:1000])
    assert rule_files.load() == parsed
    with (tmp_path / "rules" / "network.toml").open("a") as file:
        file.write('[[rule]]\nname = "of-the-site"\ncategory = "network_fabric"\nany = ["fan failure"]\n')
    assert {rule.name for rule in rule_files.load()} - {rule.name for rule in parsed} == {"of-the-site"}
