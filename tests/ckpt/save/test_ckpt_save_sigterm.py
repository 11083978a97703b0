"""SIGTERM: a rank survives it for a request for a final checkpoint, and for nothing else."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ckpt_listener import Listener

from transom_cli.heartbeat import final_checkpoint
from transom_cli.supervise.agent import final_checkpoint as agent

TERM = -signal.SIGTERM
SOON = 0.3  # seconds that are to pass
Make = Callable[..., Listener]


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Make]:
    made: list[Listener] = []

    def make(beats: Path | None = tmp_path, **more: float) -> Listener:
        made.append(Listener(beats, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def keeps(folder: Path) -> list[int]:
    return [x.rank for x in final_checkpoint.listeners(str(folder), 2) if x.keeps]


def test_rank_dies_of_sigterm_without_a_request(listener: Make, tmp_path: Path) -> None:
    rank = listener(wait=SOON).attend()
    assert keeps(tmp_path) == [0]
    rank.term()
    assert rank.ended() == TERM


def test_training_continues_while_waiting_for_a_request(listener: Make, tmp_path: Path) -> None:
    rank = listener().attend()
    rank.term()
    assert rank.do("_ = ear.due(7)") == "False"
    assert agent.ask(str(tmp_path), 2, -1)["reached"] == 7
    agent.end_now(str(tmp_path), 2)
    assert rank.ended() == TERM


def test_request_to_end_may_exist_before_sigterm(listener: Make, tmp_path: Path) -> None:
    rank = listener().attend()
    agent.end_now(str(tmp_path), 2)
    assert rank.do("_ = ear.due(7)") == "False", "to end is no step"
    rank.term()
    assert rank.ended() == TERM


@pytest.mark.parametrize("first", ["order", "term"])
def test_request_delays_sigterm_and_is_served(listener: Make, tmp_path: Path, first: str) -> None:
    rank = listener(wait=SOON).attend()
    rank.do("ear.due(3)")
    if first == "term":
        rank.term()
    agent.ask(str(tmp_path), 2, 5)
    if first == "order":
        rank.term()
    time.sleep(3 * SOON)
    assert [rank.do(f"_ = ear.due({step})") for step in (4, 5, 6)] == ["False", "True", "False"]
    agent.end_now(str(tmp_path), 2)
    assert rank.ended() == TERM


def test_request_delays_sigterm_for_a_limited_time(listener: Make, tmp_path: Path) -> None:
    rank = listener(keep=SOON).attend()
    agent.ask(str(tmp_path), 2, 5)
    rank.term()
    assert rank.ended() == TERM


def test_requested_checkpoint_in_progress_delays_sigterm(listener: Make, tmp_path: Path) -> None:
    rank = listener(wait=SOON).attend()
    agent.ask(str(tmp_path), 2, 5)
    assert rank.do("_ = ear.due(5)") == "True"
    rank.term()
    time.sleep(3 * SOON)
    assert rank.do("ear.follow(None)") == "ok"


@pytest.mark.parametrize("settled", ["ear.due(5); ear.follow(None)", "ear.at(9)"])
def test_earlier_request_does_not_delay_sigterm(listener: Make, tmp_path: Path, settled: str) -> None:
    rank = listener(wait=SOON).attend()
    agent.ask(str(tmp_path), 2, 5)
    rank.do(settled)
    rank.term()
    assert rank.ended() == TERM


NATIVE = "lock, held = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64); lock(held); lock(held)"


@pytest.mark.parametrize("blocked", [NATIVE, "l = threading.Lock(); l.acquire(); l.acquire()"])
def test_main_thread_in_native_code_does_not_delay_the_end(listener: Make, blocked: str) -> None:
    rank = listener(wait=SOON).attend()
    rank.start(blocked)
    time.sleep(SOON)
    rank.term()
    assert rank.ended() == TERM


def test_a_forked_child_dies_at_once_and_alone(listener: Make) -> None:
    rank = listener(wait=0.0).attend()  # a signal that reaches the parent ends it
    rank.do("child = os.fork() or signal.pause()")
    rank.do("os.kill(child, signal.SIGTERM)")
    assert rank.do("_ = os.waitpid(child, 0)[1]") == str(int(signal.SIGTERM))
    rank.do("pool = __import__('multiprocessing').get_context('fork').Pool(2); pool.terminate(); pool.join()")
    rank.do("program = subprocess.Popen(['sleep', '600']); program.terminate()")
    assert rank.do("_ = program.wait()") == str(TERM)
    assert rank.do("_ = signal.pthread_sigmask(signal.SIG_BLOCK, ())") == "set()"
    rank.term()
    assert rank.ended() == TERM


def test_a_forked_child_does_not_listen_for_its_parent(listener: Make, tmp_path: Path) -> None:
    rank = listener().attend()
    rank.do("ear.due(3)")
    agent.ask(str(tmp_path), 2, 5)
    rank.do("child = os.fork() or os._exit(ear.due(77) or ear.close() or final_checkpoint.listen() is not None)")
    assert rank.do("_ = os.waitpid(child, 0)[1]") == "0", "nor can it take the rank's place"
    assert final_checkpoint.listeners(str(tmp_path), 2) == [final_checkpoint.Listener(0, rank.pid, True, 3)]


HANDLER = "signal.signal(signal.SIGTERM, lambda *_: os._exit(17))"


@pytest.mark.parametrize(
    "order", [(HANDLER, "ear = final_checkpoint.listen()"), ("ear = final_checkpoint.listen()", HANDLER)]
)
def test_sigterm_handler_of_the_trainer_is_kept(listener: Make, order: tuple[str, str]) -> None:
    rank = listener(wait=0.0)
    for line in order:
        rank.do(line)
    rank.term()
    assert rank.ended() == 17


def test_trainers_handler_that_continues_is_not_overruled(listener: Make, tmp_path: Path) -> None:
    rank = listener(wait=0.0).attend()
    rank.do("former = signal.signal(signal.SIGTERM, lambda *a: (seen.append(1), former(*a))); seen = []")
    rank.term()
    assert rank.do("time.sleep(0.3); _ = seen") == "[1]"
    assert rank.do("ear.close(); _ = signal.getsignal(signal.SIGTERM).__name__") == "<lambda>"
    rank.term()
    assert rank.do("_ = seen") == "[1, 1]"


def test_ignored_sigterm_stays_ignored(listener: Make, tmp_path: Path) -> None:
    rank = listener(wait=0.0)
    rank.do("signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    rank.attend()
    assert keeps(tmp_path) == []
    rank.term()
    assert rank.do("ear.due(1)") == "ok"


def test_a_wakeup_descriptor_in_use_is_left_alone(listener: Make, tmp_path: Path) -> None:
    rank = listener()
    rank.do("r, w = os.pipe(); os.set_blocking(w, False); signal.set_wakeup_fd(w)")
    rank.attend()
    assert keeps(tmp_path) == [] and len(final_checkpoint.listeners(str(tmp_path), 2)) == 1
    assert rank.do("ear.close(); _ = signal.set_wakeup_fd(-1) == w") == "True"
    rank.term()
    assert rank.ended() == TERM


def test_asyncio_may_take_the_wakeup_descriptor_later(listener: Make) -> None:
    rank = listener(wait=SOON).attend()
    rank.do("loop = asyncio.new_event_loop(); loop.add_signal_handler(signal.SIGUSR1, loop.stop)")
    rank.start("loop.run_forever()")
    time.sleep(SOON)
    rank.term()
    assert rank.ended() == TERM


def test_close_restores_the_default_handler(listener: Make, tmp_path: Path) -> None:
    rank = listener().attend()
    rank.do("second = final_checkpoint.listen(); ear.close(); ear.close()")
    assert keeps(tmp_path) == [0], "the other Checkpointer still listens"
    rank.do("second.close()")
    assert [p.name for p in tmp_path.iterdir()] == ["flush-2"]
    assert rank.do("_ = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signal.set_wakeup_fd(-1)") == "(True, -1)"
    rank.do("time.sleep(0.1)")
    assert rank.do("_ = [t.name for t in threading.enumerate()]") == "['MainThread']"
    rank.attend()
    assert keeps(tmp_path) == [0], "and it can listen again"
    rank.do("ear.close()")
    rank.term()
    assert rank.ended() == TERM


def test_a_term_that_came_before_the_close_counts(listener: Make) -> None:
    rank = listener(wait=SOON).attend()
    rank.start("os.kill(os.getpid(), signal.SIGTERM); ear.close(); time.sleep(600)")
    assert rank.ended() == TERM


def test_closed_by_another_thread_term_acts_at_once(listener: Make) -> None:
    rank = listener().attend()
    rank.do("t = threading.Thread(target=ear.close); t.start(); t.join()")
    rank.term()
    assert rank.ended() == TERM


def test_listening_in_another_thread_does_not_delay_sigterm(listener: Make, tmp_path: Path) -> None:
    rank = listener()
    rank.do("t = threading.Thread(target=final_checkpoint.listen); t.start(); t.join()")
    assert keeps(tmp_path) == [] and len(final_checkpoint.listeners(str(tmp_path), 2)) == 1
    rank.term()
    assert rank.ended() == TERM


def test_default_handler_is_back_at_interpreter_exit(listener: Make) -> None:
    """A destructor that hangs must not be spared from TERM by a watcher that is no more."""
    rank = listener().attend()
    rank.do("import atexit; atexit._run_exitfuncs()")
    rank.term()
    assert rank.ended() == TERM


@pytest.mark.parametrize("folder", [None, "gone"])
def test_without_a_beats_folder_there_is_nothing(listener: Make, tmp_path: Path, folder: str | None) -> None:
    rank = listener(tmp_path / folder if folder else None)
    assert rank.do("_ = final_checkpoint.listen()") == "None"
    assert rank.do("_ = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signal.set_wakeup_fd(-1)") == "(True, -1)"
    assert rank.do("_ = threading.active_count()") == "1"
    assert list(tmp_path.iterdir()) == []
    rank.term()
    assert rank.ended() == TERM


def test_usr2_is_not_touched(listener: Make) -> None:
    rank = listener().attend()
    os.kill(rank.pid, signal.SIGUSR2)
    assert rank.ended() == -signal.SIGUSR2
