"""One probe process, for one device: `python -m transom_cli.health.probe.rank --node NAME --index I --device cpu`.

Asks come on stdin and answers go to stdout, as `shapes` has them; nothing else is written there, whatever a library
prints. It ends at once when stdin closes. An ask that takes longer than its deadline ends it too, by an alarm of the
kernel's: neither a hung collective nor a lock of the interpreter can keep it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from transom_cli.core.codec import BadRecord
from transom_cli.core.rootline import clean
from transom_cli.health.probe.peers import addresses
from transom_cli.health.probe.shapes import BYE, Answer, Ask, Compute, Gone, Hello, answer_to_json, ask_from_json

GRACE = 3.0  # seconds beyond an ask's deadline: what ends in time says so itself

Say = Callable[[Answer], None]


def main() -> None:
    arguments = _arguments()
    say = _sayer()
    asks = _listen()
    warm: Callable[[], tuple[Hello, Callable[[Ask], Answer]]] | None = None
    answer: Callable[[Ask], Answer] | None = None
    try:
        warm = _prepare(arguments)
    except Exception as error:  # torch, its libraries: nothing of it may work here
        ready = _unable(arguments, error)
        say(ready)
    for message in asks:
        try:
            ask = ask_from_json(message)
        except BadRecord as error:
            say(Gone(clean(str(error))))
            break
        if ask is None:
            if warm is not None and answer is None:
                try:
                    ready, answer = warm()
                except Exception as error:  # the driver, a device
                    ready, warm = _unable(arguments, error), None
            say(ready)
        elif answer is not None:
            with _alarm(ask.deadline + GRACE):
                said = _answered(answer, ask)
            say(said)
            if isinstance(said, Gone):
                break
    os._exit(0)  # threads of gloo and NCCL are not waited for


def _answered(answer: Callable[[Ask], Answer], ask: Ask) -> Answer:
    """What a library raises that nobody expects of it ends the process, in its own words."""
    try:
        return answer(ask)
    except Exception as error:
        return Gone(clean(" ".join(f"{type(error).__name__}: {error}".split())))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="transom_cli.health.probe.rank", description="one probe process")
    parser.add_argument("--node", required=True)
    parser.add_argument("--index", type=int, required=True, help="number of the device on its node, from 0")
    parser.add_argument("--device", required=True, help="cpu or cuda:K")
    parser.add_argument("--of", type=int, default=1, help="probe processes on this node [1]")
    parser.add_argument("--threads", type=int, default=1, help="threads that compute [1]")
    return parser.parse_args()


def _prepare(arguments: argparse.Namespace) -> Callable[[], tuple[Hello, Callable[[Ask], Answer]]]:
    """Import torch, which takes seconds, and keep a board for others to meet at, on a port that is free.

    What is returned makes the device ready, and runs each kernel once. It is called when hello is asked for: the node's
    devices have been looked at by then, and are not in use by us meanwhile; and libraries that come slowly from a cold
    file system do so in the time of the hello, which blames nobody.
    """
    os.environ.update(
        OMP_NUM_THREADS=str(arguments.threads),
        CUBLAS_WORKSPACE_CONFIG=":4096:8",  # one answer for one question
        TORCH_NCCL_ASYNC_ERROR_HANDLING="0",  # NCCL's watchdog would end the process before it has told anything
        TORCH_NCCL_ENABLE_MONITORING="0",
    )
    import torch

    from transom_cli.health.probe.board import OwnBoard
    from transom_cli.health.probe.compute import compute, deterministic, warm_up
    from transom_cli.health.probe.links import Me, link

    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    if device.type == "cuda":
        deterministic()
    me = Me(arguments.node, arguments.index, device, OwnBoard())

    def answer(ask: Ask) -> Answer:
        return compute(ask, me.node, me.index, device) if isinstance(ask, Compute) else link(ask, me)

    def warm() -> tuple[Hello, Callable[[Ask], Answer]]:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        warm_up(device)
        ready = Hello(
            node=arguments.node,
            index=arguments.index,
            device=arguments.device,
            of=arguments.of,
            kind=_kind(torch, device),
            port=me.board.port,
            addresses=addresses(),
            versions=_versions(torch),
        )
        return ready, answer

    return warm


def _kind(torch: Any, device: Any) -> str:
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        return f"{found.name}, {found.multi_processor_count} processors"
    instructions = torch.backends.cpu.get_cpu_capability()
    return f"{_processor()}, {instructions}, threads: {torch.get_num_threads()}"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return clean(line.partition(":")[2])
    return os.uname().machine


def _versions(torch: Any) -> tuple[tuple[str, str], ...]:
    found = [("torch", str(torch.__version__)), ("cuda", str(torch.version.cuda or ""))]
    with contextlib.suppress(Exception):  # a torch without NCCL, by several exceptions
        found.append(("nccl", ".".join(str(part) for part in torch.cuda.nccl.version())))
    return tuple((name, version) for name, version in found if version)


def _unable(arguments: argparse.Namespace, error: Exception) -> Hello:
    words = clean(" ".join(f"{type(error).__name__}: {error}".split()))
    return Hello(arguments.node, arguments.index, arguments.device, arguments.of, error=words)


def _sayer() -> Say:
    """Answers go where stdout went when the process began; what is printed from now on goes to stderr."""
    sys.stdout.flush()
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.set_inheritable(out.fileno(), False)
    os.dup2(2, 1)

    def say(answer: Answer) -> None:
        try:
            out.write(json.dumps(answer_to_json(answer)) + "\n")
            out.flush()
        except OSError:
            os._exit(0)  # nobody listens any more

    return say


def _listen() -> Iterator[Mapping[str, Any]]:
    """The messages on stdin, one after the other. Its end, or a "bye", ends the process in the midst of an ask."""
    came: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: not JSON, from something that is not our asker
            for line in sys.stdin.buffer:
                message = json.loads(line)
                if not isinstance(message, dict) or message == BYE:
                    break
                came.put(message)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return iter(came.get, None)


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """End the process by SIGALRM after so long, without a word of this interpreter."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    main()
