"""Read whom a line names as the one that ended, in the words that launchers and frameworks share. Pure.

    prterun noticed that process rank 5 with PID 4711 on node gpu3 exited on signal 11 (Segmentation fault).   Open MPI
    gpu3.cluster: rank 5 died from signal 11 | FATAL: doom: rank 5 on host gpu3 exited            PALS, Flux
    Exit status of rank 5: killed by signal 9 | ... MPI_Abort(MPI_COMM_WORLD, 1) - process 5      MPICH
    One or more process (first noticed rank 5) terminated with signal 9 | MPI process (rank: 5, pid: 4711) exited ...
    Process 5 exit with status code 1. | Worker 5 has failed. | Worker proc VllmWorker-5 died     Horovod, Ray, vLLM
    error raised in its creation task, ray::Worker.__init__() (pid=17, ip=10.0.0.7, ..., repr=Worker[rank=5])       Ray
    AssertionError: Rank 5: found NaN ... | RuntimeError: Rank 5, node gpu3, device 1: ...        Megatron

Rules know what happened; this module knows the subject of the sentence. It serves lines whose labels and rule name no
rank, and only those about the end of a process or about the rank that speaks: a line about a lost peer names a victim.
"""

from functools import lru_cache

from transom_cli.diagnose.clue import Culprit
from transom_cli.diagnose.logs.lazy_re import lazy_re

_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,78}[A-Za-z0-9])?"
_NUMBER = r"[ #:=_-]{0,2}\[?(\d{1,7})\b"
_ENDED = (
    r"(?:died|exit(?:ed|s)?|(?:has )?failed|crashed|(?:was )?aborted|(?:was )?terminated|(?:was )?killed|disappeared"
    r"|raised|threw|encountered (?:an? )?(?:\w{1,30} )?(?:error|exception)"
    r"|caused collective abort|received signal|ran out of|has ended|is dead)\b"
)
_TENSOR = r"(?<!\bof )(?<!\bbe )(?<!\bis )(?<!\bhas )"  # the rank of a tensor
_BETWEEN = r"(?:(?!\b(?:rank|task|worker|peer|because|after|since|waiting)\b)[^;!?]){0,90}?"
_SUBJECTS = (
    rf"(?:^|[\s(:\[]){_TENSOR}(?:[Pp]rocess )?(?:[Rr]ank|RANK|[Tt]ask){_NUMBER}{_BETWEEN}\b{_ENDED}",
    rf"(?i:\bexit status of rank){_NUMBER}:",
    rf"(?<![\w.-])\w{{0,20}}[Ww]orker{_NUMBER}\]?(?! *:){_BETWEEN}\b{_ENDED}",
    rf"^(?:[\w.]{{0,80}}(?:Error|Exception): )?[Pp]rocess (\d{{1,3}}) {_ENDED}",
    r"\baborted\.? ?\(rank=(\d{1,7})\)",
    r"\(rank: (\d{1,7}), pid: \d{1,10}\) (?:exited|terminated)",
    r"\bis aborted by: /job:\w{1,40}/replica:\d{1,7}/task:(\d{1,7}) is down",
    r"\(first noticed rank (\d{1,7})\)",
    r"(?:MPI_Abort\([^)]{0,60}\)|\bABORT) - process (\d{1,7})\b",
    r"\[Rank (\d{1,7}) Error\b",
    r"\bDeadLock detected from rank: (\d{1,7})\b",
    r"\brepr=[\w.]{1,80}\[rank=(\d{1,7})\]",
    r"^Exception in device=(?:TPU|CUDA|GPU|XLA\w{0,8}):(\d{1,4})\b",
    rf"(?i:\b(?:error|exception|failure|failed|aborted|crashed|nan|oom) (?:on|at|in) (?:global )?rank){_NUMBER}",
)  # who ended
_SPEAKS = lazy_re(
    rf"^(?:[\w.]{{1,80}}(?:Error|Exception): )?[Rr]ank (\d{{1,7}})(?:, (?:node|host) ({_HOST}))?(?:[,:]| -) "
    r"|^[\w.]{1,80}(?:Error|Exception): [\[(][Rr]ank[ :=_-]{0,2}(\d{1,7})(?:/\d{1,7})?[\])]"
)
_MENTIONS = lazy_re(
    r"^[\w.]{1,80}(?:Error|Exception): .{0,400}?(?:[( ]rank[ =:]{1,2}(\d{1,7})\)[.!]?$| on rank (\d{1,7})\b)"
)
_RANK = lazy_re(r"(?i)\branks?\b|\b(?:peer|remote|wait\w*|expect\w*|from|other|tensor)\b")
_ENDS = lazy_re("|".join(_SUBJECTS))
_LOADER = lazy_re(r"(?i)data ?loader|\bpid\W{0,2}\d{1,8}\) (?:exited|is killed)")  # numbers of its own processes
_NUMBERED = r"(?=[A-Za-z][\w.-]*\d|\d{1,3}\.)"  # the name of a host, not a word or a number
_PLACES = lazy_re(
    r"\[NID (\d{5})\] "
    rf"|\bon node ({_HOST}) exit|\bon (?:node|host|machine) {_NUMBERED}({_HOST})|^{_NUMBERED}({_HOST}): rank \d"
    rf"|'ssh\b[^']{{0,200}}? (?:[\w.-]{{1,40}}@)?{_NUMBERED}({_HOST})\b[^']{{0,80}}' returned non-zero exit status 255"
    r"|\b[Pp]od[ /:]{1,2}\"?([a-z0-9][a-z0-9.-]{2,80}-\d{1,4})\b"
    r"|^([a-z0-9][a-z0-9.-]{2,80}-\d{1,4}) {1,20}\d/\d {1,20}(?:OOMKilled|Error|Evicted|CrashLoopBackOff)\b"
    rf"|\bkilled \d{{1,4}} tasks? on ({_HOST})|\bray::[^()]{{1,200}}\(\) \(pid=\d{{1,10}}, ip=([0-9a-fA-F.:]{{3,45}})"
)


def is_about_an_end(text: str) -> bool:
    """Whether a line says that a process ended, and not only who speaks."""
    return not _LOADER.search(text) and _ENDS.search(text) is not None


@lru_cache(maxsize=4096)
def named(text: str) -> Culprit:
    """Return whom the text of a line names as ended, or as the speaker; nobody if it names none."""
    rank: int | None = None
    if (speaks := _SPEAKS.match(text)) is not None:
        return Culprit(speaks[2] or "", int(speaks[1] or speaks[3]))
    if is_about_an_end(text) and (ends := _ENDS.search(text)) is not None:
        rank = int(next(filter(None, ends.groups())))
    elif (mentions := _MENTIONS.match(text)) is not None and len(_RANK.findall(text)) == 1:
        rank = int(mentions[1] or mentions[2])
    place = _PLACES.search(text)
    node = next(filter(None, place.groups())) if place else ""
    return Culprit(f"nid{node}" if node.isdigit() else node, rank)
