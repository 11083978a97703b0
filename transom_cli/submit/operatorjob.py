"""The operator as a Slurm job of its own: its script and what sbatch gets beside it. Pure.

For sites that end long-lived processes on login nodes. Options stand on sbatch's command line, where no variable of
its own (SBATCH_*) can change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from transom_cli.layout import RunDir
from transom_cli.submit.quoting import output_pattern, sh

if TYPE_CHECKING:
    from transom_cli.config.model import OperatorSection

WARNED = 180  # seconds before its time limit at which an operator leaves, and the next one is submitted
GOES_ON = 22  # the exit code of an operator that left a run which goes on
_SCRIPT = """\
#!/bin/bash
# The operator of this run. USR1 comes before the time limit: then it leaves, and another job takes its place. At TERM
# (scancel, a preemption) it leaves without one; `transom attach` starts another.
again= left= operator=
trap 'again=yes; [ -z "$operator" ] || kill -TERM $operator' USR1
trap 'left=yes; [ -z "$operator" ] || kill -TERM $operator' TERM
{python} -m transom_cli operate --run-dir {run} &
operator=$!
[ -z "$again$left" ] || kill -TERM $operator  # the signal came while there was none to pass it on to
wait $operator
code=$?
while kill -0 $operator 2>/dev/null; do  # a trap ends the wait, not the operator
    wait $operator
    code=$?
done
if [ -n "$again" ] && [ $code -eq {goes_on} ]; then
    exec {python} -m transom_cli attach --detach {run}
fi
exit $code
"""


def operator_tag(run_id: str) -> str:
    """The comment of a run's operator jobs: no tag of the run's own jobs, which are found by theirs."""
    return f"transom-operator:{run_id}"


def operator_script(run: RunDir, python: Sequence[str]) -> str:
    words = " ".join(str(sh(word)) for word in python)
    return _SCRIPT.format(python=words, run=sh(str(run.path)), goes_on=GOES_ON)


def operator_options(run: RunDir, asked: OperatorSection) -> tuple[str, ...]:
    """One core, requeued like any other job; `operator.sbatch` comes last, and so has the last word."""
    given = {"partition": asked.partition, "time": asked.time}
    return (
        f"--job-name=operator-{run.run_id}",
        f"--output={output_pattern(str(run.path), run.operator_log.name)}",
        "--open-mode=append",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=1",
        "--mem=1G",
        "--requeue",
        f"--signal=B:USR1@{WARNED}",
        f"--comment={operator_tag(run.run_id)}",
        *(f"--{name}={value}" for name, value in given.items() if value is not None),
        *asked.sbatch,
    )
