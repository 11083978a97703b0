"""What a run cost, and how it compares with earlier runs of its name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from report_made import RECORDED

from transom_cli.layout import RunDir
from transom_cli.view.read_history import read_report
from transom_cli.view.report.model import Plot
from transom_cli.view.report.page import page
from transom_cli.view.report.sections import document

PRICE = '[report]\ngpu_hour = 3.0\ncurrency = "EUR"\n'


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    for name in ("gpt-20261121-070000-00aa", "gpt-20261122-094300-00ab", "other-20261121-070000-00ac"):
        shutil.copytree(RECORDED / "node_killed", tmp_path / name)
    run = RunDir(tmp_path / "gpt-20261122-094300-00ab")
    run.settings.write_text(f"[job]\nnodes = 3\ngpus_per_node = 8\n{PRICE}")
    return run


def test_report_names_cost_in_gpu_hours_and_money(run: RunDir) -> None:
    found = document(read_report(run, now=2e9))
    assert "60 steps in 26 s" in found.hero and "1 incident cost 15 s" in found.hero
    assert "5.1 GPU-minutes, 0.26 EUR" in found.hero
    label, spent, money = found.figures[-1]
    assert label == "spent" and spent.endswith("GPU-minutes") and money.endswith("EUR")
    run.settings.write_text(run.settings.read_text().replace(PRICE, ""))
    assert "EUR" not in document(read_report(run, now=2e9)).hero


def test_report_compares_earlier_runs_of_the_same_name(run: RunDir) -> None:
    text = page(document(read_report(run, now=2e9)))
    assert "gpt-20261122-094300-00ab (this run)" in text and "gpt-20261121-070000-00aa" in text
    assert "other-20261121" not in text
    first = RunDir(run.path.parent / "gpt-20261121-070000-00aa")
    assert "Runs of the same name" not in page(document(read_report(first, now=2e9)))


def test_incidents_are_marked_on_the_loss_curve(run: RunDir) -> None:
    attempt = next(run.attempts.iterdir())
    launched = next(json.loads(one)["wall"] for one in (attempt / "launcher.jsonl").read_text().splitlines())
    lines = ({"wall": launched + n, "launch": 0, "step": n, "loss": 3.0 - n / 10} for n in range(10))
    (attempt / "progress.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    found = document(read_report(run, now=2e9))
    progress = next(one for one in found.sections if one.anchor == "progress")
    loss = next(one for one in progress.blocks if isinstance(one, Plot) and one.caption == "Loss")
    assert [tick.title.partition(":")[0] for tick in loss.marks] == ["i1, node2 lost"]
    assert 'class="tick' in page(found)
