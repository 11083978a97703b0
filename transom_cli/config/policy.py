"""The rules of a policy as settings. Each is validated separately, so that all problems are reported at once.

The default table, `policy.toml` of this package, is the weakest layer. A run's own run.toml has the complete table.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from transom_cli.config.validation import many, one_of, unique
from transom_cli.core.diagnose import CAUSES
from transom_cli.core.policy import ISOLATE, REQUEUE, ROLLBACK, STOP, SWAP, Rule, compiled
from transom_cli.diagnose.clue import ODDITIES, Category, Silent, Trouble
from transom_cli.slurm.port import JobState

DEFAULT_TABLE = Path(__file__).resolve().parent.parent / "policy.toml"
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])", re.ASCII)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_OF_FAILURES = (
    *("category", "cause", "exit_code", "signal", "slurm_state"),
    *("before_first_step", "first_attempt", "against_node", "repeats", "on_nodes"),
)
_EVIDENCE = ("category", "cause", "pattern", "exit_code", "signal", "slurm_state", "reported")
_ENDED = tuple(state.value for state in JobState if state.ended)


def _seconds(value: Any) -> Any:
    found = _SPAN.fullmatch(value.strip()) if isinstance(value, str) else None
    if isinstance(value, str) and found is None:
        raise ValueError(f'{value!r} is not a duration: use seconds, or a form such as "30m", "6h", "2d"')
    return float(found[1]) * _UNITS[found[2]] if found else value


def _expression(value: str) -> str:
    if not value:
        return value
    import re2

    try:
        compiled(value)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error.args[0]
        raise ValueError(
            f"{value!r} is not a valid RE2 expression (RE2 has no look-around and no back-references): {why}"
        ) from None
    return value


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
CategoryName = Annotated[str, one_of("a category", tuple(c.value for c in Category))]
Cause = Annotated[str, one_of("a cause", CAUSES)]
EndState = Annotated[str, one_of("a state in which Slurm ends a job", _ENDED)]
ExitCode = Annotated[int, Field(ge=1, le=255)]
Signal = Annotated[int, Field(ge=1, le=64)]
Expression = Annotated[str, AfterValidator(_expression)]
ActionName = Literal["relaunch", "swap", "isolate", "requeue", "stop", "ignore", "rollback"]
Odd = Annotated[str, one_of("a reported anomaly", ODDITIES)]
_OF_LOSS = tuple(trouble.value for trouble in Trouble)
_ROLLED_BACK = (*_OF_LOSS, Silent.CORRUPTION.value)
OneOrMany = BeforeValidator(many)


class RuleTable(BaseModel):
    """One `[[policy.rules]]`, as `core.policy.Rule`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Name
    category: Annotated[tuple[CategoryName, ...], OneOrMany] = ()
    cause: Annotated[tuple[Cause, ...], OneOrMany] = ()
    pattern: Expression = ""
    exit_code: Annotated[tuple[ExitCode, ...], OneOrMany] = ()
    signal: Annotated[tuple[Signal, ...], OneOrMany] = ()
    slurm_state: Annotated[tuple[EndState, ...], OneOrMany] = ()
    before_first_step: bool | None = None
    first_attempt: bool | None = None
    against_node: bool | None = None
    repeats: int = Field(default=0, ge=0)
    on_nodes: int = Field(default=0, ge=0)
    reported: Annotated[tuple[Odd, ...], OneOrMany] = ()
    lasting: Annotated[float, Field(ge=0), BeforeValidator(_seconds)] = 0.0
    action: ActionName
    skip_batches: bool = True
    scope: Literal["job", "node"] = "job"
    budget: int | None = Field(default=None, ge=1)
    within: Annotated[float, Field(gt=0), BeforeValidator(_seconds)] | None = None
    then: ActionName | None = None
    source: str = ""

    @model_validator(mode="after")
    def _whole(self) -> RuleTable:
        if self.budget is None and (self.within is not None or self.then is not None):
            raise ValueError(f"rule {self.name!r} has `within` or `then`, but no `budget`")
        if self.action == STOP and not any(getattr(self, name) for name in _EVIDENCE):
            raise ValueError(
                f"rule {self.name!r} stops the run for any failure, but a stop needs evidence: add a category, a "
                "cause, a pattern, an exit code, a signal or a Slurm state; or use another action with a budget "
                'and then = "stop"'
            )
        return self

    @model_validator(mode="after")
    def _of_reports(self) -> RuleTable:
        actions = {self.action, self.then}
        if not self.reported:
            if self.lasting or ROLLBACK in actions:
                what = "`lasting`" if self.lasting else "a rollback"
                raise ValueError(f"rule {self.name!r} has {what}, which needs `reported`: name the anomaly")
            return self
        never = [n for n in _OF_FAILURES if getattr(self, n) not in ((), None, 0)]
        if never:
            raise ValueError(
                f"rule {self.name!r} can never match: it requires `reported` and {', '.join(never)}, but anomalies are "
                "reported of a training that has not failed"
            )
        if REQUEUE in actions:
            raise ValueError(f"rule {self.name!r} requeues the job, which is an action for failures: use `isolate`")
        if ROLLBACK in actions and not set(self.reported) <= set(_ROLLED_BACK):
            raise ValueError(f"rule {self.name!r} rolls back, which helps only against {', '.join(_ROLLED_BACK)}")
        if actions & {SWAP, ISOLATE} and set(self.reported) & set(_OF_LOSS):
            raise ValueError(
                f"rule {self.name!r} would isolate or swap a node because of the loss, which no node causes"
            )
        if self.budget is None and actions - {STOP, "ignore", None}:
            raise ValueError(
                f"rule {self.name!r} ends a training that makes progress, and could do so endlessly: add a budget, "
                'such as budget = 2, and what follows, such as then = "stop"'
            )
        return self

    def rule(self) -> Rule:
        return Rule(**{**self.model_dump(), "then": self.then or ""})


def _serialize(rules: tuple[RuleTable, ...]) -> list[dict[str, Any]]:
    return [rule.model_dump(mode="json", exclude_defaults=True) for rule in rules]


Rules = Annotated[tuple[RuleTable, ...], unique("rules", "budgets are counted by name"), PlainSerializer(_serialize)]


def merge_named(above: Any, below: Any) -> Any:
    """Merge two layers: the stronger layer's entries come first and replace weaker ones of the same name."""
    if not (isinstance(above, list) and isinstance(below, list)):
        return above
    names = {rule.get("name") for rule in above if isinstance(rule, dict)}
    return [*above, *(rule for rule in below if not (isinstance(rule, dict) and rule.get("name") in names))]


def with_source(rules: Any, source: str) -> Any:
    """Add to each rule the file that it comes from, unless it has one (as in a run's own run.toml)."""
    if not isinstance(rules, list):
        return rules
    return [{**rule, "source": rule.get("source", source)} if isinstance(rule, dict) else rule for rule in rules]
