"""Answers the trainers that report to NVIDIA's rank monitor: Megatron with `--enable-ft-package`, NeMo's callbacks.

The client in nvidia-resiliency-ext (NVRx) connects to `$FT_RANK_MONITOR_IPC_SOCKET` and sends heartbeats, or opens and
closes sections such as "setup", "step" and "checkpointing". They become a rank's progress here: a sign of life, the
phase, and the step where the client knows Megatron's iteration (from 0.7 on). The timeouts that it sends are not used.

Messages are pickles. They are limited in size and to the opcodes of plain data, and can only make inert objects
(`read_message`). Only processes of this user are answered. If the agent dies, the client raises an error in the
trainer, as it does without its own monitor.
"""

import contextlib
import io
import os
import pickle
import pickletools
import re
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from transom_cli.heartbeat import paths
from transom_cli.heartbeat.table import RankBeat
from transom_cli.rpc.local import same_user

MOST = 64 * 1024  # bytes of a message; the largest has the timeouts of all sections
LARGEST = 1 << 40  # of an iteration
SECTIONS = ("setup", "step", "checkpointing")  # Megatron's and NeMo's; the client accepts no others
_PACKAGE = "nvidia_resiliency_ext.fault_tolerance."
_OPCODES = re.compile(  # of plain data, known classes and their attributes
    "PROTO|FRAME|STOP|MARK|MEMOIZE|BINPUT|BINGET|GLOBAL|STACK_GLOBAL|NEWOBJ|REDUCE|BUILD|NONE|NEWTRUE|NEWFALSE|"
    "BININT[12]?|LONG1|BINFLOAT|(SHORT_)?BIN(UNICODE|BYTES)|TUPLE[123]?|APPENDS?|SETITEMS?|ADDITEMS|"
    "EMPTY_(TUPLE|LIST|DICT|SET)"
)


class BadMessage(ValueError):
    """The bytes are no message of NVRx's client."""


class _Fixed(type):
    def __setattr__(cls, name: str, value: object) -> None:
        raise TypeError("a pickle must not change a class")


class Message(metaclass=_Fixed):
    """Any object of the protocol: its attributes as `vars`. An enum member has its value in `args`."""

    def __init__(self, *args: object) -> None:
        self.args = args


class InitMsg(Message):
    """A session begins."""


class HeartbeatMsg(Message):
    """A heartbeat."""


class SectionMsg(Message):
    """A section is opened or closed."""


_KNOWN: dict[str, type[Message]] = {
    **{kind.__name__: kind for kind in (InitMsg, HeartbeatMsg, SectionMsg)},
    **dict.fromkeys(
        ("AuthkeyMsg", "UpdateConfigMsg", "RankInfo", "SectionAction", "HeartbeatTimeouts", "SectionTimeouts"), Message
    ),
}
_OPEN, _CLOSE = 1, 2  # SectionAction; 3 closes all


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if not module.startswith(_PACKAGE) or name not in _KNOWN:
            raise BadMessage(f"{module}.{name} is not allowed"[:200])
        return _KNOWN[name]


def read_message(data: bytes) -> Message:
    """Read one message without running code. Raises BadMessage."""
    if len(data) > MOST:
        raise BadMessage(f"{len(data)} bytes are too many")
    try:
        for opcode, _, _ in pickletools.genops(data):
            if not _OPCODES.fullmatch(opcode.name):
                raise BadMessage(f"opcode {opcode.name} is not allowed")
        message = _Reader(io.BytesIO(data)).load()
    except BadMessage:
        raise
    except Exception as error:  # damaged bytes can raise anything
        raise BadMessage(f"{type(error).__name__}: {error}"[:200]) from None
    if not isinstance(message, Message):
        raise BadMessage(f"a {type(message).__name__} is no message")
    return message


def _plain(value: object) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def _object(module: str, name: str, fields: dict[str, bytes]) -> bytes:
    """The pickle of an object whose class only the client has."""
    state = b"".join(_plain(key) + value + b"s" for key, value in fields.items())
    return f"c{_PACKAGE}{module}\n{name}\n".encode() + b")\x81}" + state + b"b"


def ok(**fields: bytes) -> bytes:
    """The pickle that answers a message."""
    return b"\x80\x02" + _object("data", "OkMsg", fields) + b"."


def configuration(*, one_way: bool) -> bytes:
    """The client's configuration, without timeouts. one_way: it waits for no answer to heartbeats and sections."""
    fields: dict[str, object] = {
        "initial_rank_heartbeat_timeout": None,
        "rank_heartbeat_timeout": None,
        "rank_section_timeouts": dict.fromkeys(SECTIONS),
        "rank_out_of_section_timeout": None,
        "safety_factor": 5.0,
        "skip_section_response": one_way,
        "install_exception_hook": False,
    }
    return _object("config", "FaultToleranceConfig", {name: _plain(value) for name, value in fields.items()})


class _Session:
    """What the client of one rank has reported. Written by its connection's thread; the agent's main thread reads."""

    def __init__(self, launch: int, one_way: bool) -> None:
        self.launch, self.one_way = launch, one_way
        self.count = self.done = 0  # messages; finished steps of this process
        self.step = -1  # of the training, if the client knows it
        self.changed = time.monotonic()
        self.open: set[str] = set()

    def see(self, message: Message) -> None:
        fields = vars(message)
        section, finished = fields.get("section"), isinstance(message, HeartbeatMsg)
        if isinstance(message, SectionMsg):
            action = getattr(fields.get("action"), "args", ())
            if action == (_OPEN,) and section in SECTIONS:
                self.open.add(section)
            elif action == (_CLOSE,):
                finished = section == "step" and section in self.open
                self.open.discard(str(section))
            else:
                self.open.clear()
        step, iteration = self.step, fields.get("iteration")
        if type(iteration) is int and 0 <= iteration < LARGEST:  # finished steps before the one that is being made
            step = max(step, iteration + int(finished))
        if finished or step != self.step:
            self.done, self.step, self.changed = self.done + int(finished), step, time.monotonic()
        self.count += 1

    def apply(self, row: RankBeat) -> RankBeat:
        """Return the row with what only this session knows."""
        if self.launch != row.launch or row.phase == "done":
            return row
        age = max(0.0, time.monotonic() - self.changed)
        if self.step >= 0 and self.done and (row.since_start or row.step < 0):
            row = row._replace(step=self.step, since_start=False, age=age)
        elif self.done and row.count == 0:  # no automatic heartbeats
            row = row._replace(step=self.done, since_start=True, age=age)
        phase = "checkpoint" if "checkpointing" in self.open else row.phase
        if phase == "start" and row.step >= 0:
            phase = "step"
        return row._replace(phase=phase, count=row.count + self.count)


class RankMonitor:
    """launch: returns the number of the newest launch on this node."""

    def __init__(self, launch: Callable[[], int], say: Callable[[str], None]) -> None:
        self._launch, self._say = launch, say
        self._sessions: dict[int, _Session] = {}

    def start(self, beats_dir: str) -> None:
        """Answer in threads of their own, for as long as this process lives."""
        path = paths.rank_monitor(beats_dir)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 - a former agent's
            server = _Server(path, _Connection)
        except OSError as error:
            self._say(f"NVRx's clients are not answered, so Megatron's --enable-ft-package fails: {error}")
            return
        server.monitor = self
        threading.Thread(target=server.serve_forever, name="transom-rank-monitor", daemon=True).start()

    def begin(self, message: Message) -> tuple[int, _Session]:
        """A rank has connected. Raises BadMessage."""
        fields = vars(message)
        info = fields.get("rank_info")
        number = vars(info).get("global_rank") if isinstance(info, Message) else None
        if isinstance(number, str) and number.isdecimal() and len(number) < 10:
            number = int(number)
        if type(number) is not int or not 0 <= number < 1 << 31:
            raise BadMessage("the client does not say its rank")
        session = _Session(self._launch(), one_way="num_warmup_iters" in fields)
        self._sessions[number] = session
        return number, session

    def end(self, rank: int, session: _Session) -> None:
        if self._sessions.get(rank) is session:
            del self._sessions[rank]

    def refuse(self, why: object) -> None:
        self._say(f"a message to the rank monitor is refused: {why}")

    def apply(self, rows: tuple[RankBeat, ...]) -> tuple[RankBeat, ...]:
        """Return the rows with what the ranks have reported here."""
        if not self._sessions:
            return rows
        sessions = dict(self._sessions)
        return tuple(sessions[row.rank].apply(row) if row.rank in sessions else row for row in rows)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64
    monitor: RankMonitor

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return same_user(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        self.monitor.refuse(sys.exc_info()[1])


class _Connection(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        rank, session = -1, None
        try:
            while (message := self._read()) is not None:
                answer: bytes | None = ok()
                if isinstance(message, InitMsg):
                    rank, session = self.server.monitor.begin(message)
                    answer = ok(cfg=configuration(one_way=session.one_way))
                elif isinstance(message, HeartbeatMsg | SectionMsg):
                    if session is None:
                        raise BadMessage("a heartbeat without a session")
                    session.see(message)
                    answer = None if session.one_way else answer
                if answer is not None:
                    self.wfile.write(len(answer).to_bytes(4, "big") + answer)
        except BadMessage as error:
            self.server.monitor.refuse(error)
        except OSError:  # the trainer has ended
            pass
        finally:
            if session is not None:
                self.server.monitor.end(rank, session)

    def _read(self) -> Message | None:
        """None: the connection is closed."""
        size = int.from_bytes(self.rfile.read(4), "big")
        if size > MOST:
            raise BadMessage(f"{size} bytes are too many")
        data = self.rfile.read(size)
        return read_message(data) if data and len(data) == size else None
