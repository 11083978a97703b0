"""`transom service`: the user's own entries survive, and the entry starts the operator with the right environment."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.doctor import service as module
from transom_cli.doctor.service import (
    BEGIN,
    END,
    Host,
    Kind,
    Service,
    block,
    choose,
    of_service,
    script,
    unit,
    with_block,
)
from transom_cli.doctor.symptom import Grade
from transom_cli.errors import NotPermitted, UsageError

OWN = "# my backups\nMAILTO=ada\n0 3 * * * backup --all '100%'\n"
CRONTAB = """#!/bin/sh
tab={0}/tab
case "$1" in
-l) if [ -e $tab ]; then cat $tab; else echo "no crontab for ada" >&2; exit 1; fi;;
-r) rm $tab;;
-) cat >$tab;;
esac
"""
SYSTEMCTL = """#!/bin/sh
echo "$@" >>{0}/systemctl.log
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A host with programs in the place of cron's and systemd's."""
    (tmp_path / "bin").mkdir()
    for name, text in (("crontab", CRONTAB), ("scrontab", CRONTAB), ("systemctl", SYSTEMCTL)):
        folder = tmp_path / f"{name}-data" if name == "scrontab" else tmp_path
        folder.mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text.format(shlex.quote(str(folder))))
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    environ = {**os.environ, "TRANSOM_STATE_DIR": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    return Service.of(environ, ("--time=1-00:00:00",))


def tab(place: Service, kind: Kind = Kind.CRON) -> Path:
    folder = place.state.parent
    return (folder / "scrontab-data" if kind is Kind.SCRONTAB else folder) / "tab"


@pytest.mark.parametrize("kind", [Kind.CRON, Kind.SCRONTAB])
def test_own_lines_of_a_crontab_survive_install_repeat_and_removal(place: Service, kind: Kind) -> None:
    tab(place, kind).write_text(OWN)
    assert place.install(kind) and not place.install(kind), "the second time there is nothing to change"
    text = tab(place, kind).read_text()
    assert text.startswith(OWN) and text.count(BEGIN) == text.count(END) == 1
    assert place.installed() == {kind: True}
    assert place.remove() == [kind] and tab(place, kind).read_text() == OWN
    assert not place.script.exists() and place.installed() == {} and place.remove() == []


def test_crontab_that_transom_made_is_removed_with_its_last_line(place: Service) -> None:
    place.install(Kind.CRON)
    place.remove()
    assert not tab(place).exists()


def test_crontab_with_one_of_the_marks_is_left_alone(place: Service) -> None:
    for text in (f"{BEGIN}\n{OWN}", f"{OWN}{END}\n", f"{BEGIN}\n{BEGIN}\n{OWN}{END}\n{END}\n"):
        tab(place).write_text(text)
        with pytest.raises(UsageError, match="edited inside transom's lines"):
            place.install(Kind.CRON)
        assert tab(place).read_text() == text


def test_crontab_that_cannot_be_read_is_not_replaced(place: Service) -> None:
    tab(place).write_text(OWN)
    crontab = place.state.parent / "bin" / "crontab"
    crontab.write_text(f"#!/bin/sh\n[ $1 = - ] && cat >{tab(place)}; echo 'You are not allowed' >&2; exit 1\n")
    with pytest.raises(NotPermitted, match="You are not allowed"):
        place.install(Kind.CRON)
    assert tab(place).read_text() == OWN


LINES = st.text(st.characters(exclude_characters="\r\n\x00\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=30)


@given(st.lists(LINES, max_size=6), st.lists(LINES, max_size=6))
def test_block_is_replaced_in_its_place_and_nothing_else_changes(before: list[str], after: list[str]) -> None:
    above, below = ("".join(f"{line}\n" for line in lines) for lines in (before, after))
    one, two = f"{BEGIN}\nold\n{END}\n", f"{BEGIN}\nnew\n{END}\n"
    assert with_block(above + one + below, two) == above + below + two
    assert with_block(with_block(above, one), two) == above + two
    assert with_block(above + one + below, "") == above + below


def test_percent_sign_in_a_path_is_not_a_line_break_for_cron() -> None:
    lines = block(Kind.CRON, Path("/home/ada 50%/service.sh")).splitlines()
    assert lines[1] == "@reboot /bin/sh '/home/ada 50\\%/service.sh' >/dev/null 2>&1"
    assert lines[2].startswith("*/10 * * * * /bin/sh '/home/ada 50\\%/")
    assert 'ExecStart=/bin/sh "/home/ada 50%%/$$x/service.sh"' in unit(Path("/home/ada 50%/$x/service.sh"))


def test_scrontab_entry_has_the_options_of_the_operators_job(place: Service) -> None:
    place.install(Kind.SCRONTAB)
    lines = tab(place, Kind.SCRONTAB).read_text().splitlines()
    assert "#SCRON --time=1-00:00:00" in lines and "#SCRON --output=/dev/null" in lines
    assert lines[-2] == f"*/10 * * * * /bin/sh {place.script}"


def test_unit_is_written_and_started_and_anothers_unit_is_refused(place: Service) -> None:
    place.units.mkdir(parents=True)
    place.unit.write_text("[Service]\nExecStart=/mine\n")
    with pytest.raises(UsageError, match="is not transom's"):
        place.install(Kind.SYSTEMD)
    assert place.unit.read_text() == "[Service]\nExecStart=/mine\n"
    assert place.remove() == [] and place.unit.exists()
    place.unit.unlink()
    assert place.install(Kind.SYSTEMD) and not place.install(Kind.SYSTEMD)
    assert f'ExecStart=/bin/sh "{place.script}"' in place.unit.read_text()
    log = place.state.parent / "systemctl.log"
    assert log.read_text().splitlines()[:2] == ["--user daemon-reload", "--user enable --now transom.service"]
    assert place.remove() == [Kind.SYSTEMD] and not place.unit.exists()
    assert log.read_text().splitlines()[-1] == "--user disable --now transom.service"


def test_one_kind_replaces_another(place: Service) -> None:
    tab(place).write_text(OWN)
    place.install(Kind.CRON)
    place.install(Kind.SYSTEMD)
    assert place.installed() == {Kind.SYSTEMD: True} and tab(place).read_text() == OWN and place.script.exists()


def test_script_gives_the_operator_the_environment_of_the_shell_that_installed_it(tmp_path: Path) -> None:
    odd = "a 'quoted' $HOME \"x\" `id` \\ %\nline"
    environ = {
        "PATH": f"{tmp_path}::.:bin:/usr/bin:/bin",
        "SLURM_CONF": "/etc/slurm a/slurm.conf",
        "TRANSOM_ROOT": odd,
        "TRANSOM_STATE_DIR": str(tmp_path),
        "TRANSOM_RUN_DIR": "/another/run",
        "SLURM_JOB_ID": "7",
        "SECRET": "x",
    }
    text = script(environ).replace("exec ", "exec env -0 # ", 1)
    path = tmp_path / "service.sh"
    path.write_text(text)
    done = subprocess.run(["/bin/sh", str(path)], env={"HOME": "/h"}, capture_output=True, text=True, check=True)
    got = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if "=" in entry)
    kept = {name: got.get(name) for name in environ if name in got}
    assert kept == {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_CONF": environ["SLURM_CONF"],
        "TRANSOM_ROOT": odd,
        "TRANSOM_STATE_DIR": str(tmp_path),
    }


def test_entry_of_another_installation_is_reported(place: Service) -> None:
    place.install(Kind.CRON)
    place.script.write_text(place.script.read_text().replace(sys.executable, "/old/python"))
    assert place.installed() == {Kind.CRON: False}
    assert of_service(place.installed(), HOST).grade is Grade.WARN
    assert place.install(Kind.CRON) and place.installed() == {Kind.CRON: True}


HOST = Host("ada", manager="", lingers=True, cron="", scrontab="")


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        (HOST, Kind.SYSTEMD),
        (Host("ada", "", False, "", ""), Kind.CRON),
        (Host("ada", "no bus", True, "", ""), Kind.CRON),
        (Host("ada", "no bus", False, "no cron", ""), Kind.SCRONTAB),
        (Host("ada", "", False, "no cron", ""), Kind.SCRONTAB),
        (Host("ada", "", False, "no cron", "not enabled"), Kind.SYSTEMD),
        (Host("ada", "no bus", False, "no cron", "not enabled"), None),
    ],
)
def test_the_kind_that_needs_nothing_more_is_chosen(host: Host, kind: Kind | None) -> None:
    assert choose(host) is kind
    found = of_service({}, host)
    assert found.grade is Grade.NOTE
    assert (f"install --{kind.value} " if kind else 'operator.where = "job"') in found.hint


def test_unit_without_lingering_is_not_enough() -> None:
    found = of_service({Kind.SYSTEMD: True}, Host("ada", "", False, "", ""))
    assert found.grade is Grade.WARN and found.hint == "loginctl enable-linger ada"
    assert of_service({Kind.SYSTEMD: True}, HOST).grade is of_service({Kind.CRON: True}, HOST).grade is Grade.OK


@pytest.mark.long
def test_command_prints_installs_shows_and_removes(place: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def transom(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "transom_cli", "service", *words]
        return subprocess.run(argv, env=dict(place.environ), capture_output=True, text=True, check=False)

    tab(place).write_text(OWN)
    shown = json.loads(transom("install", "--cron", "--print", "--json").stdout)
    assert shown["kind"] == "cron" and set(shown["files"]) == {str(place.script), "crontab"}
    assert tab(place).read_text() == OWN and not place.script.exists(), "nothing is written"
    done = transom("install", "--cron")
    assert done.returncode == 0 and done.stdout.startswith("cron: installed (")
    status = transom("status", "--json")
    assert json.loads(status.stdout) == {"schema": 1, "installed": {"cron": True}, "process": None}
    assert status.returncode == 0
    assert transom("remove").stdout == "removed: cron\n" and tab(place).read_text() == OWN


def test_readers_say_why_a_kind_cannot_be_used(place: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DAEMONS", set())
    monkeypatch.setattr(module, "_PID_FILES", ())
    host = module.read_host(scron=True)
    assert (host.manager, host.scrontab, host.cron) == ("", "", "no cron daemon runs on this host")
    assert "ScronParameters=enable" in module.read_host(scron=False).scrontab
    monkeypatch.setenv("PATH", str(place.state))
    host = module.read_host(scron=True)
    assert host.cron == "there is no command crontab" and host.scrontab == "there is no command scrontab"
    assert "No such file" in host.manager
