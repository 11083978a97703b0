"""A headless Chromium under Chrome's DevTools protocol, over its pipe: a page that lives longer than one look."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_AS_3_AND_4 = """
import os, sys
read, write = (os.dup(int(one)) for one in sys.argv[1:3])
while min(read, write) <= 4:
    read, write = os.dup(read), os.dup(write)
os.dup2(read, 3), os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""  # the descriptors on which Chromium listens and answers
PATIENCE = 60.0  # seconds for one answer


class Browser:
    """Shows one file. Use it as a context manager."""

    def __init__(self, chromium: str, page: Path, profile: Path) -> None:
        (theirs, self._to), (self._from, from_them) = os.pipe(), os.pipe()
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        command += [f"--user-data-dir={profile}", "--window-size=1000,600", "about:blank"]
        words = [sys.executable, "-c", _AS_3_AND_4, str(theirs), str(from_them), *command]
        self._process = subprocess.Popen(
            words, pass_fds=(theirs, from_them), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs)
        os.close(from_them)
        self._number, self._rest = 0, b""
        target = self._call("Target.createTarget", url=page.as_uri())["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page; None while the page is being replaced."""
        return self._call("Runtime.evaluate", expression=expression).get("result", {}).get("value")

    def wait(self, expression: str) -> None:
        """Wait until the expression is true."""
        until = time.monotonic() + PATIENCE
        while self.value(expression) is not True:
            assert time.monotonic() < until, f"not true within {PATIENCE:.0f} s: {expression}"
            time.sleep(0.1)

    def _call(self, method: str, **params: object) -> dict[str, Any]:
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": params}
        if (session := getattr(self, "_session", None)) is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                chunk = os.read(self._from, 65536)
                assert chunk, "the browser has ended"
                self._rest += chunk
            one, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(one)
            if answer.get("id") == self._number:
                found: dict[str, Any] = answer.get("result", {})
                return found
