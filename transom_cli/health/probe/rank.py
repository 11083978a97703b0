"""One probe process, for one device: `python -m transom_cli.health.probe.rank --node NAME --index I --device cpu`.

Requests come on stdin and answers go to stdout (`messages`); what libraries print goes to stderr. The process ends at
once when stdin closes, or when a request exceeds its deadline, by a kernel alarm: neither a hung collective nor the
interpreter's lock can stop that.
"""

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
from transom_cli.core.log_lines import clean
from transom_cli.health.probe.messages import (
    BYE,
    Answer,
    Compute,
    Gone,
    Hello,
    Request,
    answer_to_json,
    request_from_json,
)
from transom_cli.health.probe.rendezvous import addresses

GRACE = 3.0  # seconds after a request's deadline, within which it reports its own timeout

Write = Callable[[Answer], None]


def main() -> None:
    options = _options()
    write = _answer_writer()
    requests = _listen()
    prepare: Callable[[], tuple[Hello, Callable[[Request], Answer]]] | None = None
    answer: Callable[[Request], Answer] | None = None
    try:
        prepare = _prepare(options)
    except Exception as error:  # torch and its libraries may fail in any way
        ready = _unable(options, error)
        write(ready)
    for message in requests:
        try:
            request = request_from_json(message)
        except BadRecord as error:
            write(Gone(clean(str(error))))
            break
        if request is None:
            if prepare is not None and answer is None:
                try:
                    ready, answer = prepare()
                except Exception as error:  # the driver or a device
                    ready, prepare = _unable(options, error), None
            write(ready)
        elif answer is not None:
            with _alarm(request.deadline + GRACE):
                text = _answered(answer, request)
            write(text)
            if isinstance(text, Gone):
                break
    os._exit(0)  # do not wait for threads of gloo and NCCL


def _answered(answer: Callable[[Request], Answer], request: Request) -> Answer:
    """Turn an unexpected exception into Gone, which ends the process."""
    try:
        return answer(request)
    except Exception as error:
        return Gone(clean(" ".join(f"{type(error).__name__}: {error}".split())))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="transom_cli.health.probe.rank", description="one probe process")
    parser.add_argument("--node", required=True)
    parser.add_argument("--index", type=int, required=True, help="number of the device on its node, from 0")
    parser.add_argument("--device", required=True, help="cpu or cuda:K")
    parser.add_argument("--of", type=int, default=1, help="probe processes on this node [1]")
    parser.add_argument("--threads", type=int, default=1, help="threads that compute [1]")
    return parser.parse_args()


def _prepare(options: argparse.Namespace) -> Callable[[], tuple[Hello, Callable[[Request], Answer]]]:
    """Import torch, which takes seconds, and start a rendezvous store on a free port.

    The returned function prepares the device and runs each kernel once. It is called for the hello: by then the health
    checks have read the node's devices, unused by us; and libraries that load slowly from a cold file system do so
    during the hello, which accuses nobody.
    """
    os.environ.update(
        OMP_NUM_THREADS=str(options.threads),
        CUBLAS_WORKSPACE_CONFIG=":4096:8",  # deterministic results
        TORCH_NCCL_ASYNC_ERROR_HANDLING="0",  # NCCL's watchdog would kill the process before it can answer
        TORCH_NCCL_ENABLE_MONITORING="0",
    )
    import torch

    from transom_cli.health.probe.compute import compute, deterministic, warm_up
    from transom_cli.health.probe.links import Me, link
    from transom_cli.health.probe.rendezvous import OwnStore

    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    if device.type == "cuda":
        deterministic()
    me = Me(options.node, options.index, device, OwnStore())

    def answer(request: Request) -> Answer:
        return compute(request, me.node, me.index, device) if isinstance(request, Compute) else link(request, me)

    def prepare() -> tuple[Hello, Callable[[Request], Answer]]:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        warm_up(device)
        ready = Hello(
            node=options.node,
            index=options.index,
            device=options.device,
            of=options.of,
            kind=_kind(torch, device),
            port=me.store.port,
            password=me.store.password,
            addresses=addresses(),
            versions=_versions(torch),
        )
        return ready, answer

    return prepare


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


def _unable(options: argparse.Namespace, error: Exception) -> Hello:
    words = clean(" ".join(f"{type(error).__name__}: {error}".split()))
    return Hello(options.node, options.index, options.device, options.of, error=words)


def _answer_writer() -> Write:
    """Return a function that writes answers to the original stdout; later prints go to stderr."""
    sys.stdout.flush()
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.set_inheritable(out.fileno(), False)
    os.dup2(2, 1)

    def write(answer: Answer) -> None:
        try:
            out.write(json.dumps(answer_to_json(answer)) + "\n")
            out.flush()
        except OSError:
            os._exit(0)  # the reader is gone

    return write


def _listen() -> Iterator[Mapping[str, Any]]:
    """Yield the messages on stdin. Its end, or a "bye", ends the process even during a request."""
    came: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: not JSON, so not from a node worker
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
    """Kill the process by SIGALRM after this time, without involving the interpreter."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    main()
