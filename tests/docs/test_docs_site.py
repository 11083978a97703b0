"""The built site: strict, whole, and nothing of it is fetched from elsewhere. Links hold on a code host too."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("material")

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))


class Fetched(HTMLParser):
    """What a browser loads by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        loads = tag != "link" or given.get("rel") not in ("canonical", "prev", "next")
        if tag in ("script", "img", "iframe", "link", "source") and loads:
            self.urls.append(given.get("src") or given.get("href") or "")


def build(project: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does."""
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(words, cwd=project, env=env, capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_built_and_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in PAGES:
        built = site / f"{page.stem}.html"
        fetched = Fetched()
        fetched.feed(built.read_text())
        assert len(fetched.urls) > 2, "this test looks for the wrong tags"
        assert [url for url in fetched.urls if re.match(r"(https?:)?//", url)] == [], page.name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# One\n\n[two](#nowhere)\n", "nowhere"),
        ("# One\n\n[two](two.md)\n", "two.md"),
        ("# One\n\n[two](../README.md)\n", "README.md"),
    ],
    ids=["anchor", "page", "outside"],
)
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(text)
    config = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(config[: config.index("\nnav:")])
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0 and found in done.stdout + done.stderr


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_links_lead_somewhere_on_a_code_host(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"https?://", target):
            name = target.partition("#")[0]
            assert not name or (page.parent / name).exists(), target
