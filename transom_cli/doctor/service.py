"""What starts the operator again after a reboot: a systemd user unit, or entries in a crontab or a scrontab.

All three start one script in the user's state folder. It has the environment of the shell that installed it, since
systemd and cron start with almost none. A unit or an entry of the user's own is never touched: transom's unit has a
mark in its first line, its lines in a crontab are between two marks.
"""

from __future__ import annotations

import contextlib
import enum
import os
import pwd
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transom_cli.config.sources import is_setting
from transom_cli.doctor.symptom import Grade, Symptom
from transom_cli.errors import NotPermitted, TransomError, UsageError
from transom_cli.files import make_state_folder, publish_text
from transom_cli.health.history.files import history_dir
from transom_cli.start import own

MARK = "written by `transom service install`; `transom service remove` removes"
BEGIN, END = f"# BEGIN transom ({MARK} these lines)", "# END transom"
_BLOCK = re.compile(r"^# BEGIN transom \(.*?^# END transom$\n?", re.MULTILINE | re.DOTALL)
_UNIT = "transom.service"
_EVERY = "*/10 * * * *"  # a second operator process ends at once
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "LD_LIBRARY_PATH", "XDG_CONFIG_HOME", "TRANSOM_STATE_DIR")
_DAEMONS = {"cron", "crond", "fcron"}
_PID_FILES = ("/run/crond.pid", "/run/cron.pid", "/var/run/crond.pid")
_OTHERWISE = "choose another with --systemd, --cron or --scrontab, or: transom run --operator job"
PATIENCE = 15.0  # seconds for each program


class Kind(str, enum.Enum):
    SYSTEMD = "systemd"
    CRON = "cron"
    SCRONTAB = "scrontab"


@dataclass(frozen=True)
class Host:
    """What this host offers. manager, cron, scrontab: why it cannot be used, "" if it can."""

    user: str
    manager: str
    lingers: bool
    cron: str
    scrontab: str


def choose(host: Host) -> Kind | None:
    """Return what survives a reboot here with the least: nothing remains to be set up for it, if possible."""
    if not host.manager and host.lingers:
        return Kind.SYSTEMD
    if not host.cron:
        return Kind.CRON
    if not host.scrontab:
        return Kind.SCRONTAB
    return None if host.manager else Kind.SYSTEMD


def why_none(host: Host) -> str:
    return f"systemd: {host.manager}; cron: {host.cron}; scrontab: {host.scrontab}"


def of_service(installed: Mapping[Kind, bool], host: Host) -> Symptom:
    """Judge what starts the operator again after a reboot."""
    kinds = ", ".join(kind.value for kind in installed)
    if installed and not all(installed.values()):
        words = f"what is installed ({kinds}) starts another transom than this one"
        return Symptom("service", Grade.WARN, words, "transom service install")
    if Kind.SYSTEMD in installed and not host.lingers:
        words = "the systemd user unit starts only when you log in, and ends when you log out"
        return Symptom("service", Grade.WARN, words, f"loginctl enable-linger {host.user}")
    if installed:
        return Symptom("service", Grade.OK, f"the operator is started again after a reboot ({kinds})")
    kind = choose(host)
    if kind is None:
        words = f"nothing can start the operator again after a reboot of this host ({why_none(host)})"
        hint = 'after a reboot: transom attach; or run the operator as a job: operator.where = "job"'
        return Symptom("service", Grade.NOTE, words, hint)
    words = "nothing starts the operator again after a reboot of this host"
    hint = f"transom service install --{kind.value} (see it first: --print)"
    return Symptom("service", Grade.NOTE, words, hint)


def read_host(scron: bool) -> Host:
    """scron: the cluster has ScronParameters=enable."""
    user = pwd.getpwuid(os.getuid()).pw_name
    scrontab = _tab_error("scrontab") if scron else "the cluster does not have ScronParameters=enable"
    return Host(user, _manager(), Path("/var/lib/systemd/linger", user).exists(), _cron(), scrontab)


def _manager() -> str:
    try:
        _run(["systemctl", "--user", "show-environment"])
    except TransomError as error:
        return error.why
    return ""


def _cron() -> str:
    names = set()
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            names.add(path.read_text().strip())
    running = names & _DAEMONS or any(Path(path).exists() for path in _PID_FILES)
    return _tab_error("crontab") or ("" if running else "no cron daemon runs on this host")


def _tab_error(program: str) -> str:
    if shutil.which(program) is None:
        return f"there is no command {program}"
    try:
        _read_tab(program)
    except TransomError as error:
        return error.why
    return ""


def script(environ: Mapping[str, str]) -> str:
    """Return the text of the script. Relative entries of PATH are left out."""
    kept = {name: environ[name] for name in sorted(environ) if name in _KEPT or is_setting(name)}
    kept["PATH"] = ":".join(entry for entry in environ.get("PATH", os.defpath).split(":") if entry.startswith("/"))
    lines = [f"export {name}={shlex.quote(value)}" for name, value in kept.items()]
    command = shlex.join(own("transom_cli", "operate", "--all"))
    return "\n".join(["#!/bin/sh", f"# {MARK} it", *lines, f"exec {command}", ""])


def unit(path: Path) -> str:
    quoted = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f"""# {MARK} it
[Unit]
Description=transom operator of all runs

[Service]
ExecStart=/bin/sh "{quoted}"
Restart=on-failure
RestartSec=60

[Install]
WantedBy=default.target
"""


def block(kind: Kind, path: Path, options: Sequence[str] = ()) -> str:
    """Return the lines of a crontab or scrontab. options: sbatch's, of the scrontab entry."""
    command = f"/bin/sh {shlex.quote(str(path))}"
    if kind is Kind.SCRONTAB:
        lines = [f"#SCRON {option}" for option in ("--job-name=transom-operator", "--output=/dev/null", *options)]
        return "\n".join([BEGIN, *lines, f"{_EVERY} {command}", END, ""])
    quiet = command.replace("%", "\\%") + " >/dev/null 2>&1"
    return "\n".join([BEGIN, f"@reboot {quiet}", f"{_EVERY} {quiet}", END, ""])


def with_block(text: str, new: str) -> str:
    """Return a crontab with the block replaced, added or, if `new` is empty, removed. Other lines stay as they are."""
    rest = _BLOCK.sub("", text)
    if "# BEGIN transom (" in rest or END in rest.splitlines():
        why = "one of the two marks around transom's lines is missing"
        raise UsageError("The crontab has been edited inside transom's lines", why, "remove these lines by hand")
    return rest + ("\n" if new and rest and not rest.endswith("\n") else "") + new


@dataclass(frozen=True)
class Service:
    """The places that the service is written to."""

    state: Path
    units: Path
    environ: Mapping[str, str]
    options: tuple[str, ...] = ()

    @classmethod
    def of(cls, environ: Mapping[str, str], options: tuple[str, ...] = ()) -> Service:
        """options: sbatch's, of the scrontab entry."""
        config = environ.get("XDG_CONFIG_HOME") or ""
        base = Path(config) if config.startswith("/") else Path.home() / ".config"
        return cls(history_dir(environ).parent, base / "systemd" / "user", environ, options)

    @property
    def script(self) -> Path:
        return self.state / "service.sh"

    @property
    def unit(self) -> Path:
        return self.units / _UNIT

    def texts(self, kind: Kind) -> dict[str, str]:
        """Return what `install` writes, by where."""
        where, entry = str(self.unit), unit(self.script)
        if kind is not Kind.SYSTEMD:
            where, entry = _PROGRAM[kind], block(kind, self.script, self.options)
        return {str(self.script): script(self.environ), where: entry}

    def installed(self) -> dict[Kind, bool]:
        """Return the kinds that are installed, and whether each still starts this transom."""
        last = script(self.environ).splitlines()[-1]
        starts = (self._read(str(self.script)) or "").rstrip("\n").endswith(last)
        return {kind: starts for kind in Kind if self._ours(kind)}

    def install(self, kind: Kind) -> bool:
        """Write the script and the entry. Return whether anything had to change. Raises TransomError or OSError."""
        (script_at, script_text), (where, entry) = self.texts(kind).items()
        if kind is Kind.SYSTEMD and self.unit.exists() and not self._ours(kind):
            hint = f"remove it first: systemctl --user disable --now {_UNIT}; rm {self.unit}"
            raise UsageError(f"{self.unit} is not transom's", "its first line does not have transom's mark", hint)
        # a table that cannot be read is not an empty one: it must not be replaced
        before = (self._read(where) or "") if kind is Kind.SYSTEMD else _read_tab(where)
        wanted = entry if kind is Kind.SYSTEMD else with_block(before, entry)
        changed = before != wanted or self._read(script_at) != script_text
        make_state_folder(self.state)
        publish_text(self.script, script_text, mode=0o700)
        if kind is Kind.SYSTEMD:
            self.units.mkdir(parents=True, exist_ok=True)
            publish_text(self.unit, entry, mode=0o644)
            _run(["systemctl", "--user", "daemon-reload"])
            _run(["systemctl", "--user", "enable", "--now", _UNIT])
        elif before != wanted:
            _run([_PROGRAM[kind], "-"], wanted)
        for other in self.installed():
            if other is not kind:
                self._remove(other)
        return changed

    def remove(self) -> list[Kind]:
        """Remove everything that `install` wrote. Jobs keep running; systemd ends the operator that it started."""
        found = list(self.installed())
        for kind in found:
            self._remove(kind)
        self.script.unlink(missing_ok=True)
        return found

    def _remove(self, kind: Kind) -> None:
        if kind is Kind.SYSTEMD:
            with contextlib.suppress(TransomError):  # without a manager nothing is loaded
                _run(["systemctl", "--user", "disable", "--now", _UNIT])
            self.unit.unlink(missing_ok=True)
        else:
            program = _PROGRAM[kind]
            rest = with_block(_read_tab(program), "")
            _run([program, "-"] if rest.strip() else [program, "-r"], rest)

    def _ours(self, kind: Kind) -> bool:
        if kind is Kind.SYSTEMD:
            return (self._read(str(self.unit)) or "").startswith(f"# {MARK}")
        return bool(_BLOCK.search(self._read(_PROGRAM[kind]) or ""))

    def _read(self, where: str) -> str | None:
        with contextlib.suppress(OSError, TransomError):
            return Path(where).read_text("utf-8", "surrogateescape") if "/" in where else _read_tab(where)
        return None


_PROGRAM = {Kind.CRON: "crontab", Kind.SCRONTAB: "scrontab"}


def _read_tab(program: str) -> str:
    """Return the user's table, "" if there is none."""
    try:
        return _run([program, "-l"])
    except NotPermitted as error:
        if re.search(r"no crontab for|no scrontab|no such file|does not have a crontab", error.why, re.IGNORECASE):
            return ""
        raise


def _run(argv: Sequence[str], text: str | None = None) -> str:
    try:
        done = subprocess.run(
            argv, input=text or "", capture_output=True, text=True, errors="surrogateescape", timeout=PATIENCE,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NotPermitted(f"`{argv[0]}` did not end", f"no answer within {PATIENCE:g} s", _OTHERWISE) from None
    except OSError as error:
        raise NotPermitted(f"Cannot run `{argv[0]}`", error.strerror or str(error), _OTHERWISE) from None
    if done.returncode != 0:
        said = " ".join((done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").split())
        raise NotPermitted(f"`{shlex.join(argv)}` failed", said, _OTHERWISE)
    return done.stdout
