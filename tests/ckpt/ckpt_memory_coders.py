"""The coders of this machine, for tests that hold each of them to the same."""

from __future__ import annotations

import pytest

from transom_cli.ckpt.snapshot.coder import Coder, by_isal, by_numpy

NAMES = ("isa-l", "numpy")
_MISSING = {"isa-l": "libisal2 is not installed here", "numpy": "numpy is not installed here"}


def named(name: str) -> Coder:
    found = by_isal() if name == "isa-l" else by_numpy()
    if found is None:
        pytest.skip(_MISSING[name])
    assert found.name == name
    return found
