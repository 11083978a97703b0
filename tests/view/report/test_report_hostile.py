"""Strings of others that try to be markup, styles, templates or terminal codes stay strings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from report_parsed import Page
from view_made import JOB, Made

from transom_cli.core import events as ev
from transom_cli.layout import RunDir

Reported = Callable[[RunDir], str]
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style><style>*{display:none}</style>",
    "</title></svg></text><svg/onload=alert(1)>",
    "{{ 7*7 }}{% raw %}<b>",
    "]]><!-- --><!DOCTYPE html>",
    "&lt;b&gt; &#60;b&#62; javascript:alert(1)",
    "\x1b[2J\x1b]0;owned\x07\x9b31m\r\n\u202e\u2028\udcff",
]


def made(folder: Path, bad: str) -> RunDir:
    """A run with `bad` wherever others' words stand."""
    settings = {
        "name": bad,
        "steps": 120000,
        "job": {"partition": bad, "setup": [bad], "env": {"A": bad}},
        "k" + bad: bad,
    }
    one = Made(folder, nodes=2, settings=_toml(settings)).began(2.0).stepped().saved()
    node = f"gpu000{bad}"
    one.seen((300.0, ev.JobSeen(0, JOB, 0, "RUNNING", nodes=(*one.nodes, node))))
    one.seen((290.0, ev.RecoverySeen(0, f"{JOB}.0", f"l1{bad}", "seen", f"seen {bad}")))
    one.seen((280.0, ev.RecoverySeen(0, f"{JOB}.0", f"l1{bad}", "evidence", f"{bad} evidence")))
    one.seen((270.0, ev.RecoverySeen(0, f"{JOB}.0", f"l1{bad}", "diagnosed", f"why {bad}", f"hang{bad}", (node,))))
    one.seen((200.0, ev.NodeSilent(0, f"{JOB}.0", "gpu001", 11.0)))
    one.seen((199.0, ev.Probed(0, "i2/probe/gpu001/1", "gpu001", "FAIL", bad)))
    one.seen((100.0, ev.SlurmLost(0, bad)))
    attempt = one.run.attempt(JOB, 0)
    attempt.health.mkdir(parents=True)
    finding = {"node": node, "check": f"c{bad}", "verdict": f"v{bad}", "evidence": bad}
    facts = {"node": node, "check": "facts", "verdict": "pass", "evidence": f"kernel {bad}"}
    (attempt.health / "preflight.json").write_text(json.dumps({"findings": [finding, facts]}))
    one.found("gpu001", f"k{bad}", "fail", bad).found("gpu000", "k", f"v{bad}", f"w{bad}")
    one.report("slow_node", f"slow {bad}", "gpu001")
    one.operator(host=f"login{bad}")
    return one.run


def _toml(settings: dict[str, object]) -> str:
    import tomli_w

    return tomli_w.dumps(settings).encode("utf-8", "replace").decode()


@pytest.mark.parametrize("bad", HOSTILE)
def test_no_element_and_no_attribute_comes_of_it(bad: str, tmp_path: Path, reported: Reported) -> None:
    safe = Page(reported(made(tmp_path / "safe", "x" * len(bad))))
    text = reported(made(tmp_path / "bad", bad))
    page = Page(text)
    assert page.elements == safe.elements
    assert page.style == safe.style
    assert [c for c in text if not c.isprintable() and c != "\n"] == []
    assert sum(bad.split()[-1][-8:].strip() in told for told in page.texts) > 5 or not bad.isprintable()
    text.encode("utf-8")


def test_a_run_directory_with_such_a_name(tmp_path: Path, reported: Reported) -> None:
    run = made(tmp_path, "x")
    odd = run.path.rename(tmp_path / '"><script>alert(1)<\x1b[2J')
    page = Page(reported(RunDir(odd)))
    assert "script" not in {tag for tag, _ in page.elements}
    assert page.texts[0].startswith('"><script>alert(1)<\\x1b[2J')


def test_what_may_be_secret_is_left_out(tmp_path: Path, reported: Reported) -> None:
    settings = (
        'name = "demo"\n[job]\nsetup = ["export WANDB_API_KEY=hunter2 X=1", "curl https://ada:hunter2@site/x"]\n'
        '[job.env]\nHF_TOKEN = "hunter2"\nPLAIN = "hunter2"\n[x]\napi_key = "hunter2"\n'
        'monkey = "shown 1"\ntokenizer = "shown 2"\n'
    )
    text = reported(Made(tmp_path, settings=settings).began().stepped().operator().run)
    assert "hunter2" not in text
    assert "shown 1" in text and "shown 2" in text
    assert "job.env.PLAIN" in text and "X=1" in text and "(left out)@site/x" in text
