"""Parse the labels before a log line's text: ranks, hosts, times and levels, as training programs print them. Pure.

    [rank3]: ...                                             torch, since 2.3, and torchrun's `--tee`
    [rank3]:[E709 17:05:38.16 ProcessGroupNCCL.cpp:632] [Rank 3] ...      torch's C++ (glog)
    E0213 12:07:20.08 8705 torch/distributed/elastic/multiprocessing/api.py:869] ...     torchelastic
    [default3]: ... | [1,3]<stderr>: ... | 3: ...            torchrun, mpirun (horovodrun: [3], or a time), srun
    node7:4711:4799 [2] transport/net_ib.cc:93 NCCL WARN ... NCCL: host, process, thread, device
    [node7:4711] *** ... | [node7:4711:0:4712] Caught signal ...            Open MPI, UCX
    May 29 01:37:38 node7 kernel: [257087.81] ...            syslog, dmesg
    [2025-08-25 14:56:20 TP3] ... | (VllmWorker rank=3 pid=17) ... | [3]PETSC ERROR: ...      SGLang, vLLM, PETSc
    (Trainer pid=17, ip=10.0.0.7) ... | (raylet) [... E 17 17] (raylet) node_manager.cc:30: ...     Ray
    2025-08-25 14:56:20,376 [INFO] [launch.py:319:x] ...     Python's logging, DeepSpeed
    2025-08-25 14:56:20.376: W tensorflow/core/x.cc:64] ... | I0825 14:56:20.37 17 train.py:501] ...    XLA, absl
    WARNING:absl:... | ... - WARNING - name - ... | [NeMo W ...] | WARNING 08-25 14:56:20 [x.py:3] ...  loggers
    worker-1: ... | 10.0.0.7: ...                            pdsh, DeepSpeed over several nodes
    trainer-1  | ... | [pod/train-0/pytorch] ... | (head, rank=0, pid=17) ...     Compose, kubectl, SkyPilot
    pretrain/0 [default3]:[rank3]: ... | dc5b74e6 [rank=3] || ...           TorchX and NeMo-Run, Determined
    [1,mpirank:3,algo-1]<stderr>: ... | [prterun-node7-17@1,3]<stderr>: ... SageMaker, PRRTE
    x1001c3s2b0n0.site 17: ... | [gpu3:2/4] 2026-01-05 ... | rank3[17][MainThread]: ...      PALS, ESPnet, LLM Foundry
    train-worker-3 pytorch ... | rank=3 | ... | (rank 3) ... | [GPU 3] ...         stern, and programs of their own
    stderr: ... | ...Z stderr F ... | ...Z 01E ... | [stderr]...            accelerate, Kubernetes (CRI), GitLab, Azure

Each kind of label is removed once, in any order of the labels; anything else stays in the text. Those of ranks may
repeat: torchrun's `--tee` and torch both print `[rank0]:`. So may the frames of boxes, as rich and typer draw them.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache

from transom_cli.diagnose.logs.lazy_re import lazy_re

LOOKED_AT = 8448  # characters of a line: what `reader` keeps of a very long one, on both sides of a match
_CONTROL = lazy_re(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?"
_SOURCE = r"[\w./+-]{1,120}\.(?:cpp|cc|cu|h|hpp|py|c|ts):\d{1,6}"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

# All are anchored and bounded, since they run on arbitrary output of jobs.
_LABELS = (
    r"\"?\[rank(?P<rank>\d{1,7})\]:?",
    r"\[(?:[Rr]ank|RANK)[ :=_-]{0,2}(?P<rank>\d{1,7})(?:/\d{1,7})?\]:?",
    r"[Rr]ank ?#?(?P<rank>\d{1,7}):(?=\s|\[)",
    r"\[PG (?:ID|GUID|\d)[^\]]{0,160}?Rank (?P<rank>\d{1,7})\]",
    r"(?:\[(?:(?:[\w.-]{1,80}@)?\d{1,5},)?|\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\[(?:\d{1,5},)?)(?P<rank>\d{1,7})\]"
    r"<std(?:out|err)>: ?",
    r"\[(?:default|trainer|worker)\w{0,20}?(?P<local>\d{1,5})\]:",
    r"[(<{](?:[Rr]ank|RANK)[ :=_-]{0,2}(?P<rank>\d{1,7})(?:/\d{1,7})?[)>}]:?",
    r"(?:rank|RANK)[=_](?P<rank>\d{1,7})(?::|,| \||(?= ))",
    r"\[(?:GPU|gpu|local_rank|LOCAL_RANK|proc|[Pp]rocess)[ :=_-]{0,2}(?P<local>\d{1,4})\]:?",
    r"\[(?P<label>[EWIF])(?:\d{3,4} \d\d:\d\d:\d\d(?:\.\d{1,9})?)?(?: \d{1,9})? ?" + _SOURCE + r"\]",
    r"(?P<label>[EWIF])\d{4} \d\d:\d\d:\d{1,10}\.\d{1,9} +\d{1,9} " + _SOURCE + r"\]",
    r":? ?(?P<label>[EWIF]) " + _SOURCE + r"\]",
    r"\w{1,40}\.cpp:\d{1,6}\](?= \[)",  # what remains of torch's C++ label if a line was cut
    r"what\(\): {1,4}(?=\[(?:PG|Rank) )",
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?P<label>[EWIF]) \d{1,9} \d{1,9}\] ?(?:\(\w{1,20}\) )?"
    r"[\w./]{1,60}:\d{1,6}:",
    r"(?P<node>" + _HOST + r"):(?P<pid>\d{1,10}):\d{1,10} \[(?P<device>-?\d{1,4})\] ",
    r"submitit (?P<label>DEBUG|INFO|WARNING|ERROR) \((?=\d)",
    r"\(\w{1,40}?[_ ](?:rank=|TP)(?P<rank>\d{1,5})(?:[_ ]\w{1,12})? pid=\d{1,10}\)",
    r"\((?:[\w.<>:()-]{1,60} )?pid=\d{1,10}(?:, ip=(?P<node>[0-9a-fA-F.:]{3,45}))?\)"
    r"|\((?:raylet|autoscaler|gcs_server)\)",
    r"\([\w.-]{1,60}, (?:rank=(?P<rank>\d{1,7}), )?pid=\d{1,10}(?:, ip=(?P<node>[0-9a-fA-F.:]{3,45}))?\)",
    r"\[(?P<rank>\d{1,7})\] (?=" + _HOST + r":\d{1,10}:\d{1,10} \[)",
    r"\[[\w.-]{1,80}@\d{1,5},(?P<rank>\d{1,7})\]\[(?P<node>" + _HOST + r"):\d{1,10}\]<std(?:out|err)>: ?",
    r"\[(?P<node>" + _HOST + r"):(?P<rank>\d{1,7})/\d{1,7}\](?= \d{4}-\d\d-\d\d)",
    r":? ?rank(?P<rank>\d{1,7})\[\d{1,10}\]\[\w{1,40}\]:",
    r"[0-9a-f]{8} (?:\[rank=(?P<rank>\d{1,7})\] )?\|\|",
    r"\[pod/(?P<node>[\w.-]{1,120})(?:/[\w.-]{1,120})?\]",
    r"(?P<time>\[?\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?)(?:\) - )?",
    r"(?:(?:DP|PP)\d{1,4} ){0,2}TP(?P<rank>\d{1,5})(?: EP\d{1,4})?\]",
    r"\[(?P<rank>\d{1,7})\]PETSC ERROR: (?:-{10,})?",
    r"(?P<syslog>(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d) (?P<node>" + _HOST
    + r") (?:[\w./-]{1,40}(?:\[\d{1,10}\])?: )?",
    r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d(?= \[| \d{4}-)",
    r"\[(?P<dmesg>\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})\]",
    r"\[ {0,8}\d{1,9}\.\d{6}\]",
    r"(?:kern|user|daemon) {0,4}:(?:emerg|alert|crit|err|warn|notice|info|debug) {0,4}:",
    r"\[?(?P<label>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\](?=[ :\[])",
    r"(?P<label>DEBUG|INFO|WARNING|WARN):(?:[\w.]{1,80}:)?(?=\s|\S)",
    r"(?:- [\w.]{1,60} )?- (?P<label>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL) - (?:[\w.]{1,60} - )?",
    r"\[NeMo (?P<label>[DIWE]) [^\]]{8,80}?(?: rank[ :=]{1,2}(?P<rank>\d{1,7}))?\]",
    r"(?P<label>DEBUG|INFO|WARNING|ERROR|CRITICAL) {1,5}(?=\[)",
    r"\[[\w.:,/=@ -]{1,80}?[, ]rank[=:] ?(?P<rank>\d{1,7})\b[^\]]{0,40}\]:?",
    r"\[[A-Za-z_]\w{0,40}(?:\.\w{1,40}){1,8}:\d{1,6}\](?= )",
    r"\[PID[:=] ?\d{1,10}\]",
    r"\d{4}-\d\d-\d\d-\d\d:\d\d:\d\d(?:\.\d{1,6}){0,3} "
    r"\(PID:\d{1,10}, Device:(?P<local>\d{1,4}), RankID:(?:-\d|(?P<rank>\d{1,7}))\)",
    r"(?P<label>DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})? \[?[\w./]{1,80}:\d{1,6}\]",
    r"(?P<label>DEBUG|INFO|WARNING|ERROR) [\w./]{1,80}\.py:\d{1,6} --",
    r"\| (?P<label>DEBUG|INFO|WARNING|ERROR|CRITICAL) {1,5}\| [\w.<>]{1,80}:[\w<>]{1,60}:\d{1,6} - ",
    r"\| {0,2}(?P<label>DEBUG|INFO|WARNING|ERROR|CRITICAL) {1,9}\|",
    r"\[[\w.-]{1,60}\.py:\d{1,6}(?::\w{1,60})?\]",
    r"\[(?P<node>" + _HOST + r"):mpi_rank_(?P<rank>\d{1,7})\](?:\[\w{1,40}\])?",
    r"\[(?P<node>[A-Za-z][\w.-]{0,62}):\d{1,10}(?::\d{1,4}:\d{1,10})?\] ?(?=\*\*\* |Caught signal |Signal: )",
    r"\[\d{1,5},mpirank:(?P<rank>\d{1,7}),(?P<node>" + _HOST + r")\]<std(?:out|err)>: ?",
    r"\[std(?:out|err)\]:?|std(?:out|err) [FP](?= |$)|\d\d[OE](?: |\+|$)",
    r"\|",
    r"[\u2502\u2503]",
)  # fmt: skip
_RANKS = 6  # labels that may repeat
_TASK = lazy_re(
    r" {0,6}(?:(?P<node>x\d{4}c\d{1,2}s\d{1,2}b\dn\d[\w.-]{0,60}) )?(?P<rank>\d{1,7}): "
)  # srun --label, PALS with its node; only at the start of a line
_FANNED = lazy_re(
    r"(?!slurmstepd)(?P<node>(?:\d{1,3}\.){3}\d{1,3}|(?:[a-z][a-z-]{0,40}-|\w{0,30})(?:node|gpu|worker|host|master)[\w.-]{0,30}\d"
    r"|GPU(?=\w{0,28}\d)[\w-]{3,30}|(?:dgx|hgx|DGX|HGX|compute)-?[\w-]{0,30}\d|(?:nid|cn)-?\d{2,6}|ip(?:-\d{1,3}){4}"
    r"): (?= *\S)"
)  # pdsh
_STERN = lazy_re(
    r"(?P<node>[a-z][a-z0-9-]{0,60}-(?:worker|master|launcher|replica|node|head|chief|ps)-\d{1,4}(?:-\d{1,4})?) "
    r"(?:pytorch|tensorflow|jax|mpi|main|trainer|train|worker|container|node) "
)  # the pod and its container
_COMPOSE = lazy_re(r"[a-z0-9][\w.-]{0,60}[-_]\d{1,4} {1,40}\| ")  # Compose's service and number
_TORCHX = lazy_re(
    r"[A-Za-z][\w.-]{0,60}/\d{1,5} (?=\[(?:default|trainer|worker|rank)\w{0,20}?\d{1,5}\]:)"
)  # role, replica
# A progress bar after which another process prints without a line end.
_BAR = lazy_re(
    r"(?:[^\[]{0,60}\d%\|[^\[]{0,300}|\d{1,9}/\d{1,9} )(?:\[\d{1,3}:\d\d.{0,300}?\])?"
    r"(?=\[rank\d|\[\d{4}-\d\d-\d\d|slurmstepd|srun: |(?:INFO|WARNING|ERROR):\w|Traceback \()"
)
# Comments, launchers that pass on two streams, Kaggle's time and line number, Determined's level.
_MARGIN = 8  # blanks
_QUOTED = lazy_re(
    r"(?:[#>] {1,20}|std(?:err|out): ?|\{\"log\":\"|\d{1,8}\.\d{1,3}s {1,4}\d{1,8} "
    r"|<[a-z]{0,8}> {1,10}(?=\[\d{4}-\d\d)){1,3}(?= *\S)"
)
_WARNING = lazy_re(r"(?:[\w.-]{1,40}: ){0,2}warning\b ?[:!\]]", re.IGNORECASE)
_SLURMD = lazy_re(r"slurmstepd-(?P<node>" + _HOST + r"): ")
_SRUN = lazy_re(r"srun: error: (?P<node>" + _HOST + r"): tasks? (?:(?P<rank>\d{1,7})|[\d,-]{1,400}): ")
_FILE_RANK = lazy_re(
    r"(?:^|[/_.-])(?:rank|task|proc(?:ess)?|workerlog)[-_=.]?(\d{1,7})(?=\D|$)"
    r"|^\d{1,12}(?:_\d{1,9}){0,2}_(\d{1,7})_log\.(?:out|err)$",  # submitit's
    re.IGNORECASE,
)
_FILE_NODE = lazy_re(r"(?:^(?:host|node)[-_=]|[_.-](?:host|node)(?:=|[-_](?=\w*\d)))([A-Za-z][\w-]{0,62})(?=\.|$)")
# A folder's whole name: `multi_node_run` and `glue_task_2` name neither a node nor a rank.
_FOLDER_RANK = lazy_re(r"(?:^|/)(?:(?:rank|task|proc)[-_=.]?|attempt_\d{1,4}/)(\d{1,7})/", re.IGNORECASE)
_FOLDER_NODE = lazy_re(r"(?:^|/)(?:host|node)[-_=]([A-Za-z][\w-]{0,62})/")


EXPRESSIONS = (
    *_LABELS,
    *(one.pattern for one in (_QUOTED, _TASK, _FANNED, _COMPOSE, _STERN, _TORCHX, _BAR, _WARNING, _SLURMD, _SRUN)),
)  # all that labels consist of
_ZEROS = str.maketrans("123456789", "000000000")
_NAMED = lazy_re(r"\(\?P<([a-z]+)>")
_NETWORK = lazy_re(r"-(?:ib|hsn|opa|roce|eth)\d{0,2}$")
Groups = tuple[tuple[str, int], ...]  # names and numbers of groups


@lru_cache(maxsize=1)
def _labels() -> tuple[re.Pattern[str], dict[int, tuple[int, Groups]]]:
    """Compile the labels, all in one, when the first line is split. Returns also the number and the groups of each, by
    the number of the group around it."""
    labels = (_NAMED.sub(rf"(?P<\1_{n}>", one) for n, one in enumerate(_LABELS))
    found = re.compile("|".join(f"(?P<_{n}>{one})" for n, one in enumerate(labels)))
    groups: dict[int, list[tuple[str, int]]] = {n: [] for n in range(len(_LABELS))}
    for name, group in found.groupindex.items():
        what, _, n = name.partition("_")
        groups[int(n)].append((what, group))
    return found, {of[0][1]: (n, tuple(of[1:])) for n, of in groups.items()}


@lru_cache(maxsize=len(_LABELS))
def _label(n: int) -> re.Pattern[str]:
    return re.compile(_LABELS[n])


@dataclass(frozen=True)
class Record:
    """One line. text: without labels. node, rank: as the labels name them, "" and None without. device, pid: of NCCL's.

    local: a rank's number on its node, if only that is known. at: wall clock in seconds; a time without a zone is taken
    as UTC, which is enough to compare the lines of one job. level: E, W, I, F, or a full name.
    indent: blanks before the text.
    """

    line: str
    text: str
    rank: int | None = None
    local: int | None = None
    node: str = ""
    device: str = ""
    pid: str = ""
    level: str = ""
    at: float | None = None
    indent: int = 0

    @property
    def mild(self) -> bool:
        """Whether the program itself prints it as a warning or less."""
        return self.level[:1] in ("D", "I", "W")


def clean(raw: bytes) -> str:
    """Return a line without control characters, colours and invalid UTF-8, cut to `LOOKED_AT` characters."""
    text = (
        raw.decode("utf-8", "replace") if len(raw) <= 4 * LOOKED_AT else raw[: 4 * LOOKED_AT].decode("utf-8", "replace")
    )
    text = text if text.isprintable() else _CONTROL.sub("", text.replace("\t", " "))
    return text[:LOOKED_AT].rstrip()


Spans = dict[str, tuple[int, int]]
_WHO = ("rank", "local", "node", "device", "pid")


def record(line: str) -> Record:
    """Split a clean line into its labels and its text."""
    spans, at = _labels_in(line.translate(_ZEROS))
    text = _text_of(line, at)
    found = {name: line[start:stop] for name, (start, stop) in spans.items()}
    rank, local = found.get("rank"), found.get("local")
    return Record(
        line=line,
        text=text,
        rank=int(rank) if rank is not None else None,
        local=int(local) if local is not None else None,
        node=found.get("node", ""),
        device=found.get("device", ""),
        pid=found.get("pid", ""),
        level=found.get("label", "W" if _WARNING.match(text) else ""),
        at=_time(found),
        indent=at - len(line[:at].rstrip(" ")),
    )


def rank_of(line: str) -> int | None:
    """As `record(line).rank`."""
    span = _labels_in(line.translate(_ZEROS))[0].get("rank")
    return int(line[slice(*span)]) if span is not None else None


def who(line: str) -> list[tuple[int, int]]:
    """Return where the labels of a clean line name its rank, node, device and process."""
    return [span for name, span in _labels_in(line.translate(_ZEROS))[0].items() if name in _WHO]


@lru_cache(maxsize=256)
def _labels_in(line: str) -> tuple[Spans, int]:
    """Return where the labels name what, and where the text begins that follows them. No label depends on the value of
    a digit, so the lines of a storm, with zeros for theirs, are split once."""
    found: Spans = {}
    at, seen = 0, 0
    any_label, places = _labels()
    if (quoted := _QUOTED.match(line)) is not None:
        at = quoted.end()
    while at < _MARGIN and line[at : at + 1] == " ":  # of a text quoted as code
        at += 1
    task = _TASK.match(line, at) or _FANNED.match(line, at) or _COMPOSE.match(line, at)
    task = task or _STERN.match(line, at)
    task = task or (_BAR.match(line, at) if "%|" in line or "it/s" in line or "s/it" in line else None)
    task = task or (_TORCHX.match(line, at) if "]:" in line else None)
    if task:
        found = {name: task.span(name) for name, value in task.groupdict().items() if value}
        at = task.end()
    while True:
        while at < len(line) and line[at] == " ":
            at += 1
        match = any_label.match(line, at)
        if match is None:
            break
        n, groups = places[match.lastindex or 1]
        if seen >> n & 1:
            later = ((n, _label(n).match(line, at)) for n in range(n + 1, len(_LABELS)) if not seen >> n & 1)
            n, match = next((one for one in later if one[1]), (n, None))
            if match is None:
                break
            groups = tuple(match.re.groupindex.items())
        for name, number in groups:
            if match[number]:
                found.setdefault(name, match.span(number))
        at, seen = match.end(), seen | (1 << n if n >= _RANKS else 0)
    text = _text_of(line, at)
    slurm = _SLURMD.match(text) or _SRUN.match(text)
    if slurm:
        begin = line.index(text, at)
        named = ((name, slurm.span(name)) for name, value in slurm.groupdict().items() if value)
        found.update((name, (begin + start, begin + stop)) for name, (start, stop) in named)
    return found, at


def _text_of(line: str, at: int) -> str:
    return line[at:].lstrip(" :").rstrip(" \u2502\u2503") if at else line.strip()


def of_file(name: str) -> tuple[int | None, str]:
    """Return the rank and node in a log's path: `rank-3.log`, `job.rank3.err`, `node=n7.log`, `rank_3/stdout`;
    torchrun's `attempt_0/3/stderr.log`, submitit's `4711_3_log.err`, Paddle's `workerlog.3`."""
    folder, base = name[: name.rfind("/") + 1], name[name.rfind("/") + 1 :]
    rank, node = _FILE_RANK.search(base), _FILE_NODE.search(base)
    rank, node = rank or _FOLDER_RANK.search(folder), node or _FOLDER_NODE.search(folder)
    return (int(rank[rank.lastindex or 1]) if rank else None), (node[1] if node else "")


def _time(found: dict[str, str]) -> float | None:
    try:
        if "time" in found:
            text = found["time"].strip("[]").replace(",", ".").replace("_", "T").replace("Z", "+00:00")
            date, _, fraction = text.partition(".")
            zone = next((fraction[i:] for i, c in enumerate(fraction) if c in "+-"), "") if fraction else ""
            moment = datetime.fromisoformat(date.replace(" ", "T") + _colon(zone))
            digits = fraction[: len(fraction) - len(zone)]
            moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
            return moment.timestamp() + (float(f"0.{digits}") if digits else 0.0)
        if "dmesg" in found:
            _, month, day, clock, year = found["dmesg"].split()
            stamp = f"{year}-{_MONTHS.index(month) + 1:02d}-{int(day):02d}T{clock}+00:00"
            return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None  # not a time
    return None


def _colon(zone: str) -> str:
    """Return `+0200` as `+02:00`, as Python 3.10 needs it."""
    return f"{zone[:3]}:{zone[3:]}" if len(zone) == 5 else zone


def short_host(node: str) -> str:
    """Return a host's name without its domain, and without the suffix of the network that it names."""
    return node if node.replace(".", "").isdigit() else _NETWORK.sub("", node.partition(".")[0])
