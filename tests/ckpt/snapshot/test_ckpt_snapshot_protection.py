"""Groups, stripes and chunks; and with the coders: real bytes over them survive what they promise to."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.ckpt.snapshot.coder import coefficient, fold, solve
from transom_cli.ckpt.snapshot.protection import (
    MOST,
    NONE,
    Protection,
    Segment,
    Stripe,
    code,
    cut,
    groups,
    parse,
    stripes,
    survives,
)
from transom_cli.errors import UsageError

Files = Mapping[str, bytes]  # what a node holds, by name
protections = st.integers(1, 6).flatmap(lambda k: st.builds(Protection, st.just(k), st.integers(1, 4)))


def names(count: int) -> list[str]:
    return [f"n{i}" for i in range(count)]


# What is asked for


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("none", NONE),
        ("replica", Protection(1, 1)),
        ("xor:2", Protection(2, 1)),
        ("xor:127", Protection(127, 1)),
        ("rs:4+2", Protection(4, 2)),
        ("rs:1+3", Protection(1, 3)),
        ("rs:100+28", Protection(100, 28)),
    ],
)
def test_each_form_and_back(text: str, wanted: Protection) -> None:
    assert parse(text) == wanted
    assert str(wanted) == text


@pytest.mark.parametrize(("text", "short"), [("xor:1", "replica"), ("rs:1+1", "replica"), ("rs:3+1", "xor:3")])
def test_one_code_has_one_name(text: str, short: str) -> None:
    assert str(parse(text)) == short


@given(protections)
def test_what_is_printed_is_what_is_read(protection: Protection) -> None:
    assert parse(str(protection)) == protection


@pytest.mark.parametrize(
    "text", ["", "None", "xor", "xor:", "xor:0", "xor:-1", "xor:2 ", "xor:٣", "rs:4", "rs:4+0", "rs:0+2", "rs:4+2+1"]
)
def test_what_is_no_protection_is_told_with_the_forms_that_are(text: str) -> None:
    with pytest.raises(UsageError) as told:
        parse(text)
    assert told.value.what == f"`{text}` is not a protection of snapshots in memory"
    assert "`none`, `replica`, `xor:K` or `rs:K+M`" in told.value.why


@pytest.mark.parametrize(("text", "nodes"), [("xor:128", 129), ("rs:120+9", 129), ("rs:9999+9999", 19998)])
def test_too_large_groups_are_refused(text: str, nodes: int) -> None:
    with pytest.raises(UsageError, match=f"asks for groups of {nodes} nodes") as told:
        parse(text)
    assert "at most 128" in told.value.why


@pytest.mark.parametrize(("data", "parity"), [(0, 1), (1, 0), (-1, 1), (2, -1), (MOST, 1)])
def test_codes_that_are_none_cannot_be_made(data: int, parity: int) -> None:
    with pytest.raises(ValueError, match="no code has"):
        Protection(data, parity)


# Groups


@pytest.mark.parametrize(
    ("size", "protection", "wanted"),
    [
        (1, Protection(4, 2), (0, 0)),
        (2, Protection(4, 2), (1, 1)),
        (3, Protection(4, 2), (1, 2)),
        (4, Protection(4, 2), (2, 2)),
        (6, Protection(4, 2), (4, 2)),
        (11, Protection(4, 2), (9, 2)),
        (3, Protection(1, 1), (2, 1)),
        (6, NONE, (0, 0)),
    ],
)
def test_the_code_of_a_group(size: int, protection: Protection, wanted: tuple[int, int]) -> None:
    assert code(size, protection) == wanted


@given(st.integers(0, 60), protections, st.integers(1, 12), st.randoms(use_true_random=False))
def test_groups_are_all_nodes_in_even_sizes_spread_over_domains(
    count: int, protection: Protection, switches: int, draws: random.Random
) -> None:
    nodes = names(count)
    draws.shuffle(nodes)
    domains = {node: f"s{draws.randrange(switches)}" for node in nodes if draws.random() < 0.8}
    found = groups(nodes, protection, domains)
    assert sorted(node for group in found for node in group) == sorted(nodes)
    sizes = [len(group) for group in found]
    if count:
        assert len(found) == max(1, count // protection.nodes)
        assert max(sizes) - min(sizes) <= 1
        assert count < protection.nodes or protection.nodes <= min(sizes) <= max(sizes) < 2 * protection.nodes
    each = [Counter(domains.get(node, node) for node in group) for group in found]
    for domain in {domains.get(node, node) for node in nodes}:
        in_groups = [group[domain] for group in each]
        assert max(in_groups) - min(in_groups) <= 1
    assert found == groups(list(nodes), protection, dict(domains))


def test_a_switch_may_be_lost_where_groups_can_avoid_it() -> None:
    """24 nodes on 6 switches, 4 + 2: four groups with one node of each switch, so any two switches may go."""
    domains = {node: f"s{i // 4}" for i, node in enumerate(names(24))}
    found = groups(names(24), Protection(4, 2), domains)
    assert [sorted(domains[node] for node in group) for group in found] == [[f"s{i}" for i in range(6)]] * 4
    for pair in combinations(range(6), 2):
        assert survives(found, Protection(4, 2), [n for n in names(24) if int(domains[n][1:]) in pair])


def test_without_domains_neighbours_are_parted() -> None:
    assert groups(names(5), Protection(1, 1)) == (("n0", "n2", "n4"), ("n1", "n3"))


def test_without_protection_each_node_is_alone() -> None:
    assert groups(names(3), NONE) == (("n0",), ("n1",), ("n2",))
    assert survives(groups(names(3), NONE), NONE, [])
    assert not survives(groups(names(3), NONE), NONE, ["n1"])


def test_a_node_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="named twice"):
        groups(["a", "b", "a"], Protection(1, 1))


@given(st.integers(1, 40), protections, st.randoms(use_true_random=False))
def test_what_survives_is_at_most_m_of_each_group(count: int, protection: Protection, draws: random.Random) -> None:
    found = groups(names(count), protection)
    lost = {node for node in names(count) if draws.random() < 0.2}
    worst = [len(lost & set(group)) - min(protection.parity, len(group) - 1) for group in found]
    assert survives(found, protection, lost) == (max(worst) <= 0)
    assert survives(found, protection, [*lost, "stranger"]) == survives(found, protection, sorted(lost))


# Stripes and chunks


@given(st.integers(2, 30), protections)
def test_every_node_is_once_in_each_stripe_and_each_chunk_in_one(size: int, protection: Protection) -> None:
    group = names(size)
    k, m = code(size, protection)
    found = stripes(group, protection)
    assert len(found) == size
    for i, stripe in enumerate(found):
        assert stripe.parity == tuple(group[(i + row) % size] for row in range(m))
        assert sorted(stripe.data + stripe.parity) == sorted(group)
    covered = Counter(pair for stripe in found for pair in zip(stripe.data, stripe.chunks, strict=True))
    assert covered == Counter((node, chunk) for node in group for chunk in range(k))


def test_a_node_alone_has_no_stripes() -> None:
    assert stripes(["n0"], Protection(4, 2)) == ()
    assert stripes(names(3), NONE) == ()


def test_stripes_by_example() -> None:
    assert stripes(["a", "b", "c"], Protection(2, 1)) == (
        Stripe(data=("b", "c"), chunks=(0, 1), parity=("a",)),
        Stripe(data=("c", "a"), chunks=(0, 1), parity=("b",)),
        Stripe(data=("a", "b"), chunks=(0, 1), parity=("c",)),
    )


@given(st.lists(st.integers(0, 5000), max_size=6), st.integers(1, 9))
def test_chunks_are_all_bytes_in_order_and_equally_long(sizes: list[int], chunks: int) -> None:
    files = [(f"f{i}", size) for i, size in enumerate(sizes)]
    cuts = [cut(files, chunks, chunk) for chunk in range(chunks)]
    assert all(segment.length > 0 for found in cuts for segment in found)
    every = [(s.file, s.start + i) for found in cuts for s in found for i in range(s.length)]
    assert every == [(name, i) for name, size in files for i in range(size)]
    lengths = [sum(segment.length for segment in found) for found in cuts]
    each = -(-sum(sizes) // chunks) if sizes else 0
    full = -(-each // 64) * 64
    wanted = [max(0, min(full, sum(sizes) - full * chunk)) for chunk in range(chunks)]
    assert lengths == wanted


def test_chunks_by_example() -> None:
    files = [("a", 100), ("empty", 0), ("b", 160)]
    assert cut(files, 2, 0) == (Segment("a", 0, 100), Segment("b", 0, 92))
    assert cut(files, 2, 1) == (Segment("b", 92, 68),)


@pytest.mark.parametrize(("chunks", "chunk"), [(2, 2), (2, -1), (0, 0)])
def test_a_chunk_that_is_none_is_refused(chunks: int, chunk: int) -> None:
    with pytest.raises(ValueError, match="there is no chunk"):
        cut([("a", 10)], chunks, chunk)


# With real bytes


def lengths(files: Files) -> list[tuple[str, int]]:
    return [(name, len(data)) for name, data in files.items()]


def column(into: list[bytearray], stripe: Stripe, number: int, files: Files, factors: list[int]) -> None:
    """Fold a node's chunk into several rows, each with its own coefficient."""
    at = 0
    for segment in cut(lengths(files), len(stripe.data), stripe.chunks[number]):
        piece = memoryview(files[segment.file])[segment.start : segment.start + segment.length]
        for row, factor in zip(into, factors, strict=True):
            fold(memoryview(row)[at:], piece, factor)
        at += segment.length


def rows_of(stripe: Stripe, held: Mapping[str, Files]) -> list[bytearray]:
    sizes = [
        sum(segment.length for segment in cut(lengths(held[node]), len(stripe.data), chunk))
        for node, chunk in zip(stripe.data, stripe.chunks, strict=True)
    ]
    return [bytearray(max(sizes)) for _ in stripe.parity]


def encoded(stripe: Stripe, held: Mapping[str, Files]) -> list[bytearray]:
    k, parity = len(stripe.data), rows_of(stripe, held)
    for number, node in enumerate(stripe.data):
        column(parity, stripe, number, held[node], [coefficient(row, number, k) for row in range(len(parity))])
    return parity


def restored(
    plan: Sequence[Stripe],
    parity: Sequence[list[bytearray]],
    left: Mapping[str, Files],
    sizes: Mapping[str, list[tuple[str, int]]],
) -> dict[str, dict[str, bytes]]:
    """The files of the nodes that are not among `left`, from those that are and the parity that they hold."""
    made = {node: {name: bytearray(size) for name, size in sizes[node]} for node in sizes if node not in left}
    for stripe, rows in zip(plan, parity, strict=True):
        lost = [number for number, node in enumerate(stripe.data) if node not in left]
        usable = [row for row, node in enumerate(stripe.parity) if node in left][: len(lost)]
        for recipe in solve(len(stripe.data), lost, usable):
            chunk = bytearray(len(rows[0]))
            for row, factor in recipe.rows:
                fold(memoryview(chunk), memoryview(rows[row]), factor)
            for number, factor in recipe.columns:
                column([chunk], stripe, number, left[stripe.data[number]], [factor])
            node, at = stripe.data[recipe.lost], 0
            for segment in cut(sizes[node], len(stripe.data), stripe.chunks[recipe.lost]):
                end = segment.start + segment.length
                made[node][segment.file][segment.start : end] = chunk[at : at + segment.length]
                at += segment.length
            assert not any(chunk[at:]), "what a short chunk is filled with is zeros"
    return {node: {name: bytes(data) for name, data in files.items()} for node, files in made.items()}


def some_files(nodes: Sequence[str]) -> dict[str, dict[str, bytes]]:
    """A share a rank, of unequal sizes; a node of much, and one of nothing."""
    draws = random.Random(len(nodes))
    held = {
        node: {f"rank{i}": draws.randbytes(draws.choice((0, 1, 64, 700, 1900))) for i in range(draws.randrange(1, 4))}
        for node in nodes
    }
    return {**held, nodes[0]: {"rank0": draws.randbytes(1234), "rank1": draws.randbytes(77)}, nodes[-1]: {"rank0": b""}}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *(("replica", count) for count in range(2, 8)),
        *(("xor:2", count) for count in range(2, 9)),
        *(("rs:2+2", count) for count in range(2, 10)),
        *(("rs:4+2", count) for count in (3, 6, 11)),
        *(("rs:3+3", count) for count in (6, 7)),
    ],
)
def test_any_m_nodes_of_each_group_come_back_bit_for_bit(text: str, count: int) -> None:
    """Every set of lost nodes that the promise covers, in all groups at once."""
    protection, held = parse(text), some_files(names(count))
    sizes = {node: lengths(files) for node, files in held.items()}
    teams = groups(names(count), protection)
    plans = [stripes(team, protection) for team in teams]
    parity = [[encoded(stripe, held) for stripe in plan] for plan in plans]
    may_go = [
        [c for many in range(code(len(team), protection)[1] + 1) for c in combinations(team, many)] for team in teams
    ]
    for choice in product(*may_go):
        lost = {node for part in choice for node in part}
        assert survives(teams, protection, lost)
        found: dict[str, dict[str, bytes]] = {}
        for team, plan, rows in zip(teams, plans, parity, strict=True):
            left = {node: held[node] for node in team if node not in lost}
            found |= restored(plan, rows, left, {node: sizes[node] for node in team})
        assert found == {node: held[node] for node in lost}
