"""The rules of a policy in the settings' layers: their order, their checks, and that a run keeps what it began with."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.config.load import freeze, load, thaw
from transom_cli.config.model import PolicySection, Settings
from transom_cli.config.policy import RuleTable
from transom_cli.config.run_settings import policy_of, rules_of
from transom_cli.core.policy import Rule
from transom_cli.diagnose.clue import Category
from transom_cli.errors import UsageError

OOM = """
[[policy.rules]]
name = "oom"
category = "cuda_oom"
pattern = 'out of \\w+ory'
action = "relaunch"
budget = 2
within = "6h"
then = "stop"
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def names(rules: tuple[Rule, ...]) -> list[str]:
    return [rule.name for rule in rules]


def default_names(tmp_path: Path) -> list[str]:
    return names(rules_of(load(None, site=None, user=tmp_path / "none")))


def test_a_stronger_layers_rules_come_first_and_the_default_table_last(tmp_path: Path) -> None:
    site = write(tmp_path / "site.toml", '[[policy.rules]]\nname = "site"\nsignal = 9\naction = "swap"\n')
    run = write(tmp_path / "run.toml", OOM)
    environ = {"TRANSOM_POLICY__RULES": '[{name = "env", action = "relaunch"}]'}
    rules = rules_of(load(run, {}, environ, site=site, user=tmp_path / "none"))
    assert names(rules) == ["env", "oom", "site", *default_names(tmp_path)]
    assert [r.source for r in rules[:4]] == ["TRANSOM_POLICY__RULES", str(run), str(site), "default"]
    assert rules[1] == Rule(
        "oom",
        "relaunch",
        ("cuda_oom",),
        pattern=r"out of \w+ory",
        budget=2,
        within=21600.0,
        then="stop",
        source=str(run),
    )


def test_a_rule_of_the_same_name_takes_the_weaker_ones_place(tmp_path: Path) -> None:
    run = write(tmp_path / "run.toml", '[[policy.rules]]\nname = "node-to-blame"\naction = "relaunch"\n')
    rules = rules_of(load(run, site=None, user=tmp_path / "none"))
    assert names(rules) == ["node-to-blame", *(n for n in default_names(tmp_path) if n != "node-to-blame")]
    assert rules[0].action == "relaunch"


def test_a_run_keeps_the_table_that_it_began_with(tmp_path: Path) -> None:
    requested = load(write(tmp_path / "run.toml", OOM), site=None, user=tmp_path / "none")
    kept = thaw(freeze(requested), "run.toml")
    assert kept == requested and rules_of(kept) == rules_of(requested) == policy_of(requested).rules
    assert thaw("", "run.toml").policy.rules == (), "one that was begun before there were tables has none"


tables = st.lists(
    st.builds(
        lambda **given: RuleTable.model_validate(given),
        name=st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True),
        action=st.sampled_from(("relaunch", "swap", "isolate", "ignore")),
        category=st.lists(st.sampled_from([c.value for c in Category]), max_size=3),
        pattern=st.sampled_from(("", r"it's \d+ \"quoted\" '''x''' \\ \t", "日本")),
        exit_code=st.lists(st.integers(1, 255), max_size=2),
        before_first_step=st.sampled_from((None, True, False)),
        scope=st.sampled_from(("job", "node")),
        budget=st.integers(1, 9),
        within=st.sampled_from((None, 0.5, 60.0, "6h", 1e9)),
        then=st.sampled_from((None, "stop", "swap")),
        source=st.text(st.characters(codec="utf-8"), min_size=1, max_size=9),
    ),
    max_size=4,
    unique_by=lambda table: table.name,
)


@settings(max_examples=60, deadline=None)
@given(tables)
def test_any_policy_table_round_trips(rules: list[RuleTable]) -> None:
    given_as = Settings(policy=PolicySection(rules=tuple(rules)))
    assert rules_of(thaw(freeze(given_as), "run.toml")) == rules_of(given_as)


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    text = """
[[policy.rules]]
name = "one"
category = ["gpu", "cuda_oom"]
cause = "oops"
patern = "x"
action = "restart"
[[policy.rules]]
name = "two"
pattern = '(?=look)'
slurm_state = "RUNNING"
within = "6 hours"
exit_code = 256
action = "stop"
[[policy.rules]]
name = "three"
action = "stop"
[[policy.rules]]
name = "four"
action = "swap"
then = "stop"
"""
    run = write(tmp_path / "run.toml", text)
    with pytest.raises(UsageError) as refused:
        load(run, site=None, user=tmp_path / "none")
    lines = refused.value.why.splitlines()
    found = {line.removeprefix(f"{run}: ").partition(": ")[0]: line for line in lines}
    keys = (
        "[0].category[0] [0].cause[0] [0].patern [0].action [1].pattern [1].slurm_state[0] [1].within [1].exit_code[0]"
    )
    assert set(found) >= {f"policy.rules{key}" for key in keys.split()} | {"policy.rules[2]", "policy.rules[3]"}
    assert all(c.value in found["policy.rules[0].category[0]"] for c in Category), "with the valid ones"
    assert "no such key; valid are name, category" in found["policy.rules[0].patern"]
    assert "no look-around" in found["policy.rules[1].pattern"]
    assert "a stop needs evidence" in found["policy.rules[2]"]
    assert "no `budget`" in found["policy.rules[3]"]


def test_two_rules_of_a_file_have_two_names(tmp_path: Path) -> None:
    run = write(tmp_path / "run.toml", OOM + OOM)
    with pytest.raises(UsageError, match="1 setting is invalid") as refused:
        load(run, site=None, user=tmp_path / "none")
    assert "two rules have the name 'oom'" in refused.value.why


@pytest.mark.parametrize(("text", "seconds"), [('"90s"', 90.0), ('"1.5h"', 5400.0), ('"2d"', 172800.0), ("60", 60.0)])
def test_lengths_of_time(tmp_path: Path, text: str, seconds: float) -> None:
    run = write(tmp_path / "run.toml", OOM.replace('"6h"', text))
    assert load(run, site=None, user=tmp_path / "none").policy.rules[0].within == seconds


def test_a_report_cannot_requeue_the_job(tmp_path: Path) -> None:
    text = '[[policy.rules]]\nname = "slow"\nreported = ["slow_node"]\naction = "requeue"\nbudget = 1\n'
    with pytest.raises(UsageError, match="is an action for failures: use `isolate`"):
        load(write(tmp_path / "run.toml", text), site=None, user=tmp_path / "none")
