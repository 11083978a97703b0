"""Notification targets as settings. Each is validated separately, so that all problems are reported at once. Pure.

Settings contain no secrets, since they are frozen into run.toml. URLs and tokens are in the file `notify.secrets`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from transom_cli.config.validation import Line, Text, Texts, empty_as_unset, many, matching, one_of, unique
from transom_cli.notify.events import DEFAULT_KINDS, KINDS
from transom_cli.notify.messages import FIELDS, Target, unknown_fields

_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=%-]*(@[A-Za-z0-9][A-Za-z0-9.-]*)?")
_SECRET_KEYS = ("url", "token", "headers", "webhook", "password")
_OF_KIND = {"command": ("argv",), "mail": ("to", "sender", "program"), "slack": (), "webhook": ()}


def _template(value: str) -> str:
    unknown = unknown_fields(value)
    if unknown:
        raise ValueError(f"unknown field {', '.join(f'{{{u}}}' for u in unknown)}; valid are {', '.join(FIELDS)}")
    return value


def _program(value: tuple[str, ...]) -> tuple[str, ...]:
    if value and not value[0]:
        raise ValueError("the first word, the name of the program, is empty")
    if value and "/" in value[0] and not value[0].startswith("/"):
        raise ValueError(f"{value[0]!r} is neither an absolute path nor a name to search in PATH")
    return value


def _no_url(value: Any) -> Any:
    """Reject URLs: settings are frozen and shown, and so are error messages."""
    if isinstance(value, str) and re.search("https?:/", value):
        raise ValueError("must be the path of a file with URLs, not a URL")
    return value


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")]
SecretsPath = Annotated[Path | None, BeforeValidator(empty_as_unset), BeforeValidator(_no_url)]
Event = Annotated[str, one_of("an event", KINDS)]
_NO_ADDRESS = "{!r} is not a mail address such as ops@example.org"
Address = Annotated[str, matching(_ADDRESS, _NO_ADDRESS)]
Program = Annotated[Texts, AfterValidator(_program), BeforeValidator(many)]


class TargetTable(BaseModel):
    """One `[[notify.targets]]`, as `telling.target.Target`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    kind: Literal["slack", "webhook", "command", "mail"]
    events: Annotated[tuple[Event, ...], BeforeValidator(many)] = DEFAULT_KINDS
    argv: Program = ()
    to: Annotated[tuple[Address, ...], BeforeValidator(many)] = ()
    sender: Annotated[str, matching(re.compile(f"({_ADDRESS.pattern})?"), _NO_ADDRESS)] = ""
    program: Program = ("/usr/sbin/sendmail",)
    subject: Annotated[Line, AfterValidator(_template)] = ""
    text: Annotated[Text, AfterValidator(_template)] = ""

    @model_validator(mode="after")
    def _whole(self) -> TargetTable:
        required = {"command": "argv", "mail": "to"}.get(self.kind)
        if required and not getattr(self, required):
            raise ValueError(f"target {self.name!r} of kind {self.kind} needs `{required}`")
        if self.kind == "mail" and not self.program:
            raise ValueError(f"target {self.name!r} has an empty `program`")
        own = {key for keys in _OF_KIND.values() for key in keys}
        strange = sorted((self.model_fields_set & own) - set(_OF_KIND[self.kind]))
        if strange:
            raise ValueError(f"target {self.name!r} of kind {self.kind} does not use {', '.join(strange)}")
        return self

    def target(self) -> Target:
        return Target(**self.model_dump())


def unknown_target_key(key: str) -> str:
    """Return the message for an unknown key of a target. The value of a possible secret is never shown."""
    if key in _SECRET_KEYS:
        return (
            "is a secret and does not belong in settings: put it into the file `notify.secrets` (docs/notifications.md)"
        )
    return f"no such key; valid are {', '.join(TargetTable.model_fields)}"


def _serialize(targets: tuple[TargetTable, ...]) -> list[dict[str, Any]]:
    return [target.model_dump(mode="json", exclude_unset=True) for target in targets]


Targets = Annotated[
    tuple[TargetTable, ...], unique("targets", "their secrets are found by name"), PlainSerializer(_serialize)
]
