"""Collect a redacted copy of what explains a run, within a size. The run may be another user's: links are not followed.

Scripts, submission options and evidence of the ranks are left out: they contain too much of what is not transom's.
"""

import gzip
import io
import json
import os
import platform
import pwd
import re
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from transom_cli import __version__
from transom_cli.config.sources import user_file
from transom_cli.core.codec import plain
from transom_cli.errors import TransomError
from transom_cli.files import listed
from transom_cli.layout import AttemptDir, RunDir
from transom_cli.notify.secrets import secret_values
from transom_cli.redact import Redactor, is_secret_name
from transom_cli.supervise.handoff_record import attempt_numbers
from transom_cli.supervise.journal import fold, read_events
from transom_cli.supervise.lease import read_holder
from transom_cli.toml import tomllib

JOURNAL, LOG, OTHER = 4 << 20, 128 << 10, 1 << 20  # most bytes of a file: the end of it is taken
LOGS = 64  # logs of ranks at most, of the newest launches
ATTEMPTS = 50  # the newest
FILES = 256  # of one kind in an attempt
_PACKAGES = ("transom-cli", "torch", "pydantic", "pyslurm", "numpy")
_DIGITS = re.compile(r"(\d+)")


@dataclass
class Contents:
    """files: names in the archive and their redacted content, in order. left_out: what did not fit, and why."""

    files: list[tuple[str, bytes]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def redactor_of(run: RunDir, *, keep_names: bool = False) -> Redactor:
    """Return a Redactor that knows the run's secrets, its users and its hosts."""
    settings = _settings(run)
    env, notify, on_call = (_table(settings, *keys) for keys in (("job", "env"), ("notify",), ("run",)))
    secrets = [str(value) for value in env.values()] if isinstance(env, Mapping) else []
    secrets += [value for name, value in os.environ.items() if is_secret_name(name)]
    own = str(user_file(os.environ).with_name("secrets.toml"))
    secrets += [*secret_values(notify.get("secrets")), *secret_values(own)]
    secrets += [found.decode("ascii", "replace").strip()] if (found := _end(run.secret, OTHER, os.geteuid())) else []
    users, homes, hosts = _people(run, on_call.get("on_call")), [str(Path.home())], _hosts(run)
    for user in users:
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            continue
        homes.append(entry.pw_dir)
        secrets += [part for part in entry.pw_gecos.split(",") if " " in part.strip()]  # the full name
    return Redactor(secrets, users, hosts, homes, keep_names=keep_names)


def collect(run: RunDir, redactor: Redactor, most: int) -> Contents:
    """Collect redacted files within `most` bytes, the most useful ones first."""
    found, left, owner = Contents(), most, run.path.stat().st_uid
    for name, data in _everything(run, owner):
        text = redactor.text(data.decode("utf-8", "replace")).encode()
        shown = redactor.text(name)
        if len(text) > left:
            found.left_out.append(f"{shown}: more than the size limit")
            continue
        left -= len(text)
        found.files.append((shown, text))
    found.files.sort(key=lambda one: one[0])
    return found


def write_archive(target: Path, files: list[tuple[str, bytes]]) -> None:
    """Write a new .tar.gz of mode 0600, or nothing. The same files give the same bytes. Raises OSError."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with (
            os.fdopen(descriptor, "wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name, data in files:
                entry = tarfile.TarInfo(f"bundle/{name}")
                entry.size, entry.mode = len(data), 0o600
                archive.addfile(entry, io.BytesIO(data))
    except BaseException:
        target.unlink(missing_ok=True)  # a part of an archive is of no use, and the next try needs the name
        raise


def _everything(run: RunDir, owner: int) -> Iterator[tuple[str, bytes]]:
    yield "versions.json", _json({"transom": __version__, "python": platform.python_version(), **_packages()})
    yield "settings.json", _json(_without_values(_settings(run)))
    try:
        yield "state.json", _json(plain(fold(run.journal).state))
    except TransomError as error:
        yield "state.json", _json({"error": str(error)})
    numbers = sorted(attempt_numbers(run), reverse=True)[:ATTEMPTS]
    attempts = [run.attempt(*number) for number in numbers]
    sources = [(run.journal, JOURNAL), (run.operator_log, LOG), (run.lease, OTHER)]
    for attempt in attempts:
        sources += [(path, OTHER) for path in (attempt.outcome, attempt.reports, attempt.saves)]
        sources.append((attempt.launcher_journal, JOURNAL))
    for attempt in attempts:
        sources += [(path, LOG) for path in (attempt.agents_log, attempt.progress)]
        sources += [(path, OTHER) for path in _listed(attempt.health, ".json")]
        sources += [(path, LOG) for path in _listed(attempt.nodes, ".jsonl")]
        sources += [(path, LOG) for launch in _listed(attempt.path / "exits") for path in _listed(launch, ".json")]
    sources += [(path, LOG) for path in _listed(run.path, ".log") if path.name.startswith("slurm-")]
    sources += [(path, LOG) for path in _rank_logs(attempts)]
    for path, most in sources:
        data = _end(path, most, owner)
        if data:
            yield str(path.relative_to(run.path)), data


def _rank_logs(attempts: list[AttemptDir]) -> list[Path]:
    found: list[Path] = []
    for attempt in attempts:
        for launch in reversed(_listed(attempt.path / "logs")):
            found += _listed(launch, ".log")
    return found[:LOGS]


def _listed(folder: Path, ending: str = "") -> list[Path]:
    """Return the folder's files, in the order of the numbers in their names."""
    found = [one for one in listed(folder) if one.name.endswith(ending) and not one.name.startswith(".")]
    return sorted(found, key=lambda one: _by_number(one.name))[-FILES:]


def _by_number(name: str) -> list[str]:
    return [f"{part:>20}" if part.isdigit() else part for part in _DIGITS.split(name)]


def _end(path: Path, most: int, owner: int) -> bytes:
    """Return the end of a regular file of this owner or root, in whole lines; b"" for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid not in (owner, 0):
        os.close(descriptor)
        return b""
    with os.fdopen(descriptor, "rb") as file:
        start = max(0, found.st_size - most)
        file.seek(start)
        data = file.read(most)
    return data.partition(b"\n")[2] if start else data


def _settings(run: RunDir) -> dict[str, Any]:
    try:
        return tomllib.loads(_end(run.settings, OTHER, run.path.stat().st_uid).decode("utf-8", "replace"))
    except (OSError, ValueError):
        return {}


def _without_values(settings: dict[str, Any]) -> dict[str, Any]:
    """Leave out the values of the job's variables and its shell commands: they may contain anything."""
    job = dict(_table(settings, "job"))
    for key in ("env", "setup"):
        if key in job:
            job[key] = dict.fromkeys(job[key], "...") if isinstance(job[key], dict) else f"{len(job[key])} lines"
    return {**settings, "job": job}


def _table(settings: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    found: Any = settings
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _people(run: RunDir, on_call: object) -> list[str]:
    found = [str(name) for name in on_call] if isinstance(on_call, list) else []
    for uid in (run.path.stat().st_uid, os.geteuid()):
        try:
            found.append(pwd.getpwuid(uid).pw_name)
        except KeyError:
            continue
    found += [os.environ[name] for name in ("USER", "LOGNAME") if os.environ.get(name)]
    return list(dict.fromkeys(found))


def _hosts(run: RunDir) -> list[str]:
    """Return the nodes and other hosts of the run, in the order of the numbers in their names."""
    found = {platform.node()}
    holder = read_holder(run)
    if holder is not None:
        found.add(holder.host)
    try:
        for event in read_events(run.journal):
            for value in (getattr(event, key, ()) for key in ("nodes", "idle", "lost_nodes", "node", "batch_host")):
                found.update([value] if isinstance(value, str) else map(str, value))
            found.add(getattr(event, "who", "").partition(" on ")[2])  # from where a person stopped the run
        found.update(fold(run.journal).state.job.nodes)
    except TransomError:
        pass
    for number in attempt_numbers(run):
        attempt = run.attempt(*number)
        found.update(path.name.partition(".")[0] for path in _listed(attempt.nodes))
    return sorted((name for name in found if name), key=_by_number)


def _packages() -> dict[str, str]:
    found = {"system": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True, default=str).encode() + b"\n"
