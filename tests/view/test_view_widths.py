"""Any view at any width: no line is wider, colours change no word, and nothing reaches a terminal but text."""

from __future__ import annotations

import re
import string
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.core.operator.state import Phase
from transom_cli.health.gpu.status import LEVELS, GpuStatus, NodeGpus, with_gpus
from transom_cli.view.document import to_json
from transom_cli.view.model import IncidentView, NextStep, NodeView, RunView
from transom_cli.view.node_state import LETTERS
from transom_cli.view.runs import list_lines
from transom_cli.view.status import screen
from transom_cli.view.terminal import painted, text_of
from transom_cli.view.text import Line, cells, fit, plain
from transom_cli.view.watch.panels import Filter, node_items

NOW = 1_795_331_400.0
ODD = "\x1b]0;\x07\x9b\r\n\t\u202e\u200b\udcff\0é日本\U0001f4a5e\u0301"
words = st.text(st.sampled_from(string.ascii_letters + "    .,:'" + ODD), max_size=150)
names = st.text(st.sampled_from(string.ascii_lowercase + string.digits + "日\x1b"), min_size=1, max_size=20)
moments = st.none() | st.floats(NOW - 1e7, NOW + 1e7)
lengths = st.none() | st.floats(0, 1e7)
steps = st.integers(-1, 10**9)
numbers = st.none() | st.integers(0, 10**12)
devices = st.builds(
    GpuStatus,
    index=st.integers(0, 15),
    uuid=words,
    name=words,
    trouble=words,
    busy=numbers,
    heat=st.none() | st.integers(-40, 150),
    slowdown=numbers,
    warmth=st.sampled_from(["", "light", "moderate", "heavy"]),
    memory_used=numbers,
    memory_total=numbers,
    power=lengths,
    power_limit=lengths,
    throttle=st.none() | st.lists(words, max_size=2).map(tuple),
    ecc_uncorrected=numbers,
    ecc_corrected=numbers,
    rows_pending=st.none() | st.booleans(),
    rows_failed=st.none() | st.booleans(),
    pages_pending=st.none() | st.booleans(),
    xid=st.none() | st.integers(0, 200),
    xid_at=moments,
)
shown = st.builds(
    NodeGpus,
    node=st.just("n"),
    attempt=st.just("7.0"),
    wall=st.just(NOW),
    every=st.just(30.0),
    expected=st.integers(0, 16),
    answering=st.none() | st.integers(0, 16),
    worst=words,
    level=st.sampled_from(LEVELS),
    xid=st.none() | st.integers(0, 200),
    xid_at=moments,
    xid_gpu=st.none() | st.integers(0, 15),
    xids_since=moments,
)
nodes = st.builds(
    NodeView,
    node=names,
    role=st.sampled_from(["ranks", "spare", "out"]),
    state=st.sampled_from(sorted(LETTERS)),
    step=steps,
    beat_age=lengths,
    ranks=st.integers(0, 8),
    alive=st.integers(0, 8),
    phase=st.sampled_from(["", "step", "restore"]),
    note=words,
    gpus=st.none() | shown,
    gpus_age=st.sampled_from([0.0, 12.0, 371.0, 1e7]),
)
incidents = st.builds(
    IncidentView,
    id=st.sampled_from(["i1", "i12", "i1234"]),
    began=st.floats(NOW - 1e7, NOW),
    message=words,
    result=st.sampled_from(["recovered", "nothing", "examining", "waiting", "odd"]) | words,
    duration=lengths,
    marks=st.just(()),
    nodes=st.lists(names, max_size=3).map(tuple),
    isolated=st.lists(st.tuples(names, st.sampled_from(["drained", "excluded"])), max_size=2).map(tuple),
)
views = st.builds(
    RunView,
    run_id=st.from_regex(r"[a-z0-9.-]{1,100}-20261122-065825-c382", fullmatch=True),
    now=st.just(NOW),
    phase=st.sampled_from([phase.value for phase in Phase]),
    over=st.booleans(),
    since=st.floats(0, NOW),
    job_id=st.integers(0, 10**9),
    restarts=st.integers(0, 99),
    starts=st.integers(0, 99),
    step=steps,
    durable=steps,
    loss=st.none() | st.floats(),
    nodes=st.lists(names, max_size=20).map(tuple),
    spares=st.lists(names, max_size=3).map(tuple),
    excluded=st.lists(st.tuples(names, words, words), max_size=2).map(tuple),
    slurm_state=st.sampled_from(["", "PENDING", "RUNNING"]) | words,
    slurm_reason=words,
    slurm_lost=words,
    operator=st.booleans(),
    verdict=words,
    exit_code=st.none() | st.integers(0, 255),
    incidents=st.lists(incidents, max_size=5).map(tuple),
    memory=steps,
    memory_age=lengths,
    memory_protection=words,
    save_schedule=words,
    reports=st.lists(words, max_size=2).map(tuple),
    nccl=st.lists(words, max_size=2).map(tuple),
    step_breakdown=st.none(),
    step_breakdown_lines=st.just(()),
    path=st.just("") | st.text(string.ascii_letters + "/ '", min_size=1, max_size=120),
    checkpoints=st.just("") | st.text(string.ascii_letters + "/ '", min_size=1, max_size=120),
    submitted=moments,
    steps=st.none() | st.integers(1, 10**9),
    step_time=st.none() | st.floats(1e-6, 1e5),
    durable_age=lengths,
    node_views=st.lists(nodes, max_size=12).map(tuple),
    excluded_until=st.just(()),
    next_steps=st.lists(st.builds(NextStep, message=words, at=moments, then=words), max_size=2).map(tuple),
    restarts_without_progress=st.integers(0, 3),
    max_without_progress=st.integers(0, 3),
    operator_host=names,
    operator_at=moments,
    nodes_at=moments,
    slurm_queried_at=st.none() | st.just(NOW),
    slurm_error=words,
    slurm_start=moments,
)


def _lines(view: RunView, width: int | None, everything: bool) -> list[Line]:
    return [*screen(view, width, everything=everything), *list_lines([view], width)]


@settings(max_examples=60)
@given(views, shown, st.lists(devices, max_size=3))
def test_what_a_node_tells_when_it_is_opened_is_text(view: RunView, told: NodeGpus, gpus: list[GpuStatus]) -> None:
    one = NodeView("gpu\x1b[7m", "ranks", "ok", gpus=with_gpus(told, gpus))
    view = replace(view, node_views=(one, *view.node_views))
    items = node_items(view, Filter(everything=True), f"node {one.node}")[1]
    assert any(item.details for item in items)
    for item in items:
        assert all(plain(text).isprintable() for text in (item.line, *item.details))
    assert to_json(view).startswith("{")


@settings(max_examples=60)
@given(views, st.integers(60, 200), st.booleans())
def test_no_line_is_wider_than_slurm_source(view: RunView, width: int, everything: bool) -> None:
    assert [plain(one) for one in _lines(view, width, everything) if cells(plain(one)) > width] == []


@settings(max_examples=60)
@given(views, st.integers(60, 200) | st.none(), st.booleans())
def test_nothing_but_text_is_shown(view: RunView, width: int | None, everything: bool) -> None:
    for one in _lines(view, width, everything):
        assert plain(one).isprintable(), plain(one)


@settings(max_examples=60)
@given(views, st.integers(60, 200))
def test_colours_change_no_word(view: RunView, width: int) -> None:
    lines = screen(view, width)
    assert text_of(lines).plain == "\n".join(plain(one) for one in lines)
    for one in lines:
        assert re.sub(r"\x1b\[[0-9;]*m", "", painted(one)) == plain(one)


@settings(max_examples=60)
@given(views)
def test_a_pipe_gets_every_word(view: RunView) -> None:
    """Nothing is cut: what others have said stands there whole, in one line each."""
    told = "\n".join(plain(one) for one in screen(view, None))
    shown = [view.verdict, *view.reports, *(one.fault.title for one in view.incidents[:3])]
    for one in shown:
        assert "".join(c if c.isprintable() else repr(c)[1:-1] for c in one).strip() in told


@settings(max_examples=60)
@given(views)
def test_every_view_is_json(view: RunView) -> None:
    assert to_json(view).startswith("{")


@pytest.mark.parametrize("width", range(12))
def test_a_text_is_cut_to_any_width(width: int) -> None:
    for text in ("plain text", "日本日本日本日本", "e\u0301" * 20, "\x1b[31m"):
        assert cells(fit(text, width)) <= width
