"""Remove secrets, names of people and machines, and addresses from text that leaves the site. Pure.

What is known exactly (values of variables, users, nodes) is replaced wherever it occurs; the rest is recognised by its
form. When in doubt, text is removed.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

SECRET = "[secret]"
_MIN_EXACT = 6  # characters; shorter values would also match ordinary words
_WORD = r"[A-Za-z0-9]"
_NAME = (
    r"(?:api|access|private|secret|auth|signing|encryption|ssh|account)[_-]?keys?|secrets?|tokens?|passw(?:or)?d|passwd|"
    r"passphrase|pwd|credentials?|authorization|webhooks?|cookies?|dsn|sas"
)
_SECRET_NAME = re.compile(rf"(?:^|[^A-Za-z])(?:{_NAME})(?:$|[^A-Za-z])", re.IGNORECASE)
_SECRET_ENDING = re.compile(r"(?:key|token|secret|passw(?:or)?d)$", re.IGNORECASE)
_FIELD = (
    rf"[A-Za-z0-9_.-]{{0,128}}?(?:(?:(?<![A-Za-z])|(?<=\\[nrt]))(?:{_NAME})(?![A-Za-z])|"
    r"[A-Za-z0-9](?:token|secret|password|apikey|_key))[A-Za-z0-9_.-]{0,64}"
)
_QUOTED = r"""\\?"[^"\n]*"|'[^'\n]*'"""
_VALUE = rf"""(?:{_QUOTED}|[^\s"',;}}\]]+)"""
_PREFIXES = "hf|ghp|gho|ghs|ghu|ghr|npm|pypi|dop_v1|sk|pk|rk|xox[a-z]|glpat|github_pat"
# Repetitions are bounded: a log may have a line of many megabytes.
_FORMS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), to)
    for pattern, to in (
        (r"(?s)-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", SECRET),
        (r"\b(Bearer|Basic|Digest|Token)\s+[A-Za-z0-9+/=._~-]{6,}", rf"\1 {SECRET}"),
        (r"\b(?:https?|wss?|ftp|s3|gs|az|abfss?)://[^\s\"'<>\\]+", "[url]"),
        (r"([a-z][a-z0-9+.-]{0,20}://)[^\s/@\"']{1,256}@[A-Za-z0-9.-]{0,255}", rf"\1{SECRET}@[host]"),
        (r"\b(pass(?:word|wd|phrase)\s+(?:is\s+)?)(?![:=])\S+", rf"\1{SECRET}"),
        (rf"\b(?:{_PREFIXES})[_-][A-Za-z0-9_-]{{10,}}", SECRET),
        (r"\b(?:AKIA|ASIA|AIza|ya29\.)[A-Za-z0-9_-]{10,}", SECRET),
        (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?", SECRET),
        (r"(?<![0-9a-f])[0-9a-f]{32,}(?![0-9a-f])", "[hex]"),
        (r"(?<![A-Za-z0-9_.+-])[A-Za-z0-9_.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+", "[email]"),
        (r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?::[0-9a-f]{2})*\b", "[mac]"),
    )
)
_ASSIGNED = re.compile(
    rf"""(?<![A-Za-z0-9_.-])(?P<name>{_FIELD})(?P<to>\\?["']?\s*(?:[:=]|=>)\s*)(?P<value>{_VALUE})|"""
    rf"""(?<![A-Za-z0-9_.-])(?P<flag>--?{_FIELD}\s+)(?!-)(?P<given>{_VALUE})""",
    re.IGNORECASE,
)
_COUNT = re.compile(r"[0-9][0-9.,e+]{0,11}[KMGBT]?")  # "tokens=4096" is no secret
_LONG = re.compile(r"[A-Za-z0-9+/=_-]{32,}")
_IPV4 = re.compile(r"(?<![\d.])(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?![\d.]*\d)")
_IPV6 = re.compile(
    r"(?<![0-9A-Fa-f:.])(?:(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|(?:[0-9A-Fa-f]{1,4}:){1,6}:(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4})*)?)(?![0-9A-Fa-f:])"
)
_DOMAIN = r"(?:\.(?!(?:jsonl?|log|beats|endpoint|memory|spent|gpus|nccl|txt)\b)[A-Za-z][A-Za-z0-9-]*)*"
_HOME = re.compile(r"/(home|users|Users)/[^/\s\"':,;]+")
_NUMBERED = re.compile(r"(.*[A-Za-z][^0-9]*)\d+$")


def is_secret_name(name: str) -> bool:
    """Return whether a variable or key of this name usually has a secret value."""
    return bool(_SECRET_NAME.search(name) or _SECRET_ENDING.search(name))


def secret_names(document: Any, above: str = "") -> list[str]:
    """Return the keys and list entries of nested settings that look like secrets."""
    if isinstance(document, Mapping):
        found: list[str] = []
        for key, value in document.items():
            name = f"{above}.{key}" if above else str(key)
            if isinstance(value, str) and value and is_secret_name(str(key)) and not value.startswith("/"):
                found.append(name)
            else:
                found += secret_names(value, name)
        return found
    if isinstance(document, (list, tuple)):
        return [name for value in document for name in secret_names(value, above)][:1]
    return [above] if isinstance(document, str) and SECRET in Redactor().text(document) else []


class Redactor:
    """Replaces the same name by the same word in all texts.

    Args:
        secrets: values to remove wherever they occur.
        users: names of people and accounts.
        hosts: names of nodes and other machines, in the order in which they are numbered.
        homes: home folders.
        keep_names: keep hosts, users, addresses and paths; only secrets are removed.
    """

    def __init__(
        self,
        secrets: Iterable[str] = (),
        users: Iterable[str] = (),
        hosts: Iterable[str] = (),
        homes: Iterable[str] = (),
        *,
        keep_names: bool = False,
    ) -> None:
        exact = {value for value in secrets if len(value) >= _MIN_EXACT}
        self._secrets = _any_of(exact) if exact else None
        self._keep_names = keep_names
        self._users = {name: f"user{i}" for i, name in enumerate(dict.fromkeys(users), 1) if name and name != "root"}
        folders = {re.escape(home) for home in (home.rstrip("/") for home in homes) if home}
        self._homes = _word("|".join(sorted(folders, key=len, reverse=True))) if folders else None
        self._hosts: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        names = [name for name in dict.fromkeys(hosts) if name and name != "localhost"]
        for name in names:
            self._host(name)
        stems = {m[1] for name in names if (m := _NUMBERED.match(name.partition(".")[0]))}
        short = {name.partition(".")[0] for name in names}
        forms = [rf"{re.escape(stem)}(?:\d+|\[[\d,-]+\])" for stem in sorted(stems, key=len, reverse=True)]
        forms += [re.escape(name) for name in sorted(short, key=len, reverse=True)]
        self._host_form = _word("|".join(forms), _DOMAIN) if forms else None
        found = sorted(self._users, key=len, reverse=True)
        self._user_form = _word("|".join(map(re.escape, found))) if found else None

    def text(self, text: str) -> str:
        if self._secrets is not None:
            text = self._secrets.sub(SECRET, text)
        for form, to in _FORMS:
            text = form.sub(to, text)
        text = _ASSIGNED.sub(_without_value, text)
        text = _LONG.sub(lambda m: SECRET if _is_random(m[0]) else m[0], text)
        return text if self._keep_names else self._names(text)

    def _names(self, text: str) -> str:
        if self._homes is not None:
            text = self._homes.sub("~", text)
        text = _HOME.sub(r"/\1/[user]", text)
        if self._host_form is not None:
            text = self._host_form.sub(lambda m: self._host(m[0]), text)
        if self._user_form is not None:
            text = self._user_form.sub(lambda m: self._users[m[0]], text)
        for form in (_IPV4, _IPV6):
            text = form.sub(lambda m: self._addresses.setdefault(m[0], f"ip{len(self._addresses) + 1}"), text)
        return text

    def _host(self, name: str) -> str:
        short = name.partition(".")[0]
        if "[" in short:
            return ",".join(map(self._host, _expanded(short)))
        return self._hosts.setdefault(short, f"node{len(self._hosts) + 1}")


def _without_value(found: re.Match[str]) -> str:
    name, to, value = found["name"] or found["flag"], found["to"] or "", found["value"] or found["given"]
    if "token" in name.lower() and _COUNT.fullmatch(value):
        return found[0]
    quote = value[: 2 if value[0] == "\\" else 1] if value[0] in "\\\"'" else ""
    return f"{name}{to}{quote}{SECRET}{quote}"


def _expanded(names: str) -> list[str]:
    """Return the names of a list such as gpu[017-019,021], at most 4,096 of them."""
    stem, _, inside = names.rstrip("]").partition("[")
    found: list[str] = []
    for part in inside.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            numbers = range(int(first), min(int(last or first), int(first) + 4096) + 1)
            found += [f"{stem}{number:0{len(first)}d}" for number in numbers]
    return found[:4096]


def _any_of(values: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(value) for value in sorted(values, key=len, reverse=True)))


def _word(form: str, after: str = "") -> re.Pattern[str]:
    return re.compile(rf"(?<!{_WORD})(?:{form})(?!{_WORD}){after}")


def _is_random(text: str) -> bool:
    """Return whether a long word looks like a key: letters of both cases and digits, and not like a path."""
    mixed = all(re.search(kind, text) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
    return mixed and (len(text) / (text.count("/") + 1) >= 12)
