"""The page of every scene and of every recorded run: well formed, complete in itself, with names for what is drawn."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable

import pytest
from report_made import RUNS
from report_parsed import Page

from transom_cli.layout import RunDir
from transom_cli.supervise.record_reader import read_run_record
from transom_cli.supervise.run_record import incidents
from transom_cli.view.timeline import build_timeline, distinct_entries, ending, headline

Run = Callable[[str], RunDir]
Reported = Callable[[RunDir], str]
SECTIONS = ["timeline", "goodput", "advice", "progress", "incidents", "nodes", "checkpoints", "settings"]


@pytest.mark.parametrize("name", RUNS)
def test_a_page_is_well_formed_and_needs_nothing_from_outside(name: str, run_of: Run, reported: Reported) -> None:
    text = reported(run_of(name))
    page = Page(text)
    tags = {tag for tag, _ in page.elements}
    assert tags.isdisjoint(
        {"script", "img", "iframe", "object", "embed", "link", "base", "form", "input", "foreignobject"}
    )
    names = {name for _, names in page.elements for name in names}
    assert names.isdisjoint({"src", "srcset", "style", "action", "formaction", "xlink:href", "data", "background"})
    assert not any(name.startswith("on") for name in names)
    assert all(link.startswith("#") for link in page.values("href"))
    assert "url(" not in page.style and "@import" not in page.style and "http" not in page.style
    assert [c for c in text if not c.isprintable() and c != "\n"] == []


@pytest.mark.parametrize("name", RUNS)
def test_a_page_has_an_outline_that_can_be_heard(name: str, run_of: Run, reported: Reported) -> None:
    page = Page(reported(run_of(name)))
    tags = [tag for tag, _ in page.elements]
    ids = page.values("id")
    assert len(ids) == len(set(ids)) and {link[1:] for link in page.values("href")} <= set(ids)
    assert [one for one in ids if one in SECTIONS] == SECTIONS
    assert tags.count("h1") == 1 and tags.count("h2") == len(SECTIONS)
    assert tags.count("caption") == tags.count("table")
    drawn = [names for tag, names in page.elements if tag == "svg" and "role" in names]
    assert drawn and all("aria-label" in names for names in drawn)
    assert ("html", "lang", "en") in page.attributes


def test_the_policy_allows_the_page_its_own_style_alone(run_of: Run, reported: Reported) -> None:
    text = reported(run_of("healthy"))
    policy = next(v for v in Page(text).values("content") if v.startswith("default-src"))
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


@pytest.mark.parametrize("name", ["node_killed", "rank_killed", "time_limit", "one_node_of_many"])
def test_incidents_are_told_in_the_words_of_explain(name: str, run_of: Run, reported: Reported) -> None:
    run = run_of(name)
    book = read_run_record(run)
    text = Page(reported(run)).text
    stories = [build_timeline(one, book) for one in incidents(book)]
    assert stories
    for story in stories:
        assert " ".join(headline(story).split()) in text
        for words in (*(w for _, w in distinct_entries(story)), *(w for _, w in ending(story))):
            assert " ".join(words.split()).partition("GPU-")[0][:60] in text


def test_what_is_not_recorded_is_said_to_be_so(run_of: Run, reported: Reported) -> None:
    text = Page(reported(run_of("user_error"))).text
    assert "Steps: not recorded." in text and "Loss: not recorded over time." in text
    assert "Settings: not recorded. Cannot read run.toml: No such file or directory." in text
    assert "Node facts (system, Python, driver): not recorded." in text


def test_a_lost_node(run_of: Run, reported: Reported) -> None:
    page = Page(reported(run_of("node_killed")))
    assert "DONE" in page.texts and "By cause, most expensive first" in page.texts
    assert "detection" in page.texts and "slurm_node_fail" in page.texts
    assert "M" in page.values("d")[0] and "node2 drained" in page.text
    assert "drained" in page.texts  # of the table of nodes that the run keeps off


@pytest.mark.parametrize(
    ("name", "word"), [("held", "HELD"), ("pending", "PENDING"), ("unknown", "UNKNOWN"), ("failed", "FAILED")]
)
def test_the_verdict_is_that_of_status(name: str, word: str, run_of: Run, reported: Reported) -> None:
    assert word in Page(reported(run_of(name))).texts[:6]


def test_a_run_whose_attempt_has_made_no_step_yet_shows_the_newest_of_the_run(run_of: Run, reported: Reported) -> None:
    texts = Page(reported(run_of("held"))).texts
    assert texts[texts.index("newest step") + 1] == "18,859"
