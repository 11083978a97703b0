"""When the next saves come, what is under way, and in which words: from plain values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from view_scenes import restoring, saving

from transom_cli.ckpt.progress import CHECKING, LOADING, WRITING, Part, PartCounter, combined
from transom_cli.ckpt.schedule import NextSaves
from transom_cli.heartbeat.table import RankBeat
from transom_cli.view.document import Changes
from transom_cli.view.model import Operation
from transom_cli.view.outlook import operations, planned_saves, planned_saves_line, rank_operation
from transom_cli.view.read_memory import Memory

NOW = 10_000.0
PLAN = NextSaves(1000, every=40, persist=10, durable=1120)


def words(plan: NextSaves, step: int, step_time: float | None, stepped: float | None) -> str:
    return planned_saves_line(*planned_saves(plan, step, step_time, stepped, NOW), NOW)


@pytest.mark.parametrize(
    ("plan", "step", "step_time", "ago", "told"),
    [
        (PLAN, 980, 2.0, 0.0, "next save in 40 s, to disk in 4m 40s"),
        (PLAN, 980, 2.0, 1.5, "next save in 38 s, to disk in 4m 38s"),
        (PLAN, 980, None, 0.0, "next save at step 1,000, to disk at step 1,120"),
        (PLAN, 980, 2.0, None, "next save at step 1,000, to disk at step 1,120"),
        (PLAN, 980, 2.0, 41.0, "next save at step 1,000, to disk in 3m 59s"),  # it is late, or stands still
        (PLAN, 1000, 2.0, 0.0, "next save in 1m 20s, to disk in 4m 00s"),  # nothing new was heard since
        (PLAN, 1090, 2.0, 0.0, "next save in 1m 00s, also to disk"),
        (replace(PLAN, every=1, step=981, persist=50, durable=1000), 980, 2.0, 0.0, "next save to disk in 40 s"),
        (NextSaves(1000, 40, durable_from=NOW + 100), 980, 2.0, 0.0, "next save in 40 s, to disk in 2m 00s"),
        (NextSaves(1000, 40, durable_from=NOW - 100), 980, 2.0, 0.0, "next save in 40 s, also to disk"),
        (NextSaves(1000, 40, durable_from=NOW + 100), 980, None, 0.0, "next save at step 1,000"),
        (NextSaves(1000, 1, durable_from=None), 999, 1.0, 0.0, ""),
        (NextSaves(1000, 4, persist=2, durable=1004), 999, 1.0, 0.0, ""),  # nobody waits for what comes every 8 s
    ],
)
def test_when_it_saves_next(plan: NextSaves, step: int, step_time: float | None, ago: float | None, told: str) -> None:
    assert words(plan, step, step_time, None if ago is None else NOW - ago) == told


@given(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(1, 1000), st.integers(0, 999), st.integers(0, 10**10))
def test_the_next_saves_are_ahead_and_on_the_plan(first: int, every: int, persist: int, left: int, done: int) -> None:
    plan = NextSaves(first, every, persist, first + left % persist * every)
    step, durable = plan.after(done), plan.durable_after(done)
    assert durable is not None and done < step <= durable
    assert (step - first) % every == 0 and (durable - first) % every == 0
    assert step == first or step - every <= done
    assert plan.durable is not None and (durable == plan.durable or durable - every * persist <= done)


def part(what: str = WRITING, step: int = 3, done: int = 0, total: int = 10, **more: object) -> Part:
    return Part(what, step, str(more.pop("place", "/ckpt")), done, total, NOW - 9, **more)  # type: ignore[arg-type]


def test_parts_make_one_thing_and_what_is_not_heard_of_counts_as_not_done() -> None:
    assert combined([part(done=4, whole=30), part(done=10, whole=30)]) == (part(done=14, total=20, whole=30),)
    assert combined([part(done=4)])[0].of == 10 and combined([part(done=4, whole=30)])[0].of == 30
    assert combined([part(CHECKING, done=10), part(LOADING, done=2)]) == (part(LOADING, done=2),)
    two = combined([part(place="/b"), part(step=2), part(CHECKING)])
    assert [(one.what, one.step, one.place) for one in two] == [
        (CHECKING, 3, "/ckpt"), (WRITING, 2, "/ckpt"), (WRITING, 3, "/b"),
    ]  # fmt: skip
    assert combined([part("melting")]) == () == combined([])


@given(st.lists(st.builds(part, st.sampled_from((WRITING, CHECKING, LOADING)), st.integers(0, 2), st.integers(0, 10))))
def test_no_byte_is_done_twice_however_parts_are_put_together(parts: list[Part]) -> None:
    whole = combined(parts)
    assert combined([*combined(parts[:3]), *combined(parts[3:])]) == whole
    assert all(one.done <= one.total for one in whole)
    writing = [one for one in parts if one.what == WRITING]
    assert sum(one.done for one in whole if one.what == WRITING) == sum(one.done for one in writing)


def test_a_share_that_is_read_twice_is_not_more_than_all_of_it() -> None:
    counting = PartCounter(LOADING, 3, "", 10, NOW, whole=0)
    counting.add(8)
    counting.add(8)
    assert counting.part == Part(LOADING, 3, "", 10, 10, NOW)


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (part(done=5 << 30, total=12 << 30), "saving step 3 to disk: 5.0 of 12.0 GiB, 9.0 s so far"),
        (part(total=300 << 40, place="/far"), "copying step 3 to /far: 0 of 300 TiB, 9.0 s so far"),
        (part(CHECKING, 9, 1 << 29, 4 << 30), "restoring step 9 from disk: 512 of 4,096 MiB checked, 9.0 s so far"),
        (part(LOADING, 4, 1, 2, place=""), "restoring step 4 from memory: 1 of 2 B, 9.0 s so far"),
        (part(LOADING, 4, 0, 0, place="/far"), "restoring step 4 from /far, 9.0 s so far"),
    ],
)  # fmt: skip
def test_what_is_under_way_in_words(one: Part, told: str) -> None:
    assert [found.message for found in operations([one], "/ckpt", -1, NOW)] == [told]
    assert operations([one], "/ckpt", -1, one.began + 1.9) == ()


def test_a_save_that_a_dead_node_never_ended_goes_once_a_newer_step_is_on_disk() -> None:
    part = Part(WRITING, 30, "/ckpt", 2_412_000, 4_685_000, NOW - 47.0)
    copy = replace(part, place="/archive")
    assert [one.what for one in operations([part, copy], "/ckpt", 20, NOW)] == ["saving", "copying"]
    assert [one.what for one in operations([part, copy], "/ckpt", 40, NOW)] == ["copying"]


def rank(phase: str, age: float, number: int = 0) -> RankBeat:
    return RankBeat(number, 0, 5, 5, age, None, phase, 1, "R")


def test_ranks_that_tell_a_phase_and_nothing_else_are_counted() -> None:
    told = rank_operation([rank("restore", 30.0), rank("step", 30.0, 1), rank("restore", 9.0, 2)])
    assert told == Operation("restoring", -1, "restoring a checkpoint: 2 of 3 ranks", None, 2, 3, "ranks")
    assert rank_operation([rank("checkpoint", 1.0), rank("step", 99.0)]) is None  # a copy into memory, most likely
    assert rank_operation([]) is None
    first = rank_operation([rank("restore", 30.0)], first=True)
    assert first is not None and first.message == "looking for a checkpoint: 1 of 1 rank"


def test_a_pipe_is_told_once_of_a_restore_and_of_no_save_while_it_trains(tmp_path) -> None:
    changes, view = Changes(), restoring(tmp_path)
    told = [change for change in changes.of(view) if change.what == "restoring"]
    assert [(change.at, change.message) for change in told] == [(view.now - 11, view.operations[0].message)]
    assert [change for change in changes.of(view) if change.what == "restoring"] == []
    (tmp_path / "other").mkdir()
    busy = saving(tmp_path / "other")
    assert {one.what for one in busy.operations} == {"saving", "copying"}
    assert not {change.what for change in Changes().of(busy)} & {"saving", "copying"}
    ending = replace(busy, phase="stopping")
    assert {change.what for change in Changes().of(ending)} >= {"saving", "copying"}


def test_length_that_the_checkpointer_knows_gives_the_time_to_go(tmp_path: Path) -> None:
    view = replace(restoring(tmp_path), steps=None)
    assert Memory(coming=replace(PLAN, total=5000)).added_to(view).steps == 5000
    assert Memory(coming=PLAN).added_to(view).steps is None
    assert Memory(coming=replace(PLAN, total=5000)).added_to(replace(view, steps=60)).steps == 60
