"""Goodput: every nanosecond of a run counts to exactly one kind of time (docs/goodput.md). Pure.

`history` merges the records of launchers and operator, `partition` divides the time of the run into spans, and
`account` sums them and makes time series.
"""

from transom_cli.core.goodput.account import Account, Category, Sums, account, cost
from transom_cli.core.goodput.history import JournalHistory, attempt_of, history
from transom_cli.core.goodput.model import NS, Attempt, Cause, History, Kind, Launch, Span

__all__ = [
    "NS",
    "Account",
    "Attempt",
    "Category",
    "Cause",
    "History",
    "JournalHistory",
    "Kind",
    "Launch",
    "Span",
    "Sums",
    "account",
    "attempt_of",
    "cost",
    "history",
]
