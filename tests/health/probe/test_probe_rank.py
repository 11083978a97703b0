"""A real probe process prepares its device on request, not before."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from transom_cli.health.probe.messages import HELLO, Computed, Hello, answer_from_json


def rank(*flags: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "transom_cli.health.probe.rank", "--node", "n1", "--index", "0", *flags]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def ask(process: subprocess.Popen[str], message: dict[str, object]) -> object:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()
    return answer_from_json(json.loads(process.stdout.readline()))


def test_its_first_word_is_an_answer_and_from_then_on_it_is_warm() -> None:
    """Before the hello it must not use the device: a check of the device would take it for a leftover."""
    pytest.importorskip("torch")
    with rank("--device", "cpu", "--of", "2") as process:
        hello = ask(process, HELLO)
        assert isinstance(hello, Hello) and not hello.error and (hello.of, hello.device) == (2, "cpu") and hello.port
        assert ask(process, HELLO) == hello, "one hello an ask: none was said before"
        computed = ask(process, {"do": "compute", "id": 1, "seconds": 0.1, "deadline": 20.0})
        assert isinstance(computed, Computed) and computed.digests and not computed.error
        process.kill()


@pytest.mark.long
def test_device_that_cannot_be_prepared_is_reported_in_the_hello() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with rank("--device", "cuda:0") as process:
        hello = ask(process, HELLO)
        assert isinstance(hello, Hello) and hello.error
        process.kill()
