from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-transcripts",
        action="store_true",
        help="write what the core answers into tests/core/incidents/*.txt; commit only what you can explain",
    )
