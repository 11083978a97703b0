"""SageMaker HyperPod's own restart (`srun --auto-resume=1`), which must not restart what transom restarts too. Pure.

With it srun waits for a faulty node's replacement and starts its step again inside the allocation, while transom sees
the same fault and requeues the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from transom_cli.errors import UsageError, printable

MARK = "/opt/sagemaker_cluster"  # a folder that HyperPod's machines have; common scripts ask for it too
_ON = re.compile(r"--auto-resume(?:\s*=\s*|\s+)[\"']?(?!0\b)[\w$]")


def find_auto_resume(script: str, words: Iterable[str], environ: Mapping[str, str]) -> str:
    """Where it is switched on, in words; "" where it is not: a script's lines (comments aside), further words of srun's
    or the command's, a variable that a script may put behind srun.
    """
    for number, line in enumerate(script.split("\n"), start=1):
        if _ON.search(line) and not line.lstrip().startswith("#"):
            return f"line {number} of the script: {printable(line.strip())[:120]}"
    joined = " ".join(words)
    if _ON.search(joined):
        return f"among the words: {printable(joined)[:120]}"
    named = (name for name in sorted(environ) if _ON.search(environ[name]))
    name = next(named, "")
    return f"the variable {printable(name)}" if name else ""


def judge_auto_resume(found: str, *, hyperpod: bool) -> str:
    """UsageError on HyperPod; elsewhere a note, since a script may have it and never use it there."""
    if not found:
        return ""
    if hyperpod:
        raise UsageError(
            "HyperPod's auto-resume and transom would both restart this training",
            found,
            "take `--auto-resume=1` out (or set it to 0): transom restarts it, off the faulty node; node replacement "
            "by HyperPod goes on as it is",
        )
    return f"{found}: on HyperPod this would restart the training beside transom, and is refused there"
