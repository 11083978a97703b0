"""After a reboot: everything of transom on the login node is gone, and the installed entry's own command continues."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from e2e.support import COMMAND, Person, at_step, over

from transom_cli.supervise.lease import operator_alive, read_holder

CRONTAB = '#!/bin/sh\ncase "$1" in -l) cat {0};; -) cat >{0};; esac\n'


@pytest.mark.long
@pytest.mark.sandbox
def test_entry_continues_a_run_where_its_journal_ends(person: Person, tmp_path: Path) -> None:
    table = tmp_path / "table"
    table.write_text("0 3 * * * backup\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "crontab").write_text(CRONTAB.format(shlex.quote(str(table))))
    (tmp_path / "bin" / "crontab").chmod(0o755)
    person.env["PATH"] = f"{tmp_path}/bin:{person.env.get('PATH', os.environ['PATH'])}"
    done = person.transom("service", "install", "--cron")
    assert done.returncode == 0, done.stderr
    run = person.start("-N", "2", "--", *COMMAND, "--steps", "900", "--delay", "0.1")
    person.wait(run, at_step(5))
    before = read_holder(run)
    assert before is not None
    os.kill(before.pid, signal.SIGKILL)
    while operator_alive(run) is not None:
        time.sleep(0.05)
    journal = run.journal.read_bytes()

    minute, command = table.read_text().splitlines()[3].split("/bin/sh", 1)
    assert minute == "*/10 * * * * "
    bare = {"HOME": os.environ["HOME"], "LOGNAME": "root", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}  # as cron's
    operator = subprocess.Popen(["/bin/sh", "-c", f"/bin/sh{command}"], env=bare, cwd="/", start_new_session=True)
    try:
        view = person.wait(run, lambda view: view["operator"])
        after = read_holder(run)
        assert after is not None and after.epoch == before.epoch + 1 and after.pid != before.pid
        assert run.journal.read_bytes().startswith(journal), "the journal continues"
        again = subprocess.run(["/bin/sh", "-c", f"/bin/sh{command}"], env=bare, cwd="/", timeout=60, check=False)
        assert again.returncode == 11, "ten minutes later there is an operator, and nothing happens"
        assert person.transom("requeue", run.run_id).returncode == 0
        view = person.wait(run, lambda view: view["starts"] == 1 and view["step"] >= 5)
        assert view["excluded"] == [] and len(view["incidents"]) == 1
        assert person.transom("stop", run.run_id).returncode == 0
        assert person.wait(run, over)["phase"] == "stopped"
    finally:
        os.killpg(operator.pid, signal.SIGKILL)
        operator.wait()
