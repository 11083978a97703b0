"""Goodput: every nanosecond of a run counts to exactly one kind of time (docs/goodput.md). Pure.

`history` merges the records of launchers and operator, `partition` divides the time of the run into spans, and
`account` sums them and makes time series.
"""

from transom_cli.core.goodput.account import Account as Account
from transom_cli.core.goodput.account import Category as Category
from transom_cli.core.goodput.account import Sums as Sums
from transom_cli.core.goodput.account import account as account
from transom_cli.core.goodput.account import cost as cost
from transom_cli.core.goodput.history import JournalHistory as JournalHistory
from transom_cli.core.goodput.history import attempt_of as attempt_of
from transom_cli.core.goodput.history import history as history
from transom_cli.core.goodput.model import NS as NS
from transom_cli.core.goodput.model import Attempt as Attempt
from transom_cli.core.goodput.model import Cause as Cause
from transom_cli.core.goodput.model import History as History
from transom_cli.core.goodput.model import Kind as Kind
from transom_cli.core.goodput.model import Launch as Launch
from transom_cli.core.goodput.model import Span as Span
from transom_cli.core.goodput.model import counted_from_zero as counted_from_zero
