"""The field and the code's matrix, against definitions that are slow and plain."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.ckpt.snapshot.coder import coefficient, multiples, product, quotient, solve

elements = st.integers(0, 255)


def by_hand(a: int, b: int) -> int:
    """Polynomials over GF(2) multiplied, then divided by the field's."""
    long = 0
    for bit in range(8):
        long ^= (a << bit) * (b >> bit & 1)
    for bit in range(14, 7, -1):
        long ^= (0x11D << bit - 8) * (long >> bit & 1)
    return long


def test_every_product_and_quotient() -> None:
    for a in range(256):
        assert multiples(a) == bytes(by_hand(a, b) for b in range(256))
        for b in range(256):
            assert product(a, b) == multiples(a)[b]
            if b:
                assert quotient(product(a, b), b) == a
    with pytest.raises(ZeroDivisionError):
        quotient(1, 0)


@pytest.mark.parametrize("k", [1, 2, 5, 100, 255])
def test_one_row_is_plain_xor_and_one_column_a_plain_copy(k: int) -> None:
    assert {coefficient(0, column, k) for column in range(k)} == {1}
    assert {coefficient(row, 0, k) for row in range(256 - k)} == {1}


@pytest.mark.parametrize(("row", "column", "k"), [(0, 4, 4), (0, -1, 4), (-1, 0, 4), (252, 0, 4), (0, 0, 0)])
def test_places_outside_the_matrix_are_refused(row: int, column: int, k: int) -> None:
    with pytest.raises(ValueError, match="no code over 256 elements"):
        coefficient(row, column, k)


def rebuilt(k: int, lost: tuple[int, ...], rows: tuple[int, ...], data: list[int]) -> list[int]:
    parity = dict.fromkeys(rows, 0)
    for row in rows:
        for column in range(k):
            parity[row] ^= by_hand(coefficient(row, column, k), data[column])
    found = []
    for recipe in solve(k, lost, rows):
        value = 0
        for column, factor in recipe.columns:
            value ^= by_hand(factor, data[column])
        for row, factor in recipe.rows:
            value ^= by_hand(factor, parity[row])
        found.append(value)
    return found


@pytest.mark.parametrize("k", range(1, 7))
def test_any_lost_columns_come_from_any_rows(k: int) -> None:
    data = [7 * column + 3 for column in range(k)]
    for many in range(min(k, 4) + 1):
        for lost in combinations(range(k), many):
            for rows in combinations(range(4), many):
                assert rebuilt(k, lost, rows, data) == [data[column] for column in lost]
                assert all(recipe.lost == column for recipe, column in zip(solve(k, lost, rows), lost, strict=True))


@given(st.data())
def test_any_lost_columns_come_from_any_rows_of_large_codes_in_any_order(data: st.DataObject) -> None:
    k = data.draw(st.integers(1, 250))
    many = data.draw(st.integers(1, min(k, 256 - k, 8)))
    lost = tuple(data.draw(st.lists(st.integers(0, k - 1), min_size=many, max_size=many, unique=True)))
    rows = tuple(data.draw(st.lists(st.integers(0, 255 - k), min_size=many, max_size=many, unique=True)))
    values = data.draw(st.lists(elements, min_size=k, max_size=k))
    assert rebuilt(k, lost, rows, values) == [values[column] for column in lost]


@pytest.mark.parametrize(("lost", "rows"), [([0], []), ([0], [0, 1]), ([0, 0], [0, 1]), ([0, 1], [1, 1])])
def test_recipes_need_as_many_rows_as_lost_columns(lost: list[int], rows: list[int]) -> None:
    with pytest.raises(ValueError, match="as many are needed, each once"):
        solve(4, lost, rows)
