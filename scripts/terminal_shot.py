"""Run a command in a real terminal (tmux), press keys, and draw its screen as SVG."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.style import Style
from rich.text import Text

PATIENCE = 30.0  # seconds for something to appear


class Terminal:
    """A context manager. The command's last screen remains until the end."""

    def __init__(self, words: Sequence[str], folder: Path, env: Mapping[str, str], size: tuple[int, int]) -> None:
        """size: columns and rows."""
        self.columns, self.rows = size
        self._socket = folder / f"tmux-{time.time_ns()}"
        self._folder, self._env = folder, {**env, "TERM": "xterm-256color"}
        self._words = f"{shlex.join(words)}; exec sleep 600"

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", "/dev/null", *words]
        done = subprocess.run(command, env=self._env, cwd=self._folder, check=True, capture_output=True, text=True)
        return done.stdout

    def __enter__(self) -> Terminal:
        where = ["-x", str(self.columns), "-y", str(self.rows)]
        self._tmux("new-session", "-d", *where, self._words)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._tmux("kill-server")

    def text(self) -> str:
        return self._tmux("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        """Press keys by their tmux names: "2", "Enter", "Down"."""
        for key in keys:
            self._tmux("send-keys", key)
            time.sleep(0.3)

    def wait(self, words: str) -> None:
        """Wait until the screen contains the texts. Raise TimeoutError, with the screen, after PATIENCE."""
        deadline = time.monotonic() + PATIENCE
        while words not in (seen := self.text()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{words!r} did not appear in:\n{seen}")
            time.sleep(0.2)

    def drawing(self, title: str) -> str:
        """Return the current screen as SVG, with the terminal's colours and the machine's fonts."""
        screen = Text.from_ansi(self._tmux("capture-pane", "-e", "-p").rstrip("\n"))
        for n, run in enumerate(
            re.finditer(r"[^\x00-\x7f]+", screen.plain)
        ):  # fonts differ in width: place each character
            screen.stylize(Style(meta={"run": n}), *run.span())
        console = Console(width=self.columns, record=True, file=io.StringIO(), force_terminal=True)
        console.print(screen, no_wrap=True, overflow="crop")
        drawn = console.export_svg(title=title)
        return re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # a browser would load those
