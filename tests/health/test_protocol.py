"""Messages cut into lines, interleaved as srun interleaves the output of tasks."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from transom_cli.health.protocol import PIECE, Assembler, frames

MESSAGES = st.dictionaries(
    st.text(max_size=8).filter(lambda k: k != "node"),
    st.text(max_size=3 * PIECE) | st.integers() | st.none(),
    max_size=4,
)


@given(st.lists(st.tuples(st.sampled_from("abc"), MESSAGES), max_size=8), st.randoms())
def test_messages_arrive_complete_in_any_order_of_nodes(said: list, random) -> None:
    queues: dict[str, list[str]] = {"a": [], "b": [], "c": ["Warning: a library says something"]}
    for number, (node, message) in enumerate(said):
        queues[node] += frames(node, number, message)
    assert all(len(line) < 1000 and line.isascii() and "\n" not in line for q in queues.values() for line in q)
    assembler, received = Assembler(), []
    while any(queues.values()):
        node = random.choice([n for n, q in queues.items() if q])
        message = assembler.feed(queues[node].pop(0) + "\n")
        if message is not None:
            received.append(message)
    key = repr
    assert sorted(received, key=key) == sorted(({**m, "node": n} for n, m in said), key=key)


def test_a_message_that_lost_a_line_is_lost_and_the_next_one_is_not() -> None:
    first, second = list(frames("a", 1, {"x": "y" * 2000})), list(frames("a", 2, {"z": 1}))
    assembler = Assembler()
    assert [m for line in (first[0], *first[2:], *second) if (m := assembler.feed(line))] == [{"z": 1, "node": "a"}]


def test_nonsense_is_passed_over() -> None:
    assembler = Assembler()
    for line in ("", "~transom a 1 1/0 x", "~transom a 1 2/1 x", "~transom a 1 1/1 nonsense", "~transom a 1 x/y {}",
                 "~transom a 1 1/99999999 {", '~transom a 1 1/1 ["list"]'):  # fmt: skip
        assert assembler.feed(line) is None
    assert assembler.feed('~transom a 1 1/1 {"x":1}') == {"x": 1, "node": "a"}


def test_incomplete_messages_of_a_node_are_bounded() -> None:
    assembler = Assembler()
    for number in range(10_000):
        assembler.feed(f"~transom a {number} 1/2 x")
    assert len(assembler._open) <= 70
    whole = list(frames("b", 1, {"x": "y" * 1500}))
    answers = [assembler.feed(line) for line in itertools.chain(whole)]
    assert answers[-1] == {"x": "y" * 1500, "node": "b"}
