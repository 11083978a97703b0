"""What stands below "Examples:" in the help of a command, and in docs/commands.md."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": (
        "transom run -N 4 --gpus-per-node 8 -- python train.py",
        "transom run -N 4 --gpus-per-node 8 --spares 1 --name llama -t 24:00:00 -- python train.py",
        "transom run -N 4 --gpus-per-node 8 --torchrun -- train.py --config large.yaml",
        "transom run -f run.toml --set restart.backoff=10 --dry-run -- python train.py",
        "transom run train.sbatch",
    ),
    "attach": (
        "transom attach",
        "transom attach llama",
        "transom attach --detach llama-20261122-065825-c382",
    ),
    "report": (
        "transom report",
        "transom report llama -o llama.html",
        "transom report --root /scratch/me/runs -o reports/",
    ),
    "stop": ("transom stop", "transom stop llama --json"),
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
    "doctor": ("transom doctor", "transom doctor --root /scratch/me/runs", "transom doctor --json"),
    "diagnose": (
        "transom diagnose slurm-4711.out",
        "transom diagnose logs/ --rules site-rules.toml",
        "transom diagnose logs/ --healthy last-week/logs --learn",
        "transom diagnose logs/ --json --exit-code",
    ),
    "policy": ("transom policy", "transom policy llama", "transom policy -f run.toml --json"),
    "ckpt": (
        "transom ckpt ls llama",
        "transom ckpt verify llama --step 18000",
        "transom ckpt export llama --only model -o model.safetensors",
        "transom ckpt import gpt2.safetensors ./start --step 0 --as model --afresh optim",
    ),
    "sandbox": (
        "transom sandbox up --nodes 4",
        "transom sandbox up --release forky",
        "transom sandbox exec -- sinfo",
        'eval "$(transom sandbox env)"',
        "transom sandbox fault kill-node node2",
        "transom sandbox down",
    ),
}


def examples(command: str) -> str:
    """As an epilog. The \\b keeps its lines from being wrapped."""
    return "\n".join(("\b", "Examples:", *(f"  {line}" for line in EXAMPLES[command])))
