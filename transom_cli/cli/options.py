"""Options, completion and examples that the commands share.

Completion runs at every press of TAB: with the standard library only, and from names only. Errors are ignored; what
cannot be read completes to nothing.
"""

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from transom_cli.errors import TransomError, UsageError
from transom_cli.layout import RUN_ID

MAX_COMPLETIONS = 100  # the newest run IDs: more would not fit a screen


def output_path(text: str) -> Path:
    """Parse a file or folder to write to. A name that ends in a slash is a folder: it must exist."""
    if text.endswith("/") and not Path(text).is_dir():
        raise UsageError(f"no such folder: {text}", hint=f"mkdir -p {text}")
    return Path(text)


def run_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the newest runs whose IDs start with `incomplete`, or none for a path, which the shell completes."""
    if "/" in incomplete:
        return []
    from transom_cli.config.sources import runs_root

    root = ctx.params.get("root")
    with contextlib.suppress(OSError, RuntimeError, TransomError):
        return newest(runs_root(Path(root) if root else None, os.environ), incomplete)
    return []


def newest(root: Path, start: str = "") -> list[str]:
    """Return the IDs of the runs in `root`, newest first. Raises OSError if it cannot be read."""
    matches = (RUN_ID.fullmatch(path.name) for path in root.iterdir())
    dated = sorted(((m["stamp"], m[0]) for m in matches if m and m[0].startswith(start)), reverse=True)
    return [name for _, name in dated[:MAX_COMPLETIONS]]


Run = Annotated[
    str | None, typer.Argument(help="Run ID, name or path [default: the newest run].", autocompletion=run_ids)
]
Root = Annotated[  # readable=False: our own error says who may not read it
    Path | None, typer.Option("--root", help="Folder that holds the run directories.", readable=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Plain = Annotated[bool, typer.Option("--plain", help="Print one line per change until the run ends.")]
SettingsFile = Annotated[Path | None, typer.Option("-f", "--file", help="Settings file of a run (TOML).")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting; see docs/settings.md.")]
AutoBeat = Annotated[
    bool | None, typer.Option("--auto-beat/--no-auto-beat", help="Send heartbeats without a change in the trainer.")
]


# Shown below "Examples:" in a command's help and in docs/commands.md.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": (
        "transom run -N 4 --gpus-per-node 8 -- python train.py",
        "transom run -N 4 --gpus-per-node 8 --spares 1 --name llama -t 24:00:00 -- python train.py",
        "transom run -N 4 --gpus-per-node 8 --torchrun -- train.py --config large.yaml",
        "transom run -f run.toml --set restart.backoff=10 --dry-run -- python train.py",
        "transom run train.sbatch",
    ),
    "init": ("transom init", "transom init train.sbatch -o run.toml"),
    "launch": (
        "transom launch python train.py",
        "transom launch --name pretrain --spares 1 -- python train.py",
        "transom launch --ntasks-per-node 8 --cpu-bind=cores python train.py",
        "transom launch --torchrun --ntasks-per-node 8 -- train.py --config large.yaml",
        "transom launch --name tokenize --once python tokenize.py",
    ),
    "adopt": ("transom adopt train.sbatch", "transom adopt train.sbatch -o train.new.sbatch --force"),
    "attach": (
        "transom attach",
        "transom attach llama",
        "transom attach --detach llama-20261122-065825-c382",
    ),
    "observe": (
        "transom observe 4711",
        "transom observe 4711 --log train.log --detach",
        "transom observe --summary --since 30d",
    ),
    "report": (
        "transom report",
        "transom report llama -o llama.html",
        "transom report --root /scratch/me/runs -o reports/",
    ),
    "bundle": ("transom bundle", "transom bundle llama -o ticket.tar.gz", "transom bundle llama --keep-names"),
    "status": (
        "transom status",
        "transom status llama-70b --all",
        "transom status --watch",
        "transom status --json | jq .step",
    ),
    "list": ("transom list", "transom list --state failed,held --since 7d"),
    "top": ("transom top", "transom top llama"),
    "stop": ("transom stop llama", "transom stop --yes --json"),
    "requeue": ("transom requeue", "transom requeue /scratch/team/runs/llama-20261122-065825-c382"),
    "logs": ("transom logs", "transom logs llama --rank 3 -f", "transom logs llama --node gpu017 --since 10m"),
    "resume": ("transom resume", "transom resume llama --time 2-00:00:00 --exclude gpu017"),
    "operate": ("transom operate --all",),
    "service": ("transom service install", "transom service install --cron --print", "transom service status"),
    "prune": (
        "transom prune --older-than 30d",
        "transom prune --older-than 90d --keep 20 --yes",
        "transom prune --max-size 2T --last-checkpoints --json",
    ),
    "nodes": (
        "transom nodes",
        "transom nodes --all",
        "transom nodes --lift 'gpu[017-018]'",
        "transom nodes --lift gpu017 --run llama",
    ),
    "check": (
        "transom check",
        "transom check --tier deep -w 'gpu[017-020]'",
        "transom check --gpus 8 --path /scratch --no-probe",
        "transom check --as prolog --set health.budget=15",
        "transom check --record node.json",
    ),
    "doctor": ("transom doctor", "transom doctor --site", "transom doctor --site --job --json"),
    "diagnose": (
        "transom diagnose slurm-4711.out",
        "transom diagnose logs/ --rules site-rules.toml",
        "transom diagnose logs/ --healthy last-week/logs --learn",
        "transom diagnose logs/ --json --exit-code",
    ),
    "policy": ("transom policy", "transom policy llama", "transom policy -f run.toml --json"),
    "simulate": (
        "transom simulate -N 512 --spares 0,2,4,8",
        "transom simulate -N 128 --failures stepfun --save-every 1,10,30,100",
        "transom simulate -N 1024 --params 405e9 --compare now.toml new.toml --json",
        "transom simulate -N 64 --keep ./simulated; transom explain --root ./simulated",
    ),
    "advise": (
        "transom advise -N 512",
        "transom advise -N 128 --spares 1 --failures stepfun -f run.toml",
    ),
    "ckpt": (
        "transom ckpt ls llama",
        "transom ckpt verify llama --step 18000",
        "transom ckpt seal ./out/checkpoint-300",
        "transom ckpt diff ./checkpoints/step-100 ./checkpoints/step-200",
        "transom ckpt export llama --only model -o model.safetensors",
        "transom ckpt import gpt2.safetensors ./start --step 0 --as model --afresh optim",
        "transom ckpt plan --params 70e9 --ranks 512 --protect xor:4",
    ),
    "sandbox": (
        "transom sandbox up --nodes 4",
        "transom sandbox up --site strict,no-export",
        "transom sandbox up --release forky",
        "transom sandbox up --site strict,contended",
        "transom sandbox exec -- sinfo",
        'eval "$(transom sandbox env)"',
        "transom sandbox fault kill-node node2",
        "transom sandbox down",
    ),
}


def examples(command: str) -> str:
    """Return a command's examples as an epilog. The \\b prevents wrapping."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in EXAMPLES[command])))
