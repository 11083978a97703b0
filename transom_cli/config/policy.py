"""The rules of a policy as settings: each checked by itself, so that all that is wrong is told at once.

The default table, `policy.toml` of this package, is the weakest layer; what a run was started with stands whole in its
run.toml.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from transom_cli.config.values import many
from transom_cli.core.diagnose import CAUSES
from transom_cli.core.policy import ISOLATE, ROLLBACK, STOP, SWAP, Rule, compiled
from transom_cli.diagnose.clue import Category
from transom_cli.diagnose.oddity import ODDITIES, Trouble
from transom_cli.slurm.port import JobState

DEFAULT_TABLE = Path(__file__).resolve().parent.parent / "policy.toml"
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])", re.ASCII)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_OF_FAILURES = (
    *("category", "cause", "exit_code", "signal", "slurm_state"),
    *("before_first_step", "first_attempt", "against_node"),
)
_ENDED = tuple(state.value for state in JobState if state.ended)


def _one_of(what: str, valid: tuple[str, ...]) -> Any:
    def check(value: str) -> str:
        if value not in valid:
            raise ValueError(f"{value!r} is no {what}; there are {', '.join(valid)}")
        return value

    return AfterValidator(check)


def _seconds(value: Any) -> Any:
    found = _SPAN.fullmatch(value.strip()) if isinstance(value, str) else None
    if isinstance(value, str) and found is None:
        raise ValueError(f'{value!r} is not a length of time: a number of seconds, or as in "30m", "6h", "2d"')
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
            f"{value!r} is no expression that RE2 takes (it has no look-around and no back-references): {why}"
        ) from None
    return value


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
CategoryName = Annotated[str, _one_of("category", tuple(c.value for c in Category))]
Cause = Annotated[str, _one_of("cause", CAUSES)]
EndState = Annotated[str, _one_of("state in which Slurm ends a job", _ENDED)]
ExitCode = Annotated[int, Field(ge=1, le=255)]
Signal = Annotated[int, Field(ge=1, le=64)]
Expression = Annotated[str, AfterValidator(_expression)]
ActionName = Literal["relaunch", "swap", "isolate", "stop", "ignore", "rollback"]
Odd = Annotated[str, _one_of("thing that is reported", ODDITIES)]
_OF_LOSS = tuple(trouble.value for trouble in Trouble)
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
            raise ValueError(f"rule {self.name!r} has `within` or `then`, but no `budget` that could be spent")
        asked = (self.category, self.cause, self.pattern, self.exit_code, self.signal, self.slurm_state, self.reported)
        if self.action == STOP and not any(asked):
            raise ValueError(
                f"rule {self.name!r} stops whatever happened, and a stop needs evidence: name a category, a cause, a "
                'pattern, an exit code, a signal or a Slurm state; or give it another action, a budget, then = "stop"'
            )
        return self

    @model_validator(mode="after")
    def _of_reports(self) -> RuleTable:
        actions = {self.action, self.then}
        if not self.reported:
            if self.lasting or ROLLBACK in actions:
                asked = "`lasting`" if self.lasting else "a rollback"
                raise ValueError(f"rule {self.name!r} has {asked}, which is for what is `reported`: name what")
            return self
        never = [n for n in _OF_FAILURES if getattr(self, n) not in ((), None)]
        if never:
            raise ValueError(
                f"rule {self.name!r} would never fit: it asks for something `reported` and for {', '.join(never)}, and "
                "a report is about a training that has not failed"
            )
        if ROLLBACK in actions and not set(self.reported) <= set(_OF_LOSS):
            raise ValueError(f"rule {self.name!r} rolls back, which helps against {', '.join(_OF_LOSS)} alone")
        if actions & {SWAP, ISOLATE} and set(self.reported) & set(_OF_LOSS):
            raise ValueError(f"rule {self.name!r} would isolate or swap a node for a loss, which is no node's")
        if self.budget is None and actions - {STOP, "ignore", None}:
            raise ValueError(
                f"rule {self.name!r} ends a training that steps, and could do so for ever: give it a budget, as in "
                'budget = 2, and what follows, as in then = "stop"'
            )
        return self

    def rule(self) -> Rule:
        return Rule(**{**self.model_dump(), "then": self.then or ""})


def unique(rules: tuple[RuleTable, ...]) -> tuple[RuleTable, ...]:
    names = [rule.name for rule in rules]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two rules are called {', '.join(repr(n) for n in twice)}: budgets are counted by name")
    return rules


def _told(rules: tuple[RuleTable, ...]) -> list[dict[str, Any]]:
    return [rule.model_dump(mode="json", exclude_defaults=True) for rule in rules]


Rules = Annotated[tuple[RuleTable, ...], AfterValidator(unique), PlainSerializer(_told)]


def stacked(above: Any, below: Any) -> Any:
    """A stronger layer's rules come first, and one of the same name takes the weaker one's place."""
    if not (isinstance(above, list) and isinstance(below, list)):
        return above
    names = {rule.get("name") for rule in above if isinstance(rule, dict)}
    return [*above, *(rule for rule in below if not (isinstance(rule, dict) and rule.get("name") in names))]


def sourced(rules: Any, source: str) -> Any:
    """Each rule with the file that it comes from, where it does not say so itself (a run's own run.toml does)."""
    if not isinstance(rules, list):
        return rules
    return [{**rule, "source": rule.get("source", source)} if isinstance(rule, dict) else rule for rule in rules]
