"""Goodput: every nanosecond of a run counts to exactly one kind of time (docs/goodput.md). Pure.

`logs` reads what launchers have written, `history` adds what the operator's journal knows, `partition` writes the
account forward in time, `account` sums it.
"""

from transom_cli.core.goodput.account import Account, Category, Sums, account, cost
from transom_cli.core.goodput.history import history
from transom_cli.core.goodput.logs import attempt_of
from transom_cli.core.goodput.shapes import NS, Attempt, Cause, History, Kind, Span

__all__ = [
    "NS",
    "Account",
    "Attempt",
    "Category",
    "Cause",
    "History",
    "Kind",
    "Span",
    "Sums",
    "account",
    "attempt_of",
    "cost",
    "history",
]
