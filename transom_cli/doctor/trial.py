"""What only a job shows: a job of one task that takes a few seconds, submitted as runs are (`--site --job`).

`try_job` does to it what transom does to a run's job, one call after the other, and notes what was refused and how long
it took. `of_trial` judges that. The job is cancelled at the end, whatever happened.
"""

import contextlib
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from transom_cli.doctor.host import of_reach
from transom_cli.doctor.symptom import Grade, Symptom
from transom_cli.errors import TransomError
from transom_cli.files import make_private, publish_text
from transom_cli.health.reach import STEP, step_argv
from transom_cli.slurm.port import Job, JobState, Node, Slurm, Submission

STARTS_WITHIN = 120.0  # seconds for the job to start, after its release
RUNS_WITHIN = 90.0  # seconds for its script
PENDING_WITHIN = 60.0  # seconds for the requeued job
_POLL = 0.2
_SETTLE = 1.5  # seconds from a release to StartTime=now (slurm.requeue)

_SCRIPT = """#!/bin/bash
# written by `transom doctor --site --job`
connects() {{ timeout 3 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$1" "$2" 2>/dev/null; }}
now() {{ date +%s.%N; }}
{{
    echo "began $(now)"
    {connections}
    say='echo "$DOCTOR_SAID"'
    echo "step $(now)"
    got=$(DOCTOR_SAID=yes srun --overlap --export=ALL -N1 -n1 /bin/sh -c "$say" 2>&1); echo "stepped $? $(now)"
    kept=$(DOCTOR_SAID=yes srun --overlap -N1 -n1 /bin/sh -c "$say" 2>/dev/null)
    echo "got" $got  # unquoted: on one line
    echo "kept" $kept
    echo "done $(now)"
}} >{out}
sleep 60
"""


@dataclass(frozen=True)
class Trial:
    """What happened to the job.

    refused: by call, Slurm's error. comment: as Slurm had it, of the one that was given. waited: seconds from the
    release to RUNNING, None if it did not start; reason: Slurm's, while it waited. seen: seconds from the start until
    the output was here, None: it never was. facts: the lines of the output. probed: why a step from here did not run,
    "" if it did, None if it was not tried. requeued: seconds until it was pending.
    """

    error: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    given: str = ""
    comment: str = ""
    requeue: bool = True
    waited: float | None = None
    reason: str = ""
    seen: float | None = None
    facts: tuple[str, ...] = ()
    probed: str | None = None
    requeued: float | None = None

    def words(self, name: str) -> tuple[str, ...]:
        """Return the words behind the name of a line of the output."""
        return next((tuple(line.split()[1:]) for line in self.facts if line.split()[:1] == [name]), ())


def try_job(
    slurm: Slurm,
    root: Path,
    options: Sequence[str],
    nodes: Sequence[Node],
    step: Callable[[Sequence[str]], object] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    say: Callable[[str], object] = lambda _: None,
) -> Trial:
    """Submit the job, and do to it what a run's job needs.

    Args:
        options: sbatch's.
        nodes: to connect to from the job.
        step: runs srun with these words, as the operator's probes do; None: not tried, since the job is on another
            cluster.
        say: is called with what is done next.
    """
    folder = root / f".transom-doctor-{secrets.token_hex(4)}"
    out, name = folder / "out", f"transom:doctor-{secrets.token_hex(4)}"
    hosts = [(shlex.quote(node.address or node.name), node.port, shlex.quote(node.name)) for node in nodes]
    tries = [f"connects {host} {port}; echo reach $? {node}" for host, port, node in hosts]
    refused: dict[str, str] = {}
    job_id = 0

    def attempt(call: str, act: Callable[[], object]) -> None:
        try:
            act()
        except TransomError as error:
            refused[call] = error.why or error.what

    try:
        say("submitting a job of one task")
        make_private(folder)
        text = _SCRIPT.format(connections="\n    ".join(tries), out=shlex.quote(str(out)))
        publish_text(folder / "job.sbatch", text)
        fixed = ("--nodes=1", "--ntasks=1", "--time=5", "--requeue", "--hold", f"--comment={name}")
        log = f"--output={str(folder).replace('%', '%%')}/job.log"
        submission = Submission(folder / "job.sbatch", (*options, *fixed, log, "--job-name=transom-doctor"))
        job_id = slurm.submit(submission)
        job = slurm.job(job_id)
        trial = Trial(given=name, comment=job.comment, requeue=job.requeue)
        attempt("comment", lambda: slurm.set_comment(job_id, f"{name}:2"))
        attempt("exclusions", lambda: slurm.update_pending(job_id, exclude=[node.name for node in nodes[:1]]))
        attempt("exclusions", lambda: slurm.update_pending(job_id, exclude=[]))
        attempt("release", lambda: slurm.release(job_id))
        released = time.monotonic()
        say(f"job {job_id}: waiting for Slurm to start it, for up to {STARTS_WITHIN:.0f} s")
        sleep(_SETTLE)
        attempt("start time", lambda: slurm.start_now(job_id))
        found = _until(slurm, job_id, lambda job: job.state is not JobState.PENDING, STARTS_WITHIN, sleep)
        if found.state is JobState.PENDING:
            return replace(trial, refused=refused, reason=found.reason)
        began = time.monotonic()
        trial = replace(trial, waited=began - released)
        say(f"job {job_id} runs: ports, files, a step")
        while time.monotonic() < began + RUNS_WITHIN:
            lines = _lines(out)
            if lines and trial.seen is None:
                trial = replace(trial, seen=time.monotonic() - began)
            if any(line.startswith("done") for line in lines) or slurm.job(job_id).state.ended:
                break
            sleep(_POLL)
        trial = replace(trial, facts=tuple(_lines(out)))
        if step is not None and found.nodes:
            say(f"job {job_id} runs: a step from this host")
            attempt("probe", lambda: step(step_argv(job_id, found.nodes[0])))
            trial = replace(trial, probed=refused.get("probe", ""))
        asked = time.monotonic()
        say(f"job {job_id}: requeueing it")
        attempt("requeue", lambda: slurm.requeue_hold(job_id))
        if "requeue" not in refused:
            job = _until(slurm, job_id, _requeued, PENDING_WITHIN, sleep)
            if _requeued(job):
                trial = replace(trial, requeued=time.monotonic() - asked)
        return replace(trial, refused=refused)
    except (TransomError, OSError) as error:
        words = "; ".join([error.what, *error.why.splitlines()]) if isinstance(error, TransomError) else str(error)
        return Trial(error=words, refused=refused)
    finally:
        with contextlib.suppress(TransomError):
            if job_id:
                slurm.cancel(job_id)
        shutil.rmtree(folder, ignore_errors=True)


def _requeued(job: Job) -> bool:
    return job.state is JobState.PENDING and not job.completing


def _until(
    slurm: Slurm, job_id: int, ready: Callable[[Job], bool], patience: float, sleep: Callable[[float], None]
) -> Job:
    """Return the job when it is ready, or as it is after `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        job = slurm.job(job_id)
        if ready(job) or time.monotonic() > deadline:
            return job
        sleep(_POLL)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


NOT_TRIED = Symptom(
    "job",
    Grade.NOTE,
    "not tried: time to start, whether nodes see `root`, rights to change and requeue a job, reach from a batch host",
    "transom doctor --site --job submits a job of one task that takes a few seconds",
)


def of_trial(trial: Trial) -> Iterator[Symptom]:
    if trial.error:
        yield Symptom(
            "job", Grade.FAIL, trial.error, "set what your site requires: job.account, job.partition, job.qos"
        )
        return
    yield _comment(trial)
    yield from _rights(trial)
    if trial.waited is None:
        words = f"the job did not start within {STARTS_WITHIN:.0f} s (Slurm: {trial.reason or 'no reason'})"
        yield Symptom("start", Grade.NOTE, f"{words}; the rest was not tried", "repeat it when nodes are free")
        return
    yield Symptom("start", Grade.OK, f"{trial.waited:.1f} s from the release of the job to RUNNING")
    if trial.seen is None:
        words = f"the job wrote nothing within {RUNS_WITHIN:.0f} s that is seen here: compute nodes do not share `root`"
        yield Symptom("shared root", Grade.FAIL, words, "set `root` to a folder that login and compute nodes share")
        return
    yield Symptom("shared root", Grade.OK, f"the job's file was seen here {trial.seen:.1f} s after its start")
    reached = {line.split()[2]: line.split()[1] == "0" for line in trial.facts if line.startswith("reach ")}
    yield of_reach(reached, "a batch host")
    if trial.probed is not None:
        yield _probe(trial.probed)
    yield from _step(trial)
    yield _requeue(trial)


def _comment(trial: Trial) -> Symptom:
    if trial.given in trial.comment.split() and "comment" not in trial.refused:
        return Symptom("comment", Grade.OK, "Slurm keeps the job's comment, and you may change it")
    why = trial.refused.get("comment", "")
    words = f"you may not change it: {why}" if why else f"the site rewrites it: {trial.comment or '(empty)'!r}"
    return Symptom("comment", Grade.NOTE, f"{words}; transom then finds its jobs by their script and their ID")


def _rights(trial: Trial) -> Iterator[Symptom]:
    refused = {call: trial.refused[call] for call in ("exclusions", "release", "start time") if call in trial.refused}
    if not refused:
        yield Symptom("modify", Grade.OK, "you may hold and release a job, exclude nodes, and set its start time")
    if "release" in refused:
        words = f"you may not release your own held job: {refused['release']}"
        yield Symptom(
            "modify", Grade.FAIL, words, "transom submits its jobs held: ask the site to allow `scontrol release`"
        )
    if "exclusions" in refused:
        words = f"you may not exclude nodes from a pending job: {refused['exclusions']}"
        hint = 'set restart.how = "resubmit": each restart is then a new job, with its exclusions on the command line'
        yield Symptom("modify", Grade.WARN, words, hint)
    if "start time" in refused:
        words = f"you may not set StartTime=now: {refused['start time']}. A requeued job waits about two minutes"
        yield Symptom("modify", Grade.NOTE, words, 'restart.how = "resubmit" avoids the wait')


def _step(trial: Trial) -> Iterator[Symptom]:
    """Judge the first step: how long it took (Prolog, TaskProlog), and what it inherited."""
    began, ended = trial.words("step"), trial.words("stepped")
    if not began or len(ended) < 2 or ended[0] != "0":
        words = f"a step inside the job did not run: {' '.join(trial.words('got')) or 'no answer from srun'}"
        yield Symptom("step", Grade.FAIL, words, "try it by hand: salloc -N1 srun hostname")
        return
    seconds = float(ended[1]) - float(began[0])
    words = f"an empty step took {seconds:.1f} s (TaskProlog included)"
    slow = seconds > STEP
    more = "; each relaunch takes at least that long, and transom's probes wait longer accordingly" if slow else ""
    yield Symptom("step", Grade.NOTE if slow else Grade.OK, words + more)
    got, kept = (trial.words(name)[-1:] == ("yes",) for name in ("got", "kept"))  # a TaskProlog may print, too
    if not got:
        words = "a step does not get the variables of the batch script, even with srun --export=ALL"
        yield Symptom("step environment", Grade.FAIL, words, "ask the site which TaskProlog or plugin removes them")
    elif not kept:
        words = "srun passes no variables of the batch script unless it gets --export=ALL, which transom gives"
        yield Symptom("step environment", Grade.NOTE, words, "in your own scripts: srun --export=ALL")


def _probe(why: str) -> Symptom:
    if not why:
        return Symptom("probe", Grade.OK, "a step that this host starts runs in the job: the operator can probe nodes")
    words = f"a step that this host starts does not run in the job: {why}; a silent node is then only excluded"
    hint = 'ask the site to open the ports of srun (SrunPortRange) to this host, or set operator.where = "job"'
    return Symptom("probe", Grade.NOTE, words, hint)


def _requeue(trial: Trial) -> Symptom:
    if trial.requeued is not None:
        return Symptom("requeue job", Grade.OK, f"requeued and held within {trial.requeued:.1f} s")
    why = trial.refused.get("requeue") or ("it has Requeue=0" if not trial.requeue else "it did not become pending")
    hint = 'set restart.how = "resubmit"; transom also does that by itself when a requeue is refused'
    return Symptom("requeue job", Grade.WARN, f"the job cannot be requeued: {why}", hint)
