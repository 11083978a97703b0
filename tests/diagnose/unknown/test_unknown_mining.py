"""Templates of healthy lines: what was seen is known, what differs in a number too, and nothing grows without bound."""

from __future__ import annotations

import string

from hypothesis import given, settings
from hypothesis import strategies as st

from transom_cli.diagnose.unknown.novel import Line, Tape
from transom_cli.diagnose.unknown.templates import LEAF, TEMPLATES, Miner, Template, Templates, mine

HEALTHY = [
    *(f"[rank{i % 8}]: step {i} loss {1 / (i + 1):.4f} lr 3.{i}e-05 tokens/s {i * 17}" for i in range(300)),
    *(
        f"2026-01-02 12:00:{i % 60:02d} INFO saved checkpoint /data/run/step-{i}/rank-0.pt in {i}.5 s"
        for i in range(50)
    ),
    *(f"gpu{i:03d}:{i}:{i} [{i % 8}] NCCL INFO Channel {i}/0 : 0[0] -> 1[1] via P2P/IPC" for i in range(60)),
    "WARNING 0 errors found while reading the index",
]
word = st.one_of(
    st.text(string.ascii_lowercase, min_size=1, max_size=6), st.sampled_from(("a", "b", "error", "failed"))
)
lines = st.lists(st.lists(st.one_of(word, st.integers(0, 10**6).map(str)), max_size=8).map(" ".join), max_size=30)


def test_a_training_has_few_kinds_of_lines() -> None:
    templates = mine(HEALTHY)
    assert templates.lines == len(HEALTHY) and len(templates.templates) == 4
    assert templates.templates[0] == Template(
        ("[rank0]:", "step", "0", "loss", "0", "lr", "0", "tokens/s", "0"), count=300
    )


def test_line_that_differs_in_variable_parts_is_known() -> None:
    templates = mine([*HEALTHY, "loaded shard alpha from node one ok", "loaded shard beta from node one ok"])
    for line in (
        "[rank7]: step 90210 loss 0.3 lr 1e-5 tokens/s 1",
        "2027-11-12 01:02:03 INFO saved checkpoint /other/place in 9 s",
        "[rank1]: step 5 loss 0.1 lr 1e-5 tokens/s 3\r[rank1]: step 6 loss 0.1 lr 1e-5 tokens/s 4",
        "\x1b[32m[rank7]: step 1 loss 0.3 lr 1e-5 tokens/s 1\x1b[0m",
        "loaded shard gamma from node one ok",
        "   ",
    ):
        assert templates.knows(line), line


def test_failure_word_is_never_a_variant_of_a_healthy_line() -> None:
    templates = mine(["worker a finished in 3 s on node", "worker b finished in 4 s on node", *HEALTHY])
    for line in (
        "worker c failed in 3 s on node",
        "worker killed finished in 3 s on node",
        "[rank1]: step 3 loss nan lr 1e-5 tokens/s 4",
        "2026-01-02 12:00:01 ERROR saved checkpoint /data/x in 3 s",
        "RuntimeError: flux",
    ):
        assert not templates.knows(line), line
    assert templates.knows("WARNING 3 errors found while reading the index"), "a healthy run said so as well"


@settings(max_examples=150, deadline=None)
@given(lines)
def test_every_line_that_was_mined_is_known(seen: list[str]) -> None:
    templates = mine(seen)
    assert all(templates.knows(line) for line in seen)
    assert sum(t.count for t in templates.templates) == sum(1 for line in seen if line.strip())


@settings(max_examples=150, deadline=None)
@given(lines, lines)
def test_what_one_run_knows_both_know_together(one: list[str], other: list[str]) -> None:
    both = mine(one).merge(mine(other))
    assert all(both.knows(line) for line in (*one, *other))
    assert both.lines == len(one) + len(other)
    assert sum(t.count for t in both.templates) == sum(1 for line in (*one, *other) if line.strip())


def test_nothing_merged_with_a_run_is_that_run() -> None:
    templates = mine(HEALTHY)
    assert Templates().merge(templates) == templates == templates.merge(Templates())


def test_any_number_of_kinds_keeps_within_bounds() -> None:
    miner = Miner()
    for i in range(6 * LEAF):
        miner.add("same " + chr(0x4E00 + i) + " " + chr(0x5E00 + i))
    assert len(list(miner.clusters)) == LEAF
    for i in range(TEMPLATES + 500):
        miner.add(f"{chr(0x4E00 + i)} alone")
    assert len(list(miner.clusters)) == TEMPLATES
    before = miner.find("same " + chr(0x4E00) + " " + chr(0x5E00))
    assert before is None or before.words[0] == "same"


def test_forgotten_template_is_learned_again() -> None:
    miner = Miner()
    miner.add("rare word")
    for i in range(2 * LEAF):
        miner.add("rare " + chr(0x4E00 + i))
        miner.add("rare " + chr(0x4E00 + i))
    assert miner.find("rare word") is None
    miner.add("rare word")
    assert miner.find("rare word") is not None


def test_the_frequent_template_outlives_the_rare_ones() -> None:
    miner = Miner()
    for i in range(3 * LEAF):
        miner.add("often here")
        miner.add("often " + chr(0x4E00 + i))
    assert miner.find("often here") is not None


# --- parting a log into its end and what came before ---


def test_the_end_of_each_file_is_near_the_failure_and_the_rest_was_healthy() -> None:
    tape = Tape(end=3, first=5, sample=100)
    for i in range(20):
        for rank in (0, 1):
            tape.add(Line(f"{rank}:{i}", f"rank-{rank}.log", i + 1, rank))
    assert [x.text for x in tape.near()] == ["0:17", "0:18", "0:19", "1:17", "1:18", "1:19"]
    healthy = tape.healthy()
    assert healthy[:5] == ("0:0", "1:0", "0:1", "1:1", "0:2")
    assert set(healthy) == {f"{rank}:{i}" for rank in (0, 1) for i in range(17)}, "all of it, while there is room"


def test_a_sample_is_bounded_and_spread_over_the_run() -> None:
    tape = Tape(end=1, first=10, sample=100)
    for i in range(20_000):
        tape.add(Line(str(i), "f", i))
    later = [int(x) for x in tape.healthy()[10:]]
    assert 40 <= len(later) <= 100 and later == sorted(later)
    assert all(any(lo <= x < lo + 5000 for x in later) for lo in range(0, 20_000, 5000))
    assert len({x % 16 for x in later}) > 8, "a log that repeats itself is not seen at one point of its turn alone"


def test_lines_long_before_the_end_are_not_near() -> None:
    tape = Tape(end=10)
    for at in (0.0, 500.0, 590.0):
        tape.add(Line(f"a{at}", "a", 1, 0, at))
    tape.add(Line("b", "b", 1, 1, 600.0))
    tape.add(Line("no time", "c"))
    assert {x.text for x in tape.near(60.0)} == {"a590.0", "b", "no time"}
