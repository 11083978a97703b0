"""The page in a real browser: no wider than its window, in its own colours by day and by night, nothing fetched."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from devtools import Browser

from transom_cli.layout import RunDir
from transom_cli.view.report.page import write

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MISSING = "NO BROWSER: the page was not looked at; `apt-get install chromium` (or google-chrome) to have that tested"
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
PAPER = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}
AROUND = """<!DOCTYPE html><body style="margin:0"><pre id="told"></pre>
<iframe src="%s" style="border:0;width:%dpx;height:900px" onload="
  const page = this.contentDocument, seen = this.contentWindow;
  for (const one of page.querySelectorAll('details')) one.open = true;
  const wide = [...page.querySelectorAll('body *')].filter(e => !e.closest('.scroll, svg') &&
    e.getBoundingClientRect().right > seen.innerWidth + 1).map(e => e.tagName + '.' + e.className);
  document.getElementById('told').textContent = JSON.stringify({
    wide, width: page.scrollingElement.scrollWidth, window: seen.innerWidth, title: page.title,
    paper: seen.getComputedStyle(page.body).backgroundColor,
    bar: page.querySelector('rect') && page.querySelector('rect').getBoundingClientRect().height,
    fetched: seen.performance.getEntriesByType('resource').map(e => e.name)})"></iframe>"""
"""The page allows no script, so another one looks into it."""


def look(html: str, folder: Path, width: int, scheme: str) -> tuple[dict[str, Any], str]:
    """What the browser made of it, and what it complained of."""
    (folder / "page.html").write_text(html)
    (folder / "around.html").write_text(AROUND % ("page.html", width))
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    command += [f"--user-data-dir={folder}/profile", f"--window-size={width},900", "--enable-logging=stderr"]
    command += [f"--blink-settings=preferredColorScheme={int(scheme == 'light')}", "--virtual-time-budget=5000"]
    done = subprocess.run(
        [*command, "--dump-dom", f"file://{folder}/around.html"], capture_output=True, text=True, timeout=120
    )
    found = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found and found[1], done.stderr
    said: dict[str, Any] = json.loads(unescape(found[1]))
    return said, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("name", ["one_node_of_many", "held", "node_killed", "hostile"])
def test_a_page_fits_its_window(
    name: str,
    width: int,
    scheme: str,
    tmp_path: Path,
    run_of: Callable[[str], RunDir],
    reported: Callable[[RunDir], str],
) -> None:
    html = reported(run_of(name))
    (tmp_path / "browser").mkdir()
    said, complaints = look(html, tmp_path / "browser", width, scheme)
    assert complaints == ""  # of the policy, above all
    assert said["title"] and said["window"] == width
    assert said["width"] <= width and said["wide"] == []
    assert said["paper"] == PAPER[scheme]
    assert said["bar"] > 10
    assert said["fetched"] == []


def test_followed_page_refreshes_itself_and_keeps_its_place(
    tmp_path: Path, run_of: Callable[[str], RunDir], reported: Callable[[RunDir], str]
) -> None:
    html = reported(run_of("node_killed"))
    marker = '<meta charset="utf-8">'
    assert marker in html
    live = html.replace(marker, f'{marker}<meta http-equiv="refresh" content="1">')
    path = tmp_path / "run.html"
    write(path, live)
    with Browser(str(CHROMIUM), path, tmp_path / "profile") as browser:
        browser.wait("document.readyState === 'complete' && document.body.scrollHeight > 1200")
        browser.value("scrollTo(0, 400)")
        browser.wait("scrollY === 400")
        write(path, live.replace("<title>", "<title>written again: "))
        browser.wait("document.title.startsWith('written again') && document.readyState === 'complete'")
        browser.wait("scrollY === 400")
        write(path, html)  # the last one, of a run that has ended
        browser.wait("!document.querySelector('meta[http-equiv=refresh]') && document.title.length > 0")
