"""The live screen, headless: keys, what stays selected, what is told; nothing but words reaches the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import view_scenes as scenes
from textual import events
from textual.pilot import Pilot

from transom_cli.layout import RunDir
from transom_cli.view.model import NodeView, RunView
from transom_cli.view.read_history import TimeSeries
from transom_cli.view.text import Line, line
from transom_cli.view.watch.app import WatchApp
from transom_cli.view.watch.follow import Follow
from transom_cli.view.watch.pane import Pane

Play = Callable[[WatchApp, Pilot["RunView | None"]], Awaitable[None]]


class Shown(Follow):
    """What is looked at, as the test wants it."""

    def __init__(self, view: RunView, output: str = "") -> None:
        self.view, self.printed, self.looks, self.tells, self.rank = view, output, 0, False, 0

    def look(self) -> RunView:
        self.looks += 1
        return self.view

    def timeline(self, incident: str, width: int) -> tuple[str, ...]:
        return (f"the story of {incident}",) if self.tells else ()

    def time_series(self) -> TimeSeries | None:
        return TimeSeries(loss=((self.view.now - 600.0, 4.0), (self.view.now - 300.0, 3.0)))

    def output(self, view: RunView, by: int = 0) -> tuple[int | None, list[Line]]:
        self.rank += by
        return self.rank, [line(one) for one in self.printed.splitlines()]


def text(app: WatchApp) -> list[str]:
    compositor = app.screen._compositor
    return ["".join(segment.text for segment in strip) for strip in compositor.render_strips()]


def selected(app: WatchApp) -> str:
    item = app.query_one(Pane).selected
    return item.key if item is not None else ""


async def until(pilot: Pilot[RunView | None], holds: Callable[[], bool]) -> None:
    """The screen looks in a thread, and a busy machine takes its time."""
    for _ in range(200):
        if holds():
            return
        await pilot.pause(0.05)
    raise AssertionError("\n".join(text(cast(WatchApp, pilot.app))))


def play(
    follow: Shown,
    story: Callable[[WatchApp, Pilot[RunView | None]], Awaitable[None]],
    size: tuple[int, int] = (100, 30),
) -> WatchApp:
    app = WatchApp(follow, every=0.05)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause(0.3)
            await story(app, pilot)

    asyncio.run(run())
    return app


@pytest.fixture
def many(tmp_path: Path) -> RunView:
    return scenes.one_node_of_many(tmp_path)


def test_what_differs_is_listed_the_worst_first_and_all_on_request(many: RunView) -> None:
    async def story(app: WatchApp, pilot: Pilot[RunView | None]) -> None:
        shown = "\n".join(text(app))
        assert many.run_id in shown and "TRAINING" in shown
        assert [key for key in ("gpu050", "gpu017", "gpu031") if key in shown] == ["gpu050", "gpu017", "gpu031"]
        assert "gpu000 " not in shown and "[1] nodes (4 of 64)" in shown
        await pilot.press("a")
        await until(pilot, lambda: "[1] nodes (64 of 64)" in "\n".join(text(app)))

    play(Shown(many), story)


def test_the_selection_stays_on_its_node_when_rows_move(many: RunView) -> None:
    follow = Shown(many)

    async def story(app: WatchApp, pilot: Pilot[RunView | None]) -> None:
        await pilot.press("j")
        chosen = selected(app)
        assert chosen.startswith("node gpu")
        worse = NodeView("gpu005", "ranks", "isolated", 1, 1.0, 8, 8, "", "drained")
        follow.view = replace(many, node_views=(worse, *(n for n in many.node_views if n.node != "gpu005")))
        await until(pilot, lambda: selected(app) == chosen and "gpu005" in "\n".join(text(app)))
        gone = tuple(n for n in follow.view.node_views if f"node {n.node}" != chosen)
        follow.view = replace(follow.view, node_views=gone)
        await until(pilot, lambda: selected(app) != chosen)  # what stands in its place

    play(follow, story)


@pytest.mark.long
def test_moving_sorting_and_filtering(many: RunView) -> None:
    async def story(app: WatchApp, pilot: Pilot[RunView | None]) -> None:
        await pilot.press("a", "s", "s", "s")
        await pilot.press("g")
        assert selected(app) == "node gpu000", "by name"
        await pilot.press("G")
        assert selected(app) == "node gpu063"
        await pilot.press("S", "g")
        assert selected(app) == "node gpu063", "the other way round"
        await pilot.press("slash", *"gpu01", "enter")
        await until(pilot, lambda: "[1] nodes (10 of 64)" in "\n".join(text(app)))
        await pilot.press("escape")
        await until(pilot, lambda: "[1] nodes (64 of 64)" in "\n".join(text(app)))
        await pilot.press("slash", *"nosuch", "enter")
        await until(pilot, lambda: "no line contains `nosuch`" in "\n".join(text(app)))

    play(Shown(many), story)


def test_an_incident_is_opened_as_explain_tells_it_and_its_command_is_copied(many: RunView) -> None:
    async def story(app: WatchApp, pilot: Pilot[RunView | None]) -> None:
        await pilot.press("2", "enter")
        await pilot.pause(0.2)
        shown = "\n".join(text(app))
        assert "reading ..." in shown and f"transom explain {many.run_id} i1" in shown
        await pilot.press("y")
        await until(pilot, lambda: app.clipboard == f"transom explain {many.run_id} i1")
        assert text(app)[-1].startswith("copied (if the terminal supports it): transom explain")
        follow.tells = True
        await until(pilot, lambda: "the story of i1" in "\n".join(text(app)))  # as explain tells it
        await pilot.press("escape")
        await pilot.pause(0.2)
        assert "the story of" not in "\n".join(text(app))

    follow = Shown(many)
    play(follow, story)


def test_tabs_by_number_by_tab_and_by_mouse(many: RunView) -> None:
    async def story(app: WatchApp, pilot: Pilot[RunView | None]) -> None:
        for key, said in (
            ("3", "memory "),
            ("4", "step 7 loss"),
            ("5", "-5m 00s"),
            ("tab", "NODE"),
            ("shift+tab", "loss  3"),
        ):
            await pilot.press(key)
            await until(pilot, lambda said=said: said in "\n".join(text(app)))  # type: ignore[misc]
        await pilot.press("4")
        await until(pilot, lambda: selected(app) == "output 2")  # the newest line
        await pilot.press(">")
        await until(pilot, lambda: "output of rank 1" in "\n".join(text(app)))
        await pilot.click("#tabs", offset=(text(app)[app.query_one("#tabs").region.y].index("[2] incidents"), 0))
        await until(pilot, lambda: selected(app) == "incident i1")
        await pilot.click("#pane", offset=(5, 0), times=2)
        await until(pilot, lambda: f"transom explain {many.run_id} i1" in "\n".join(text(app)))

    play(Shown(many, "step 5 loss 3.1\nstep 6\nstep 7 loss\x1b[31m 3.0\n"), story)


def test_pause_help_and_leaving(many: RunView) -> None:
    follow = Shown(many)

    async def story(app: WatchApp, pilot: Pilot[RunView | None]) -> None:
        await pilot.press("p")
        await pilot.pause(0.2)
        before = follow.looks
        await pilot.pause(0.3)
        assert follow.looks == before and text(app)[-1].startswith("paused")
        await pilot.press("r")
        await until(pilot, lambda: follow.looks == before + 1)
        await pilot.press("question_mark")
        await until(pilot, lambda: "only reads; it changes nothing" in "\n".join(text(app)))
        for key in "qq":  # typed fast: both arrive before the page has closed
            app.screen.post_message(events.Key(key, key))
        await until(pilot, lambda: "checkpoint" in "\n".join(text(app)))
        await pilot.press("q")

    app = play(follow, story)
    assert app.return_value == many


def test_it_ends_with_the_run(tmp_path: Path) -> None:
    over = replace(scenes.healthy(tmp_path), phase="done", over=True, exit_code=0)

    async def story(app: WatchApp, pilot: Pilot[RunView | None]) -> None:
        await pilot.pause(0.3)

    assert play(Shown(over), story).return_value == over


HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202enode \x9b31m"


@pytest.mark.parametrize("size", [(60, 12), (80, 24), (200, 60)])
def test_hostile_words_move_no_cursor_and_no_line_is_too_wide(many: RunView, size: tuple[int, int]) -> None:
    bad = replace(many.node_views[0], state="suspect", note=HOSTILE)
    incident = replace(many.incidents[0], message=HOSTILE, marks=((many.now, "seen", HOSTILE),))
    view = replace(
        many, node_views=(bad, *many.node_views[1:]), reports=(HOSTILE,), incidents=(incident,), verdict=HOSTILE
    )

    async def story(app: WatchApp, pilot: Pilot[RunView | None]) -> None:
        for key in ("g", "enter", "w", "2", "enter", "4", "5", "question_mark"):
            await pilot.press(key)
            await pilot.pause(0.2)
            for drawn in text(app):
                assert "\x1b" not in drawn and "\x07" not in drawn and "\u202e" not in drawn and "\x9b" not in drawn
                assert len(drawn) <= size[0]

    play(Shown(view, HOSTILE), story, size)


def test_a_run_directory_that_goes_away_is_told(many: RunView, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "gone")
    app = WatchApp(Follow(run, lambda view: view), every=0.05)

    async def story() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "Cannot read the journal" in "\n".join(text(app)))

    asyncio.run(story())


def test_what_is_open_is_scrolled_where_it_is_longer_than_its_place(many: RunView) -> None:
    class Long(Shown):
        def timeline(self, incident: str, width: int) -> tuple[str, ...]:
            return tuple(f"line {n} of it" for n in range(60))

    async def story(app: WatchApp, pilot: Pilot[RunView | None]) -> None:
        await pilot.press("2", "enter")
        await until(pilot, lambda: "line 0 of it" in "\n".join(text(app)))
        assert "line 40 of it" not in "\n".join(text(app))
        for _ in range(6):
            await pilot.press("pagedown")
        await until(pilot, lambda: "line 59 of it" in "\n".join(text(app)))
        await pilot.press("pageup", "ctrl+u")
        await until(pilot, lambda: "line 59 of it" not in "\n".join(text(app)))

    play(Long(many), story)


def test_what_a_person_can_do_stays_in_sight_when_the_head_is_long(many: RunView) -> None:
    kept = tuple((f"gpu{n:03d}", "drained", "lost: no slurmd listens on it") for n in range(6))
    held = replace(many, phase="held", excluded=kept, verdict="Slurm holds the job: JobHeldUser")

    async def story(app: WatchApp, pilot: Pilot[RunView | None]) -> None:
        shown = "\n".join(text(app))
        assert f"scontrol release {many.job_id}" in shown and f"transom stop {many.run_id}" in shown
        assert "JobHeldUser" in shown and "q quit" in text(app)[-1]
        await pilot.press("2", "enter")
        await until(pilot, lambda: "reading ..." in "\n".join(text(app)))
        assert "q quit" in text(app)[-1] and app.screen.max_scroll_y == 0

    play(Shown(held), story, (80, 24))


def test_a_node_that_is_opened_shows_its_gpus_as_they_are_now(tmp_path: Path) -> None:
    follow = Shown(scenes.gpus(tmp_path))

    async def story(app: WatchApp, pilot: Pilot[RunView | None]) -> None:
        shown = "\n".join(text(app))
        assert "WORST" in shown and "gpu6 lost" in shown and "throttled (+2)" in shown
        while selected(app) != "node gpu004":
            await pilot.press("j")
        await pilot.press("enter")
        await until(pilot, lambda: "temp 61-86 C, slowdown at 87" in "\n".join(text(app)))
        assert "gpu2        86 C, moderate; throttled: hardware slowdown" in "\n".join(text(app))
        well = next(one for one in follow.view.node_views if one.node == "gpu000")
        better = tuple(replace(n, gpus=well.gpus) if n.node == "gpu004" else n for n in follow.view.node_views)
        follow.view = replace(follow.view, node_views=better)
        await until(pilot, lambda: "temp 58-65 C" in "\n".join(text(app)))

    play(follow, story)
