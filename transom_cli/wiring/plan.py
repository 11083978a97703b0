"""How a run's job is submitted, kept beside its script, so that a successor is submitted alike."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transom_cli.errors import TransomError
from transom_cli.files import publish_text
from transom_cli.layout import RunDir
from transom_cli.slurm.port import Submission
from transom_cli.wiring.settings import read_kept

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Plan:
    """How a run's job is submitted: what sbatch gets beside the script that stands in the run directory.

    asked_cluster: as `job.cluster`; "": the cluster that Slurm's commands speak to. cluster: by its controller's own
    word, when the run was made. sbatch: the SBATCH_* variables of whoever submitted; None: they were not kept then.
    """

    options: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    chdir: str = ""
    env: tuple[tuple[str, str], ...] = ()
    asked_cluster: str = ""
    cluster: str = ""
    sbatch: tuple[tuple[str, str], ...] | None = None

    def save(self, run: RunDir) -> None:
        data = {**asdict(self), "env": dict(self.env), "sbatch": None if self.sbatch is None else dict(self.sbatch)}
        publish_text(run.submission, json.dumps(data, indent=1) + "\n")

    @classmethod
    def load(cls, run: RunDir) -> Plan:
        text = read_kept(run, run.submission)
        try:
            data = json.loads(text)
            clusters = data.get("asked_cluster", ""), data.get("cluster", "")
            words = tuple(data["options"]), tuple(data["args"]), data["chdir"], tuple(data["env"].items())
            kept = data.get("sbatch")
            return cls(*words, *clusters, tuple(kept.items()) if kept is not None else None)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TransomError(f"`{run.submission}` is damaged", f"{type(error).__name__}: {error}") from error

    def submission(self, run: RunDir) -> Submission:
        chdir = Path(self.chdir) if self.chdir else None
        return Submission(run.script, self.options, self.args, dict(self.env), chdir)
