"""The secrets of notification targets: a TOML file that only its owner can read, with a table for each target.

    [team]
    url = "https://hooks.slack.com/services/..."
    token = "..."                      # optional, sent as "Authorization: Bearer ..."
    headers = { "X-Api-Key" = "..." }  # optional

It is read for each message, so that a URL can be changed while an operator runs. No error quotes its content.
"""

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from transom_cli.errors import NotPermitted, TransomError, UsageError
from transom_cli.toml import tomllib

_BIG = 64 << 10  # bytes
_KEYS = ("url", "token", "headers")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


@dataclass(frozen=True)
class Secret:
    """Where to post, and with which headers. Never printed."""

    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def read_secret(path: Path, target: str) -> Secret:
    """Return the secret of a target. Raise TransomError if there is none, or if others could read it."""
    table = _document(path).get(target)
    if not isinstance(table, dict):
        raise UsageError(
            f"no secret for the notification target `{target}`",
            f"{path} has no table [{target}]",
            f'add the table: [{target}] and, below it, url = "https://..."',
        )
    if set(table) - set(_KEYS):
        raise _wrong(path, target, f"it has keys other than {', '.join(_KEYS)}")
    headers = table.get("headers", {})
    if not isinstance(headers, dict):
        raise _wrong(path, target, "headers is not a table of strings")
    token = table.get("token")
    if token is not None:
        headers = {**headers, "Authorization": f"Bearer {token}" if isinstance(token, str) else token}
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise _wrong(path, target, "a header or the token is not one line of plain ASCII text")
    return Secret(_url(path, target, table.get("url")), tuple(headers.items()))


def secret_values(path: object) -> list[str]:
    """Return every text in the secrets file, to remove it from what leaves the site; none if it cannot be read."""
    try:
        table = _document(Path(path)) if isinstance(path, str) else {}
    except TransomError:
        return []
    found, rest = [], list(table.values())
    while rest:
        value = rest.pop()
        if isinstance(value, dict):
            rest += value.values()
        elif isinstance(value, str):
            found.append(value)
    return found


def _document(path: Path) -> dict[str, Any]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        hint = f"create it with `install -m 600 /dev/null {path}`; docs/notifications.md describes its content"
        raise UsageError(f"cannot read the notification secrets, {path}", error.strerror or "", hint) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _BIG:
            raise UsageError(f"the notification secrets, {path}, must be a regular file of at most {_BIG} bytes")
        if status.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(status.st_mode) & 0o077:
            mode = f"its mode is {stat.S_IMODE(status.st_mode):04o}, its owner has the user ID {status.st_uid}"
            what = f"others may read the notification secrets, {path}"
            hint = f"chmod 600 {path}; if it was readable for long, replace the secrets as well"
            raise NotPermitted(what, mode, hint)
        data = os.read(descriptor, _BIG)
    finally:
        os.close(descriptor)
    try:
        document: dict[str, Any] = tomllib.loads(data.decode())
    except ValueError as error:  # only the position may be quoted
        where = re.search(r"at (line \d+, column \d+|end of document)", str(error))
        why = f"an error at {where[1]}" if where else "it is not UTF-8 text"
        raise UsageError(f"the notification secrets, {path}, are not TOML", why) from None
    return document


def _url(path: Path, target: str, url: object) -> str:
    if not isinstance(url, str) or not url:
        raise _wrong(path, target, "it has no url")
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        raise _wrong(path, target, "its url cannot be parsed") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine:
        raise _wrong(path, target, "its url is not http or https")
    if parts.username is not None or parts.password is not None:
        raise _wrong(path, target, "its url contains a user or password, which belong in headers")
    if not all("\x21" <= c <= "\x7e" for c in url):
        raise _wrong(path, target, "its url contains spaces, control characters or non-ASCII characters")
    return url.partition("#")[0]


def _wrong(path: Path, target: str, why: str) -> TransomError:
    return UsageError(f"cannot use the secret of the notification target `{target}`", f"{path}: {why}")
