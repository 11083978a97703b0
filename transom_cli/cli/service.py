"""`transom service`: start the operator again after a reboot of this host."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from transom_cli.cli.options import Json, examples
from transom_cli.errors import NotPermitted, TransomError, UsageError

if TYPE_CHECKING:
    from transom_cli.doctor.service import Host, Service

service_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Start the operator again after a reboot.",
    epilog=examples("service"),
)


@service_app.command()
def install(
    systemd: Annotated[bool, typer.Option("--systemd", help="Use a systemd user unit.")] = False,
    cron: Annotated[bool, typer.Option("--cron", help="Use entries in your crontab.")] = False,
    scrontab: Annotated[bool, typer.Option("--scrontab", help="Use an entry in Slurm's scrontab.")] = False,
    print_: Annotated[bool, typer.Option("--print", help="Print what would be written, and write nothing.")] = False,
    json_: Json = False,
) -> None:
    """Write the entry that fits this host. It starts `transom operate --all`.

    The operator continues each run where its journal ends. Entries of your own stay as they are. You can repeat the
    command, for example after an upgrade or with another PATH.
    """

    from transom_cli.doctor.service import Kind, choose, why_none

    asked = [kind for kind, given in zip(Kind, (systemd, cron, scrontab), strict=True) if given]
    if len(asked) > 1:
        raise UsageError("`--systemd`, `--cron` and `--scrontab` cannot be combined", hint="give one of them")
    service, host = _service(), _host()
    kind = asked[0] if asked else choose(host)
    if kind is None:
        hint = "use `transom run --operator job`, or run `transom attach --detach` after a reboot"
        raise NotPermitted("Nothing on this host can start an operator after a reboot", why_none(host), hint)
    texts = service.texts(kind)
    if print_:
        shown = json.dumps({"schema": 1, "kind": kind.value, "files": texts})
        print(shown if json_ else "\n".join(f"# --- {where}\n{text}" for where, text in texts.items()))
        return
    changed = service.install(kind)
    linger = kind is Kind.SYSTEMD and not host.lingers
    if json_:
        where = list(texts)
        print(json.dumps({"schema": 1, "kind": kind.value, "changed": changed, "files": where, "linger": host.lingers}))
    else:
        print(f"{kind.value}: {'installed' if changed else 'already installed'} ({', '.join(texts)})")
    if linger:
        print(f"hint: it ends at logout until you run: loginctl enable-linger {host.user}", file=sys.stderr)


@service_app.command()
def status(json_: Json = False) -> None:
    """Show what is installed. Exit code 1: nothing is, or it does not start this transom."""

    from transom_cli.supervise.operator.registry import Registry, operator_folder

    found = _service().installed()
    process = Registry(operator_folder(os.environ)).process()
    if json_:
        kinds = {kind.value: current for kind, current in found.items()}
        print(json.dumps({"schema": 1, "installed": kinds, "process": process}))
    else:
        for kind, current in found.items():
            print(f"{kind.value}: installed{'' if current else ', for another transom: run `transom service install`'}")
        print("nothing is installed" if not found else "", end="\n" if not found else "")
        print(f"operator: process {process}" if process is not None else "operator: none on this host")
    if not found or not all(found.values()):
        raise typer.Exit(1)


@service_app.command()
def remove(json_: Json = False) -> None:
    """Remove what `install` wrote. Jobs keep running; systemd ends the operator that it started."""

    removed = [kind.value for kind in _service().remove()]
    print(json.dumps({"schema": 1, "removed": removed}) if json_ else f"removed: {', '.join(removed) or 'nothing'}")


def _service() -> Service:

    from transom_cli.config.load import load
    from transom_cli.doctor.service import Service

    operator = load(None, {}, os.environ).operator
    more = (f"--partition={operator.partition}",) if operator.partition else ()
    limit = (f"--time={operator.time}",) if operator.time else ()
    return Service.of(os.environ, ("--cpus-per-task=1", "--mem=1G", *limit, *more, *operator.sbatch))


def _host() -> Host:
    from transom_cli.doctor.config import config_of
    from transom_cli.doctor.service import read_host
    from transom_cli.slurm.runner import Runner

    try:
        config = config_of(Runner(timeout=10.0).run(["scontrol", "show", "config"]))
    except TransomError:
        config = {}
    return read_host("enable" in config.get("ScronParameters", ""))
