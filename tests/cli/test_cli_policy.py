"""`transom policy`, and the policy beside the script of `transom run --dry-run`."""

from __future__ import annotations

import json
from pathlib import Path

from cli_support import transom

from transom_cli.config.load import load
from transom_cli.config.run_settings import rules_of
from transom_cli.layout import RunDir
from transom_cli.view.tables import policy_lines

RULES = """
[[policy.rules]]
name = "oom"
category = "cuda_oom"
pattern = "\\u001bmemory"
action = "relaunch"
budget = 2
within = "6h"
then = "stop"
"""


def test_it_prints_the_table_in_force_and_where_each_rule_comes_from(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(RULES)
    done = transom("policy", "-f", mine)
    assert done.returncode == 0, done.stderr
    head, first, *_, last = done.stdout.splitlines()
    assert head.split() == ["rule", "when", "action", "from"]
    assert first.split("  ")[0] == "oom" and first.endswith(str(mine)) and "\x1b" not in done.stdout
    assert "category cuda_oom" in first and "relaunch 2 times within 6h, then stop" in first
    assert last.split() == ["anything-else", "always", "relaunch", "default"]
    found = json.loads(transom("policy", "-f", mine, "--json").stdout)
    assert found["schema"] == 1 and found["rules"][0]["budget"] == 2 and found["rules"][0]["within"] == 21600.0
    assert [rule["name"] for rule in found["rules"]][-1] == "anything-else"


def test_a_dry_run_shows_it_beside_the_script(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(RULES)
    done = transom("run", "-f", mine, "--root", tmp_path, "--dry-run", "--", "true")
    assert done.returncode == 0 and "oom" not in done.stdout and done.stdout.startswith("#!/bin/bash")
    assert "first rule that matches decides" in done.stderr and "relaunch 2 times within 6h" in done.stderr


def test_a_run_shows_what_it_was_started_with(run: RunDir) -> None:
    kept = transom("policy", run.path, "--json", TRANSOM_POLICY__RULES='[{name = "later", action = "swap"}]')
    assert kept.returncode == 0, kept.stderr
    names = [rule["name"] for rule in json.loads(kept.stdout)["rules"]]
    assert "anything-else" in names and "later" not in names
    (run.path / "run.toml").write_text("")
    assert "no rules" in transom("policy", run.path).stdout, "as of a run of an older version"
    both = transom("policy", run.path, "-f", "x.toml")
    assert both.returncode == 2 and "-f" in both.stderr


def test_table_that_is_wider_than_the_terminal_has_three_lines_a_rule() -> None:
    rules = rules_of(load(None, {}, {}))
    wide = policy_lines(rules, 400)
    assert wide == policy_lines(rules) and len(wide) == 1 + len(rules)
    narrow = policy_lines(rules, 80)
    assert max(map(len, narrow)) <= 80 and narrow[0].endswith("(from default)") and narrow[1].startswith("  when    ")
