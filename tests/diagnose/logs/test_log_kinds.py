"""Of several lines of one event the one that tells, by the kinds of messages; what is said of a run that is well."""

from __future__ import annotations

import random
from itertools import accumulate
from pathlib import Path

import pytest

from transom_cli.diagnose.clue import Category, Culprit
from transom_cli.diagnose.logs import kinds
from transom_cli.diagnose.logs.cause import Incident
from transom_cli.diagnose.logs.diagnosis import diagnose_logs
from transom_cli.diagnose.logs.kinds import hit_of
from transom_cli.diagnose.logs.matches import Found, Hit, collect
from transom_cli.diagnose.logs.reader import hits_in_file
from transom_cli.diagnose.logs.rule_files import load
from transom_cli.diagnose.logs.rulebook import Rulebook

BOOK = Rulebook(load())
STALL = (
    "[1,0]<stderr>:[2026-01-05 13:54:31.854655: W horovod/common/stall_inspector.cc:107] One or more tensors were "
    "submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks\n"
    "[1,0]<stderr>:[2026-01-05 13:54:31.854690: W horovod/common/operations.cc:588] Allreduce_0 [missing ranks: 3, 5]\n"
)
STEPS = "".join(f"step {n} | loss 2.{n} | 3.1 it/s\n" for n in range(9))
MEGATRON = "iteration {0}/ 500 | {1}loss scale: 1.0 | grad norm: nan | number of skipped iterations:   {2} | end\n"
XID = "NVRM: Xid (PCI:0000:48:00): "


def of(tmp_path: Path, text: str) -> tuple[Incident, ...]:
    (tmp_path / "job.out").write_text(text)
    return diagnose_logs([tmp_path], BOOK).incidents


@pytest.mark.parametrize(
    ("text", "category", "line"),
    [
        (  # what the GPU needs now is no cause; the Xid before it is
            f"{XID}74, pid=7, NVLink: fatal error detected on link 8(0x0)\n"
            f"{XID}154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)\n",
            Category.NVLINK_FABRIC,
            1,
        ),
        (f"{XID}154, GPU recovery action changed from 0x0 (None) to 0x2 (Reboot)\n", Category.GPU_HARDWARE, 1),
        (  # a GPU that falls off its bus breaks its peers' links
            f"{XID}79, GPU has fallen off the bus.\n{XID}74, pid=7, NVLink: fatal error detected on link 8(0x0)\n",
            Category.GPU_HARDWARE,
            1,
        ),
        (f"{XID}13, Graphics SM Warp Exception\n{XID}109, CTX SWITCH TIMEOUT\n", Category.CUDA_KERNEL_FAULT, 1),
        (f"{XID}63, Row Remapper: New row marked\n{XID}94, Contained ECC error\n", Category.GPU_HARDWARE, 2),
        (  # what a cloud took back, Slurm and torch only mourn
            "GCP Metadata Service says termination is imminent\nRuntimeError: NCCL communicator was aborted.\n",
            Category.SLURM_PREEMPTED,
            1,
        ),
        (  # a pod's end as Kubernetes describes it
            "    State:          Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n",
            Category.HOST_OOM,
            2,
        ),
        (  # MPI's first word, not its stack's
            "Fatal error in MPI_Init: Other MPI error, error stack:\nMPID_Init(2049): PMI_Init returned 1\n",
            Category.SLURM_LAUNCH,
            1,
        ),
        (f"{XID}109, CTX SWITCH TIMEOUT\n{XID}45, pid=7, Ch 00000010\n", Category.GPU_HARDWARE, 1),
    ],
)
def test_which_line_tells(tmp_path: Path, text: str, category: Category, line: int) -> None:
    first = of(tmp_path, text)[0]
    assert (first.category, first.root.lineno) == (category, line)


def test_who_is_missing_where_others_wait(tmp_path: Path) -> None:
    (stalled,) = of(tmp_path, f"{STEPS}{STALL}")
    assert (stalled.category, stalled.root.lineno) == (Category.NCCL_HANG, 10)
    assert stalled.culprits == (Culprit(rank=3), Culprit(rank=5))
    assert of(tmp_path, f"{STALL}{STEPS}") == ()


@pytest.mark.parametrize(
    ("step", "result"),
    [
        (("", "0"), True),
        (("lm loss: NAN | ", "0"), True),
        (("lm loss: NAN | ", "1"), False),  # a loss scaler seeks its scale
        (("lm loss: 2.31 | ", "0"), False),
    ],
)
def test_non_finite_gradient(tmp_path: Path, step: tuple[str, str], result: bool) -> None:
    found = of(tmp_path, "".join(MEGATRON.format(n, *step) for n in range(7, 12)))
    assert [one.category for one in found] == [Category.NUMERIC_DIVERGENCE] * result


def test_loader_worker_that_fails_and_one_ended_by_its_parent(tmp_path: Path) -> None:
    killed = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: {0}. \n"
    (broke,) = of(tmp_path, killed.format("Segmentation fault"))
    assert broke.category is Category.DATA_LOADER
    (first, *_) = of(tmp_path, killed.format("Aborted") + "torch.OutOfMemoryError: CUDA out of memory. Tried\n")
    assert first.category is Category.CUDA_OOM


@pytest.mark.parametrize(
    "line",
    [
        "AssertionError: can only test a child process",
        '  File "/opt/ray/actor.py", line 7, in __del__\n    self.stop()\nAttributeError: stop',
        '2026-01-05 10:21:35.025511: W x/agent.cc:1] UNAVAILABLE: Socket closed\n:{"created":"@1.0",'
        '"grpc_message":"Socket closed"}',
        "2026-01-05 15:35:00,032 WARNING worker.py:1072 -- A worker died or was killed while executing task ffff.",
    ],
)
def test_what_a_run_goes_past_at_its_end(tmp_path: Path, line: str) -> None:
    assert of(tmp_path, f"{STEPS}Traceback (most recent call last):\n{line}\nsaved\n") == ()


@pytest.mark.parametrize(("level", "result"), [("INFO", True), ("WARNING", False)])
def test_an_exception_that_a_launcher_passes_on_at_its_own_level(tmp_path: Path, level: str, result: bool) -> None:
    lines = (
        "Traceback (most recent call last):",
        'File "/opt/train.py", line 8, in <module>',
        "ValueError: no such run",
    )
    found = of(tmp_path, "".join(f"[2026-01-05 11:17:04] [{level}] {line}\n" for line in lines))
    assert [one.category for one in found] == [Category.USER_CODE] * result


STORM = (
    "[rank{r}]:[E105 03:17:{s:02d}.1 ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={n}, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600{s:03d} milliseconds.",
    "gpu{r}:{p}7{r}:4799 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error",
    "[rank{r}]: RuntimeError: CUDA error: an illegal memory access was encountered",
    "srun: error: gpu{r}: task {r}: Exited with exit code {c}",
    "step {n} | loss 2.{n}",
)
EVENTS = (
    "[rank{r}]: Traceback (most recent call last):",
    '[rank{r}]:   File "train.py", line {n}, in main',
    "[rank{r}]: ValueError: bad value {n}",
    "[default] Worker group FAILED. 2/3 attempts left; will restart worker group",
    "srun: error: Timed out waiting for job step to complete",
    "srun: Force Terminated StepId=7.0",
    "slurmstepd: error: *** STEP 7.0 ON gpu1 CANCELLED AT 2026-01-05T03:20:11 DUE TO TIME LIMIT ***",
)


TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/opt/{w}/spawn.py", line {n}, in main',
    '  File "/opt/data/{w}.py", line {n}, in read',
    "    return pickle.load(file)",
    "_pickle.UnpicklingError: pickle data was truncated",
    "RuntimeError: {w}",
)
WORDS = (
    "",
    " {w}",
    " /data/{w}/{w}.jpg: {w}",
    " {w} {n}",
    " {w}: CUDA out of memory",
    " port error {w}",
    " [rank1] {w}",
    " warning: {w}",
    " \t{w}",
    " caf\u00e9 {w}",
    " 0x{n:x}",
    " E0105 {w}",
)
LINES = [
    line.replace("{", "(").replace("}", ")")
    for rule in BOOK.rules
    for line in (*rule.examples, *rule.look_alikes)
    if len(line) < 400
]


def with_words(rng: random.Random, line: str, words: str) -> str:
    """Return a line with words of its own at its end, or in its middle."""
    place = rng.choice([len(line), *(n for n, one in enumerate(line) if one == " ")])
    return line[:place] + words + line[place:]


def one_by_one(text: bytes, name: str) -> list[Hit]:
    """Match each line on its own."""
    lines = [(n, part) for n, line in enumerate(text.split(b"\n"), 1) for part in line.split(b"\r")]
    starts = accumulate((len(part) + 1 for _, part in lines), initial=0)
    told = (Found(part, n, at) for (n, part), at in zip(lines, starts, strict=False) if BOOK.which(part))
    return collect(filter(None, (hit_of(one, BOOK) for one in told)), name)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 20))])
def test_lines_that_are_only_counted_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(kinds, "_NEW", 32)
    monkeypatch.setattr(BOOK, "looked_up", (0, 1 << 30)[seed % 2])
    rng, lines = random.Random(seed), list[str]()
    while len(lines) < 700:
        labelled = [f"[rank{{r}}]: {line}" for line in rng.sample(LINES, 2)]
        forms = rng.sample([*STORM, f"{XID}{{x}}, pid=7", *labelled], rng.randint(1, 4))
        own = rng.sample(WORDS, rng.choice((1, 1, 3)))
        templates = [with_words(rng, form, words) for form in forms for words in own]
        templates = rng.choice((templates, templates, [*TRACEBACK]))
        for n in range(rng.choice((3, 40, 200))):
            values = {
                "r": rng.randrange(3),
                "s": n % 60,
                "n": n,
                "c": rng.choice((1, 1, 2)),
                "p": rng.choice((4, 4, 5)),
                "w": "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.choice((9, 9, 5)))),
                "x": rng.choice((44, 44, 44, 79, 31)),
            }
            template = rng.choice(templates) if rng.random() < 0.98 else rng.choice(forms) + rng.choice(WORDS)
            lines.append(template.format(**values))
        lines.append(rng.choice(EVENTS).format(r=rng.randrange(3), n=len(lines)))
    path = tmp_path / "job.out"
    path.write_bytes((rng.choice("\r\n") + "\n".join(lines)).encode())
    each_line = one_by_one(path.read_bytes(), str(path))
    assert list(hits_in_file(path, BOOK)) == each_line
    assert sum(hit.more for hit in each_line) > 30


def test_one_line_among_thousands_that_begin_like_it(tmp_path: Path) -> None:
    storm = [
        f"[rank{n % 3}]: RuntimeError: CUDA error: unknown error in {chr(97 + n % 26) * 3}{n:x}y" for n in range(3000)
    ]
    storm[2000] = "[rank1]: RuntimeError: CUDA error: unknown error in x: uncorrectable ECC error encountered"
    (tmp_path / "job.out").write_text("\n".join(storm))
    hits = {hit.lineno: hit.rule.name for hit in hits_in_file(tmp_path / "job.out", BOOK)}
    assert hits[2001] == "gpu-ecc" != hits[1]


def test_line_without_the_number_that_others_have_before_its_words(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    path.write_text("\n".join([*(f"{n}. RuntimeError: bad value" for n in range(300)), " RuntimeError: bad value"]))
    (hit,) = hits_in_file(path, BOOK)
    assert hit.lineno == 301


@pytest.mark.parametrize("words", ["", " and much more" * 99])
def test_a_rulebook_remembers_nothing_of_an_earlier_file(tmp_path: Path, words: str) -> None:
    book, path = Rulebook(load()), tmp_path / "job.out"
    book.looked_up = 1 << 30
    path.write_text(f"3. RuntimeError: bad value{words}\n" * 20)
    assert hits_in_file(path, book) == []
    path.write_text(f" RuntimeError: bad value{words}\n")
    assert len(hits_in_file(path, book)) == 1


def test_number_that_tells_after_a_storm_of_others(tmp_path: Path) -> None:
    lines = [f"{XID}44, pid={n}, Ch 000000{n % 90 + 10}" for n in range(200)]
    (first,) = of(tmp_path, "\n".join([*lines, f"{XID}79, pid=99, Ch 00000010", *lines]))
    assert (first.root.lineno, first.category) == (201, Category.GPU_HARDWARE)


DIED = (
    "2026-01-05 03:17:35,472 WARNING worker.py:1829 -- A worker died or was killed while executing a task by an "
    "unexpected system error. Worker IP address: 10.0.0.7 Worker port: 10016 Worker PID: 4711 Worker exit type: "
    "SYSTEM_ERROR\n"
)
PEER = (
    "An MPI communication peer process has unexpectedly disconnected.  This\n"
    "  Local host: gpu3\n  Local PID:  4711\n  Peer host:  gpu4\n"
)
STORE = (
    "[rank{0}]: torch.distributed.DistBackendError: [{0}] is setting up NCCL communicator and retrieving ncclUniqueId "
)
CUT = (
    " ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, "
    "OpType=BROADCAST, Timeout(ms)=1800000) ran for 1800010 milliseconds before timing out.\n"
)
SIGNAL = "{} noticed that process rank 5 with PID 4711 on node gpu3 exited on signal {}.\n"


@pytest.mark.parametrize(
    ("text", "category", "culprit"),
    [
        # the class alone of what a task raised says less than the end of its worker
        (f"{DIED}ray.exceptions.RayTaskError(RuntimeError): ray::train()\n", "process_crash", Culprit(node="10.0.0.7")),
        (PEER, "process_crash", Culprit(node="gpu4")),
        (SIGNAL.format("prterun", "6 (Aborted)"), "process_crash", Culprit(node="gpu3", rank=5)),
        (SIGNAL.format("mpirun", "9 (Killed)"), "host_oom", Culprit(node="gpu3", rank=5)),
        # the rank that others could not reach, on a node that its messages do not name
        (
            "".join(f"{STORE.format(n)}from [0] via c10d key-value store by key '0', got error\n" for n in (1, 2)),
            "rendezvous_port",
            Culprit(rank=0),
        ),
        # the first of these lines lacks its beginning
        (
            CUT.format(1) + "".join(f"[rank{n}]:[E105 03:17:35.1{CUT.format(n)}" for n in range(2, 7)),
            "nccl_hang",
            Culprit(rank=0),
        ),
    ],
)
def test_who_is_to_blame(tmp_path: Path, text: str, category: str, culprit: Culprit) -> None:
    first = of(tmp_path, text)[0]
    assert (first.category.value, first.culprits) == (category, (culprit,))


FAILED = "slurmstepd: error: *** STEP 7.0 ON gpu1 CANCELLED AT 2026-01-05T03:20:11 DUE TO TASK FAILURE ***\n"


def test_task_that_slurm_did_not_kill_has_failed(tmp_path: Path) -> None:
    killed = "srun: error: gpu1: tasks 0-4,6,7: Terminated\nsrun: error: gpu2: tasks 8-15: Terminated\n"
    assert of(tmp_path, FAILED + killed)[0].culprits == (Culprit(rank=5),)
    assert of(tmp_path, FAILED + killed.replace("6,7", "6"))[0].culprits == ()


@pytest.mark.parametrize(
    "text",
    [
        f"[rank3]:[E105 03:17:35.1{CUT.format(3)}[rank2]:[E105 03:17:35.1{CUT.format(2)}",  # both wait
        "srun: error: gpu1: tasks 0-3: Exited with exit code 1\n",  # any of them may have been first
    ],
)
def test_nobody_is_blamed_without_reason(tmp_path: Path, text: str) -> None:
    assert {culprit.rank for culprit in of(tmp_path, text)[0].culprits} <= {None}
