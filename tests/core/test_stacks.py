"""Reading py-spy's dumps: two recorded ones (py-spy 0.4.3, a trainer of two threads), and whatever else may come."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.core.stacks import Dump, Frame, clean, parse, top

DATA = Path(__file__).parents[1] / "supervise" / "agent" / "data"
NATIVE = (DATA / "pyspy_native.txt").read_text()
PYTHON = (DATA / "pyspy_python.txt").read_text()


@pytest.mark.parametrize("text", [NATIVE, PYTHON], ids=["native", "python"])
def test_a_recorded_dump(text: str) -> None:
    dump = parse(text)
    assert dump.pid == 10924
    assert [(t.ident, t.name, t.active, t.gil) for t in dump.threads] == [
        ("10924", "MainThread", False, False),
        ("10926", 'prefetch "a" (1)', True, True),
    ]
    assert dump.main is dump.threads[0] and dump.holder is dump.threads[1]
    calls = [f for f in dump.threads[0].frames if f.python]
    assert [(f.function, f.line) for f in calls] == [("wait_for_batch", 7), ("step", 9), ("main", 12), ("<module>", 13)]


def test_where_a_thread_is() -> None:
    native, python = parse(NATIVE), parse(PYTHON)
    assert top(native.main) == "clock_nanosleep (libc.so.6) < wait_for_batch (train.py:7) < step (train.py:9)"
    assert top(python.main) == "wait_for_batch (train.py:7) < step (train.py:9) < main (train.py:12)"
    assert top(native.holder, 1) == "spin (train.py:5)"
    assert top(None) == ""


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        ("step (train (copy).py:3)", Frame("step", "train (copy).py", 3)),
        ("<module> (<string>:1)", Frame("<module>", "<string>", 1)),
        ("at::add(at::Tensor const&) (libtorch_cpu.so)", Frame("at::add(at::Tensor const&)", "libtorch_cpu.so", 0)),
        ("call (a::b (*)(int)) (core.cpp:41)", Frame("call (a::b (*)(int))", "core.cpp", 41)),
        ("f (x.py:" + "9" * 5000 + ")", Frame("f", "x.py", 999999999)),
    ],
)
def test_frames(line: str, frame: Frame) -> None:
    assert parse(f"Thread 1 (idle)\n    {line}\n").threads[0].frames == (frame,)


def test_the_main_thread_when_none_is_called_so() -> None:
    assert parse('Process 8: x\nThread 7 (idle): "a"\nThread 8 (idle)\n').main == parse("Thread 8 (idle)").threads[0]
    first = parse('Thread 0x7f00 (active): "a"\nThread 0x7f01 (idle): "b"').main
    assert first is not None and first.name == "a"


def test_what_is_cut_short_is_read_as_far_as_it_goes() -> None:
    for end in range(len(NATIVE)):
        dump = parse(NATIVE[:end])
        assert len(dump.threads) <= 2
        for thread, full in zip(dump.threads, parse(NATIVE).threads, strict=False):
            assert thread.frames == full.frames[: len(thread.frames)]


def test_nothing_of_a_name_controls_a_terminal() -> None:
    dump = parse('Thread 1 (idle): "\x1b]0;title\x07\x1b[31mred"\n    a\x1b[2Jb\x9b (x\r.py:1)\n')
    assert dump.threads[0].name == "]0;titlered"
    assert top(dump.main) == "ab (x.py:1)"


@given(st.text() | st.text(alphabet='Thread 1(active+gil):"\n .py0x') | st.lists(st.sampled_from(NATIVE.split("\n"))))
def test_any_text_has_an_answer(text: str | list[str]) -> None:
    dump = parse(text if isinstance(text, str) else "\n".join(text))
    assert isinstance(dump, Dump)
    assert (dump.main is None) == (not dump.threads)
    for thread in dump.threads:
        said = top(thread)
        assert said == clean(said) and "\n" not in said and len(said) <= 3 * 160 + 6
