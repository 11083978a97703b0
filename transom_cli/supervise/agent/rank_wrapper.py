r"""The wrapper around one rank: sets its environment, prepares its heartbeat record, and records how the rank ended.

    python -I -S .../agent/rank_wrapper.py --attempt-dir D [--launch L] [--node-beats-dir B] [--torchrun] \
        [--auto-beat] [--learn FILE] [--standby FILE [--run-script]] [--only RANKS] -- COMMAND...

It is started by its path, in isolated mode and without `site`, and imports only light modules, because every rank of a
large job pays for its start-up. The command becomes a child (no shell; same stdio, folder and process group) that is
killed if the wrapper is. The wrapper ignores the signals that Slurm sends to every process of the step: the child gets
its own copy, and must end first, so that its end is recorded. If Slurm sends them only to the wrapper, it forwards them
(agent/forwarding). It ends as the child ended: with the same exit code, or by the same signal.

With --torchrun, the command starts ranks of its own, and sets their variables and records itself.

With --standby, the rank's process waits until the launch begins (agent/standby). FILE: what it imports; with --learn,
rank 0 writes it. With --run-script, its script runs up to the call of a @recoverable function.

With --only, a task that is none of these ranks ends at once.

A rank of a replaced launch is not started: slurmstepd may be late, and the next launch's rank may train already.
"""
# pathlib would double the start-up time
# ruff: noqa: PTH100, PTH110, PTH118, PTH119, PTH120, PTH123

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from transom_cli.heartbeat import paths, record
from transom_cli.inherited import TUNABLES, rank_variables, with_streaming_copies

TYPE_CHECKING = False  # as typing has it
if TYPE_CHECKING:
    from transom_cli.supervise.agent.standby import Standby

NOT_VISIBLE = 14  # errors.BadNodes.exit_code
REPLACED = 16  # no other code of ours (errors.EXIT_CODES)
USAGE = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_PTRACER = 1, 4, 0x59616D61
_ANY = ctypes.c_ulong(-1)
_STEP_WIDE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_HELD = (*_STEP_WIDE, signal.SIGCHLD)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class Replaced(Exception):
    """A newer launch of the attempt has been started."""


class Options:
    """The wrapper's own arguments. argparse would take as long as everything else."""

    def __init__(self, argv: list[str]) -> None:
        self.attempt_dir, self.launch, self.beats_dir = "", 0, ""
        self.torchrun = self.auto_beat = self.run_script = False
        self.standby = self.learn = ""
        self.only: list[str] = []
        self.hosts: list[str] = []
        self.tasks_per_node = 1
        words = iter(argv)
        for word in words:
            if word == "--":
                break
            if word == "--torchrun":
                self.torchrun = True
            elif word == "--auto-beat":
                self.auto_beat = True
            elif word == "--attempt-dir":
                self.attempt_dir = os.path.abspath(next(words, ""))
            elif word == "--launch":
                self.launch = int(next(words, ""))
            elif word == "--standby":
                self.standby = next(words, "")
            elif word == "--run-script":
                self.run_script = True
            elif word == "--learn":
                self.learn = next(words, "")
            elif word == "--only":
                self.only = next(words, "").split(",")
            elif word == "--node-beats-dir":
                self.beats_dir = next(words, "")
            elif word == "--hosts":  # all nodes of a launch that has a step in each of two jobs
                self.hosts = next(words, "").split(",")
            elif word == "--tasks-per-node":
                self.tasks_per_node = int(next(words, ""))
            else:
                raise ValueError(f"unknown argument {word}")
        self.command = list(words)
        if not self.attempt_dir or not self.command:
            raise ValueError("--attempt-dir and a command after -- are needed")
        self.node = paths.node_name()
        if self.hosts and self.node not in self.hosts:
            raise ValueError(f"{self.node} is not in --hosts")
        self.attempt = os.path.basename(self.attempt_dir)


def main(argv: list[str], cgroups: str = "/proc/self/cgroup") -> int:
    """Run the wrapper. cgroups: the file that names this process's control groups."""
    try:
        options = Options(argv)
    except ValueError as error:
        return _complain(f"rank wrapper: {error}", USAGE)
    wrapper = os.getpid()
    if not os.access(options.attempt_dir, os.R_OK | os.W_OK | os.X_OK):
        return _complain(f"run directory {options.attempt_dir} is not visible on node {options.node}", NOT_VISIBLE)
    env = rank_environment(across_jobs(dict(os.environ), options), options)
    if options.only and env["RANK"] not in options.only:
        return 0
    waiting = None
    if options.standby:
        from transom_cli.supervise.agent.standby import Standby

        with contextlib.suppress(OSError):  # said when the launch begins
            _enter_beats(options, env)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        prepare = lambda: _prepare(wrapper, mask)  # noqa: E731
        waiting = Standby(options.standby, options.command, dict(env), prepare, script=options.run_script)
        begun = waiting.wait()
        if begun is None:
            return 0
        only, hosts = begun.pop(paths.ONLY, ""), begun.pop(paths.HOSTS, "")
        if hosts:
            options.hosts, options.tasks_per_node = hosts.split(","), int(env["LOCAL_WORLD_SIZE"])
        placed = not options.hosts or options.node in options.hosts
        if hosts and placed:
            env = rank_environment(across_jobs(dict(os.environ), options), options)
        if not placed or (only and env["RANK"] not in only.split(",")):
            waiting.end()
            return 0
        env.update(begun)
    if options.hosts or waiting is not None:
        _open_log(_log_path(options, env))
    try:
        beats, held = _beats(options, env)
    except Replaced:
        if waiting is not None:
            waiting.end()
        rank = "torchrun" if options.torchrun else f"rank {env['RANK']}"
        what = f"{rank} of launch {options.launch} is not started on {options.node}"
        return _complain(f"{what}: launch {options.launch + 1} or a later one has taken its place", REPLACED)
    started = time.time()
    mark = os.path.join(options.attempt_dir, "exits", str(options.launch), f"{paths.FROM_SCRATCH}{env.get('RANK', '')}")
    pid, former = _release(waiting, env, _log_path(options, env), mark, beats) or _start(options.command, env, beats)
    from transom_cli.supervise.agent import exit_record  # import now: its file may be out of reach later

    status = _wait(pid, former, cgroups)
    ended_at = time.monotonic()  # no time zone or NTP step changes it
    code, killed_by = (None, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else (os.WEXITSTATUS(status), None)
    step, since_start = exit_record.last_step(beats, held, code, options.launch)
    ended: dict[str, object] = {
        "schema": 1,
        "rank": None if options.torchrun else int(env["RANK"]),
        "node": options.node,
        "pid": pid,
        "code": code,
        "signal": killed_by,
        "wall": time.time(),
        "mono": ended_at,
        "started": started,
        "steps": step,
        "since_start": since_start,
    }
    launch = _present_launch(options.launch, beats)
    if waiting is not None:
        ended["standby"] = waiting.outcome()
    name = f"node-{_node_rank(env)}.json" if options.torchrun else f"rank-{env['RANK']}.json"
    try:
        exit_record.publish(os.path.join(options.attempt_dir, "exits", str(launch)), name, ended)
    except OSError as error:
        _complain(f"cannot record the end of {name[:-5]} in {options.attempt_dir}: {error.strerror}", 0)
    if killed_by is not None:
        _die_by(killed_by)
        return 128 + killed_by
    return code or 0


def _present_launch(launch: int, beats: int | None) -> int:
    """The launch that the rank was in at its end: it may have entered later ones in the same process."""
    last = record.read(beats) if beats is not None else None
    return max(launch, last.launch) if last is not None else launch


def across_jobs(env: dict[str, str], options: Options) -> dict[str, str]:
    """Number the tasks of a launch in two jobs as if it were one step: trainers read Slurm's variables too."""
    if not options.hosts:
        return env
    nodes, each = len(options.hosts), options.tasks_per_node
    node = options.hosts.index(options.node)
    env["SLURM_PROCID"] = str(node * each + int(env.get("SLURM_LOCALID", "0")))
    env["SLURM_NODEID"] = str(node)
    env["SLURM_JOB_ID"], env["SLURM_RESTART_COUNT"] = options.attempt.split(".")  # ranks name what they share by it
    env["SLURM_JOBID"] = env["SLURM_JOB_ID"]
    for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"):
        env[name] = str(nodes * each)
    for name in ("SLURM_NNODES", "SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES"):
        env[name] = str(nodes)
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        env[name] = f"{each}(x{nodes})"
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        env[name] = ",".join(options.hosts)
    return env


def _log_path(options: Options, env: dict[str, str]) -> str:
    name = f"node-{_node_rank(env)}.log" if options.torchrun else f"rank-{env['RANK']}.log"
    return os.path.join(options.attempt_dir, "logs", str(options.launch), name)


def _open_log(path: str) -> None:
    """Write into the rank's own log: srun would name it by the task's number in its job, or before its launch."""
    try:
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        _complain(f"{path} cannot be opened, see the other logs there: {error.strerror}", 0)
        return
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)


def rank_environment(env: dict[str, str], options: Options) -> dict[str, str]:
    """Return the trainer's environment. RANK and its kind are this launch's, whatever a shell or a script has set."""
    for name in rank_variables(env):
        del env[name]
    env.pop(paths.WORLD_SIZE, None)
    env.pop(paths.RANK_PID, None)
    run = os.path.dirname(os.path.dirname(options.attempt_dir))  # as in layout.RunDir
    if not options.torchrun:
        tasks = env.get("SLURM_STEP_NUM_TASKS") or env.get("SLURM_NTASKS") or "1"
        env["RANK"] = env.get("SLURM_PROCID", "0")
        env["WORLD_SIZE"] = env[paths.WORLD_SIZE] = tasks
        env["LOCAL_RANK"] = env.get("SLURM_LOCALID", "0")
        layout = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or tasks
        env["LOCAL_WORLD_SIZE"] = str(tasks_on_node(layout, int(env.get("SLURM_NODEID", "0"))))
    else:
        env["PET_NODE_RANK"] = _node_rank(env)  # torchrun's own variable for --node-rank
        if "MASTER_PORT" in env:
            env["PET_MASTER_PORT"] = env["MASTER_PORT"]  # for --master-port: other users see no environment
    env[paths.RUN_DIR] = run
    env[paths.ATTEMPT] = options.attempt
    env[paths.ATTEMPT_DIR] = options.attempt_dir
    env[paths.LAUNCH] = str(options.launch)
    env.setdefault(paths.CHECKPOINT_DIR, os.path.join(run, "checkpoints"))  # a setting may name another folder
    env[paths.ROLE] = "rank"
    env[TUNABLES] = with_streaming_copies(env)
    if options.auto_beat:
        rest = env.get("PYTHONPATH")
        env["PYTHONPATH"] = f"{paths.AUTO_BEAT_PATH}:{rest}" if rest else paths.AUTO_BEAT_PATH
    if options.learn and env.get("RANK") == "0":
        env[paths.LEARN] = options.learn
    return env


def _node_rank(env: dict[str, str]) -> str:
    """Return the number of a torchrun, which has one task on each node: the task's number.

    SLURM_NODEID counts in Slurm's order of nodes instead, which differs if a spare replaces a node.
    """
    return env.get("SLURM_PROCID", "0")


def tasks_on_node(layout: str, node: int) -> int:
    """Return the number of tasks on a node, from `SLURM_TASKS_PER_NODE`, such as "2(x3),1"."""
    for part in layout.split(","):
        tasks, _, times = part.partition("(x")
        node -= int(times.rstrip(")")) if times else 1
        if node < 0:
            return int(tasks)
    raise ValueError(f"node {node} is not in SLURM_TASKS_PER_NODE={layout}")


def _beats(options: Options, env: dict[str, str]) -> tuple[int | None, int | None]:
    """Open the rank's heartbeat file and its folder; return their descriptors. A run without heartbeats still trains.

    Raises:
        Replaced: exits or records of a newer launch exist.
    """
    if os.path.exists(os.path.join(options.attempt_dir, "exits", str(options.launch + 1))):  # its launcher's first act
        raise Replaced
    try:
        path, held = _enter_beats(options, env)
        if options.torchrun:
            if paths.torchrun_nodes(path, options.launch + 1):
                raise Replaced
            paths.mark_torchrun(path, options.launch, _node_rank(env))
            return None, held
        fresh = record.Record(int(env["RANK"]), options.launch, time.monotonic_ns())
        before = record.look(f"{path}/rank-{fresh.rank}")
        if before is not None and before.launch > fresh.launch:
            raise Replaced
        return record.create(f"{path}/rank-{fresh.rank}", fresh), held
    except OSError as error:
        rank = "the ranks of this torchrun" if options.torchrun else f"rank {env['RANK']}"
        _complain(f"no heartbeats from {rank} on {options.node}, so a hang is not detected: {error}", 0)
        return None, None


def _enter_beats(options: Options, env: dict[str, str]) -> tuple[str, int]:
    """Open the folder of heartbeats, and name it in the rank's environment. Return its path and descriptor."""
    env.pop(paths.BEAT_DIR, None)
    env.pop(paths.BEAT_PLACE, None)
    if options.beats_dir:
        path, held = options.beats_dir, paths.enter(options.beats_dir)
    else:
        path, held = paths.enter_beats(options.attempt_dir, options.node)
    env[paths.BEAT_DIR], env[paths.BEAT_PLACE] = path, paths.place(path)
    env.setdefault(paths.MEMORY, paths.AGENTS)  # Slurm ends what ranks start with their step
    env.setdefault(paths.RANK_MONITOR, paths.rank_monitor(path))
    if not any(env.get(name) for name in paths.FLIGHT):  # its default is one place for all jobs of a user
        env[paths.FLIGHT[0]] = paths.flight_prefix(path, options.launch)
    return path, held


def _start(command: list[str], env: dict[str, str], beats: int | None) -> tuple[int, set[int]]:
    """Fork and exec. Return the child's PID, and the signal mask from before.

    Signals are blocked from before the fork until the child has its own dispositions, so that none is lost; in the
    wrapper they are still blocked when this returns.
    """
    wrapper = os.getpid()
    former = _block()
    pid = os.fork()
    if pid:
        return pid, former
    try:
        _prepare(wrapper, former)
        _note_child(beats, os.getpid())
        os.execvpe(command[0], command, env)
    except OSError as error:
        _complain(f"cannot run {command[0]}: {error.strerror}", 0)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    except BaseException:
        os._exit(126)


def _release(
    waiting: Standby | None, env: dict[str, str], log: str, mark: str, beats: int | None
) -> tuple[int, set[int]] | None:
    """Make the standby the rank, and return the same as `_start`; None if there is none that lives."""
    if waiting is None:
        return None
    former = _block()
    if waiting.go(env, log, mark):
        _note_child(beats, waiting.pid)
        return waiting.pid, former
    with contextlib.suppress(OSError):
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    signal.pthread_sigmask(signal.SIG_SETMASK, former)
    return None


def _block() -> set[int]:
    """Block the signals that the wrapper handles; return the mask from before."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take the child's status with it
    return signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def _prepare(wrapper: int, mask: set[int]) -> None:
    """Set up the child before it executes the rank's command: it ends with its wrapper, and has default signals."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_PTRACER, _ANY)  # Yama: the agent, not our parent, may look at our stack (same user only)
    if os.getppid() != wrapper:  # it died before the line above
        os._exit(128 + signal.SIGKILL)
    for number in _STEP_WIDE + _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    # Slurm's warning before the time limit must not kill a trainer that knows nothing of it.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _note_child(beats: int | None, pid: int) -> None:
    mine = record.read(beats) if beats is not None else None
    if beats is not None and mine is not None:
        mine.child, mine.seq = pid, mine.seq + 1
        record.write(beats, mine)


def _wait(pid: int, former: set[int], cgroups: str) -> int:
    """Wait for the child, and return its status."""
    from transom_cli.supervise.agent import forwarding  # the child has been started: not part of the start-up

    try:
        with open(cgroups, errors="surrogateescape") as file:
            alone = forwarding.only_tasks_are_signalled(file.read())
    except OSError:
        alone = False
    if alone:
        return forwarding.wait(pid, _STEP_WIDE)
    for number in _STEP_WIDE:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, former)
    return os.waitpid(pid, 0)[1]


def _die_by(number: int) -> None:
    """End by the child's signal, so that Slurm sees it too, but without a second core dump."""
    _prctl(_PR_SET_DUMPABLE, 0)
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (number,))
    os.kill(os.getpid(), number)


def _complain(what: str, code: int) -> int:
    os.write(2, f"transom: {what}\n".encode())
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
