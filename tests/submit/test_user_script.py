"""A user's own sbatch script: read as sbatch reads it, completed, or refused with a clear word."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from transom_cli.errors import NotPermitted, TransomError, UsageError
from transom_cli.submit.directives import Option, full_name, read_directives, read_options
from transom_cli.submit.inputs import read_script
from transom_cli.submit.prepare import prepare
from transom_cli.submit.script import (
    added_options,
    export_options,
    inspect_script,
    refuse_no_job,
    script_notes,
)

SCRIPT = """#!/bin/bash
# a comment: --array=1-3
#SBATCH -N 2-4 --ntasks=8 -J "my job"  # trailing words -a 1-3

#SBATCH --output='logs/%x-%j.out' --comment="it's \\"mine\\""
 #SBATCH --array=1-2
#SBATCH --exclude node1,node2 -D "/work dir"
##SBATCH --array=3
#SBATCH --sig=B:USR1@60
\t # still comments
srun python train.py
#SBATCH --array=4 --nodes=9
"""


def test_slurms_own_rules_of_reading() -> None:
    facts = inspect_script(SCRIPT)
    values = {one.option.name: one.option.value for one in read_directives(SCRIPT)}
    assert (facts.nodes, values["ntasks"]) == (2, "8")
    assert facts.job_name == "my job" and facts.comment == 'it\'s "mine"'
    assert values["output"] == "logs/%x-%j.out" and facts.exclude == "node1,node2" and facts.chdir == "/work dir"
    assert values["signal"] == "B:USR1@60"
    assert facts.requeue is None and facts.open_mode is None and facts.export is None
    assert facts.lines["exclude"] == 7 and facts.lines["nodes"] == 3


def test_the_last_word_counts() -> None:
    head = "#!/bin/sh\n#SBATCH --no-requeue -N1\n#SBATCH -N1k\n#SBATCH --requeue\n"
    facts = inspect_script(head)
    assert facts.requeue is True and facts.nodes == 1024
    assert inspect_script(head + "#SBATCH --no-req\n").requeue is False
    assert inspect_script("#!/bin/sh\n#SBATCH -N $X\n").nodes is None


def test_options_as_getopt_reads_them() -> None:
    words = [
        "-HN2",
        "--arr=1",
        "-x",
        "a",
        "-k",
        "--exclusive",
        "user",
        "--job-name",
        "x y",
        "-J=z",
        "--new-one=3",
        "-t",
    ]
    assert list(read_options(words)) == [
        Option("hold"),
        Option("nodes", "2"),
        Option("array", "1"),
        Option("exclude", "a"),
        Option("no-kill"),
        Option("exclusive"),
        Option("job-name", "x y"),
        Option("job-name", "=z"),
        Option("new-one", "3"),
        Option("time"),
    ]
    assert full_name("no") == "no" and full_name("node") == "node" and full_name("nodel") == "nodelist"


@pytest.mark.parametrize(
    ("body", "line", "what"),
    [
        ("true\n#PBS -J 1-3", 3, "arrays"),
        ("#SBATCH -n1\n#SBATCH hetjob\n#SBATCH -n2", 3, "heterogeneous"),
        ("#SBATCH\tpackjob", 2, "heterogeneous"),
        ("#SBATCH -n1 : -n2", 2, "heterogeneous"),
    ],
)
def test_arrays_and_het_jobs_are_refused_by_line(body: str, line: int, what: str) -> None:
    with pytest.raises(UsageError, match=f"{what}.* are not supported") as caught:
        inspect_script(f"#!/bin/sh\n{body}\n")
    assert f"line {line} of the script" in caught.value.why and caught.value.exit_code == 2 and caught.value.hint


@pytest.mark.parametrize(
    "body",
    [
        '#SBATCH -J "x : y"',
        '#SBATCH --comment="a hetjob b"',
        "#SBATCH --ignore-pbs\n#PBS -J 1-3",
        "#SBATCH -J a # : -a1",
    ],
)
def test_what_only_looks_like_one_is_not(body: str) -> None:
    assert inspect_script(f"#!/bin/sh\n{body}\n") is not None


def test_unclosed_quote() -> None:
    with pytest.raises(UsageError, match="line 2 of the script has an unclosed quote"):
        inspect_script('#!/bin/sh\n#SBATCH -J "a\n')


def test_what_a_requeue_needs_is_added_and_no_more() -> None:
    bare = inspect_script("#!/bin/sh\ntrue\n")
    assert added_options(bare, job_name="t.sbatch") == ("--requeue", "--open-mode=append", "--job-name=t.sbatch")
    decided = inspect_script("#!/bin/sh\n#SBATCH --open-mode=truncate -J mine --no-requeue --comment=c\n")
    assert added_options(decided, job_name="t.sbatch", exported=["TRANSOM_RUN_DIR"]) == ("--requeue",)
    assert script_notes(bare) == ()
    assert script_notes(decided) == (
        "line 2: --no-requeue is overridden, since transom requeues the job",
        "line 2: --comment is replaced by transom's tag",
        "line 2: --open-mode=truncate loses the output of earlier attempts at a requeue",
    )
    theirs = {"SBATCH_OPEN_MODE": "truncate", "SBATCH_JOB_NAME": "x"}
    assert added_options(bare, job_name="t.sbatch", environ=theirs) == ("--requeue",)


@pytest.mark.parametrize(
    ("said", "variable", "expected"),
    [
        ("", None, ()),
        ("#SBATCH --export=ALL,X=1", None, ()),
        ("#SBATCH --export=NONE", None, ("--export=A,B",)),
        ("#SBATCH --export=X=1,A", None, ("--export=X=1,A,B",)),
        ("#SBATCH --export=ALL", "NONE", ("--export=A,B",)),
        ("#SBATCH --export=NONE", "ALL", ()),
    ],
)
def test_our_variables_pass_a_limited_export(said: str, variable: str | None, expected: tuple[str, ...]) -> None:
    environ = {} if variable is None else {"SBATCH_EXPORT": variable}
    assert export_options(inspect_script(f"#!/bin/sh\n{said}\n"), ["A", "B"], environ) == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "the script is empty"),
        (" \n\t\n", "only blanks"),
        ("echo hi\n", "names no interpreter"),
        ("\ufeff#!/bin/sh\n", "names no interpreter"),
        ("#!/bin/sh\ntrue\r\n", "Windows line endings"),
        ("#!/bin/sh\ntr\0ue\n", "not text"),
    ],
)
def test_invalid_script_is_explained(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        inspect_script(text)
    assert caught.value.hint


def test_line_of_the_first_windows_ending() -> None:
    with pytest.raises(UsageError) as caught:
        inspect_script("#!/bin/sh\ntrue\nfalse\r\n")
    assert caught.value.why.startswith("line 3 ends in \\r\\n")


def test_files_that_are_no_script(tmp_path: Path) -> None:
    (tmp_path / "train.sbatch").write_text("#!/bin/sh\n")
    with pytest.raises(UsageError, match="no such script") as caught:
        read_script(tmp_path / "trian.sbatch")
    assert "scripts in that folder: train.sbatch" in caught.value.hint
    with pytest.raises(UsageError, match="is a directory"):
        read_script(tmp_path)
    binary = tmp_path / "a.out"
    binary.write_bytes(b"\x7fELF\2\1\1")
    with pytest.raises(UsageError, match="is a binary file"):
        read_script(binary)
    with pytest.raises(UsageError, match="too long"):
        (tmp_path / "long").write_bytes(b"#" * (4 * 1024 * 1024 + 1))
        read_script(tmp_path / "long")
    with pytest.raises(TransomError, match="is not a valid file name"):
        read_script(tmp_path / "a\0b")
    with pytest.raises(UsageError, match="cannot read"):
        read_script(tmp_path / "train.sbatch" / "x")


def test_unreadable_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(_: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "read_bytes", forbid)  # root, as whom tests may run, may read every file
    with pytest.raises(NotPermitted, match="cannot read the script") as caught:
        read_script(tmp_path / "train.sbatch")
    assert caught.value.why == "Permission denied" and caught.value.exit_code == 13


def test_bytes_that_are_not_utf8_come_back(tmp_path: Path) -> None:
    path = tmp_path / "latin.sh"
    path.write_bytes(b"#!/bin/sh\n# caf\xe9\n")
    assert read_script(path).encode("utf-8", "surrogateescape") == path.read_bytes()


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("--test-only", "line 3: --test-only: with it, sbatch submits nothing"),
        ("-W", "line 3: --wait: with it, sbatch returns only when the job ends"),
        ("--vers", "line 3: --version: "),
        ("-h --usage", "line 3: --help: with it, sbatch submits nothing\nline 3: --usage: "),
    ],
)
def test_a_script_with_which_sbatch_submits_nothing_is_refused(options: str, found: str) -> None:
    facts = inspect_script(f"#!/bin/sh\n#SBATCH -N1 -Q --parsable\n#SBATCH {options}\ntrue\n")
    with pytest.raises(UsageError) as raised:
        refuse_no_job(facts)
    assert found in raised.value.why
    refuse_no_job(inspect_script("#!/bin/sh\n#SBATCH -N1 -Q --parsable -d singleton --begin=now+1 --exclusive\ntrue\n"))


def test_a_script_whose_output_has_no_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --output=logs/%x-%j.out\nsrun hostname\n")
    with pytest.raises(UsageError, match=r"There is no folder .*logs` on this host") as refused:
        prepare((str(script),), None, {}, lambda _: ())
    assert "line 2" in (refused.value.why or "") and "mkdir -p" in (refused.value.hint or "")
    prepare((str(script),), None, {}, lambda _: (), force=True)  # also a dry run
    assert "warning: There is no folder `" in capsys.readouterr().err
    (tmp_path / "logs").mkdir()
    prepare((str(script),), None, {}, lambda _: ())
    script.write_text("#!/bin/bash\n#SBATCH --output=%j/out.log\nsrun hostname\n")
    prepare((str(script),), None, {}, lambda _: ())


def test_a_command_in_one_pair_of_quotes_is_refused_with_the_words() -> None:
    with pytest.raises(UsageError, match="is one word") as refused:
        prepare(("python train.py --lr 1",), None, {}, lambda _: ())
    assert refused.value.hint == "transom run -- python train.py --lr 1"
