"""`[notify]` and `[metrics]`: layers, and what is refused without a word of what may be secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from transom_cli.config.load import freeze, load, thaw
from transom_cli.errors import UsageError
from transom_cli.notify.events import DEFAULT_KINDS, KINDS

DOC = Path(__file__).resolve().parents[2] / "docs" / "notifications.md"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def target(text: str) -> str:
    return f"[[notify.targets]]\n{text}\n"


def test_targets_of_all_layers_count_and_one_of_the_same_name_is_replaced(tmp_path: Path) -> None:
    site = write(
        tmp_path / "site.toml",
        target('name = "ops"\nkind = "mail"\nto = "ops@h"')
        + target('name = "all"\nkind = "command"\nargv = ["/bin/true", "x"]')
        + "[notify]\nper_hour = 3\n",
    )
    run = write(tmp_path / "run.toml", target('name = "ops"\nkind = "slack"\nevents = "held"'))
    settings = load(run, site=site, user=tmp_path / "none")
    found = {t.name: t.target() for t in settings.notify.targets}
    assert (found["ops"].kind, found["ops"].events, found["ops"].posts) == ("slack", ("held",), True)
    assert found["all"].argv == ("/bin/true", "x") and found["all"].events == DEFAULT_KINDS
    assert settings.notify.per_hour == 3
    assert thaw(freeze(settings), "run.toml") == settings


def test_a_site_s_target_can_be_silenced(tmp_path: Path) -> None:
    site = write(tmp_path / "site.toml", target('name = "ops"\nkind = "slack"'))
    user = write(tmp_path / "user.toml", target('name = "ops"\nkind = "slack"\nevents = []'))
    (only,) = load(site=site, user=user).notify.targets
    assert only.events == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            target('name = "a"\nkind = "slack"\nurl = "https://h/SECRET"'),
            "targets[0].url: is a secret and does not belong",
        ),
        (target('name = "a"\nkind = "webhook"\ntoken = "SECRET"'), "targets[0].token: is a secret and does not belong"),
        (target('name = "a"\nkind = "webhook"\ncolour = "SECRET"'), "no such key; valid are name, kind, events, argv"),
        ('[notify]\nsecrets = "https://h/SECRET"', "secrets: must be the path of a file with URLs, not a URL"),
        (target('name = "a"\nkind = "pager"'), "should be 'slack', 'webhook', 'command' or 'mail', not 'pager'"),
        (target('name = "a"\nkind = "slack"\nevents = ["lunch"]'), "'lunch' is not an event; valid are started, "),
        (target('name = "a"\nkind = "command"'), "target 'a' of kind command needs `argv`"),
        (target('name = "a"\nkind = "command"\nargv = "bin/x"'), "neither an absolute path nor a name"),
        (target('name = "a"\nkind = "command"\nargv = ["", "x"]'), "the first word, the name of the program, is empty"),
        (target('name = "a"\nkind = "mail"'), "target 'a' of kind mail needs `to`"),
        (target('name = "a"\nkind = "mail"\nto = "-oQ/tmp"'), "'-oQ/tmp' is not a mail address"),
        (target('name = "a"\nkind = "mail"\nto = "|sh"'), "'|sh' is not a mail address"),
        (target('name = "a"\nkind = "mail"\nto = "a@b, c@d"'), "'a@b, c@d' is not a mail address"),
        (target('name = "a"\nkind = "mail"\nto = "a@b"\nsender = "x y"'), "'x y' is not a mail address"),
        (target('name = "a"\nkind = "mail"\nto = "a@b"\nprogram = []'), "has an empty `program`"),
        (target('name = "a"\nkind = "slack"\nargv = "x"'), "target 'a' of kind slack does not use argv"),
        (target('name = "a"\nkind = "slack"\ntext = "{words} {foo}"'), "unknown field {foo}; valid are run, name"),
        (target('name = "a"\nkind = "slack"\nsubject = "a\\nb"'), "contains the control character"),
        (target('name = "a b"\nkind = "slack"'), "should match pattern"),
        (target('name = "a"\nkind = "slack"') * 2, "two targets have the name 'a'"),
        ("[notify]\nper_hour = 0", "notify.per_hour: should be greater than or equal to 1"),
        ("[notify]\ntimeout = 600", "notify.timeout: should be less than or equal to 60"),
        ("[metrics]\nport = 70000", "metrics.port: should be less than or equal to 65535"),
    ],
)
def test_errors_reveal_no_secret(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(write(tmp_path / "run.toml", text), site=None, user=tmp_path / "none")
    assert says in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_metrics_are_wanted_where_they_have_a_place(tmp_path: Path) -> None:
    assert not load(site=None, user=tmp_path / "none").metrics.wanted
    for flags in ({"metrics.port": "9400"}, {"metrics.textfile": str(tmp_path)}):
        assert load(None, flags, site=None, user=tmp_path / "none").metrics.wanted


def test_every_kind_of_news_is_in_the_docs() -> None:
    text = DOC.read_text()
    assert [kind for kind in KINDS if f"| `{kind}` |" not in text] == []
