"""Tables of rules for tests: the one that transom comes with, and any that a user may write."""

from __future__ import annotations

from hypothesis import strategies as st

from transom_cli.config.load import default_rules
from transom_cli.config.policy import RuleTable
from transom_cli.core.diagnose import CAUSES
from transom_cli.core.policy import ACTIONS, ROLLBACK, SCOPES, Rule
from transom_cli.diagnose.clue import Category

DEFAULT = tuple(RuleTable.model_validate(rule).rule() for rule in default_rules())


def any_of(values: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.one_of(st.just(()), st.lists(st.sampled_from(values), min_size=1, max_size=3).map(tuple))


rules = st.builds(
    Rule,
    st.sampled_from(("a", "b", "c")),
    st.sampled_from(ACTIONS),
    category=any_of(tuple(c.value for c in Category)),
    cause=any_of(CAUSES),
    exit_code=any_of((1, 2, 93)),  # type: ignore[arg-type]
    signal=any_of((9, 15)),  # type: ignore[arg-type]
    before_first_step=st.sampled_from((None, None, True, False)),
    against_node=st.sampled_from((None, None, True, False)),
    scope=st.sampled_from(SCOPES),
    budget=st.sampled_from((None, 1, 2)),
    within=st.sampled_from((None, 10.0, 1000.0)),
    then=st.sampled_from(("", *ACTIONS)),
)
tables = st.lists(rules, max_size=4, unique_by=lambda rule: rule.name).map(tuple)

of_slowness = st.builds(
    Rule,
    st.sampled_from(("slow", "slower")),
    st.sampled_from(ACTIONS),
    reported=st.just(("slow_node", "slow_all")),
    lasting=st.sampled_from((0.0, 100.0)),
    budget=st.sampled_from((1, 2)),
    then=st.sampled_from(("", "stop", "ignore")),
)
of_loss = st.builds(
    Rule,
    st.sampled_from(("loss", "lost")),
    st.sampled_from((ROLLBACK, ROLLBACK, "relaunch", "stop", "ignore")),
    reported=st.just(("nan_loss",)),
    skip_batches=st.booleans(),
    budget=st.sampled_from((1, 2)),
    then=st.sampled_from(("", "stop", "ignore")),
)
report_rules = st.lists(st.one_of(of_slowness, of_loss), max_size=3, unique_by=lambda rule: rule.name).map(tuple)
