"""``python -m transom_cli`` and the ``transom`` command."""

from __future__ import annotations

import os
import sys


def main() -> None:
    _reopen_closed_streams()
    try:
        _main()
    except KeyboardInterrupt:  # while a command is still being imported
        sys.exit(130)


def _reopen_closed_streams() -> None:
    """Connect streams that the caller has closed (`>&-`) to /dev/null, so that no other file takes their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115


def _main() -> None:
    if sys.argv[1:2] in (["status"], ["list"], ["diagnose"]):
        from transom_cli.cli.quick import quick

        code = quick(sys.argv[1:])
        if code is not None:
            sys.exit(code)
    if sys.argv[1:2] == ["launch"]:
        _launch(sys.argv[1:])
    if sys.argv[1:2] == ["operate"]:
        from transom_cli.cli.operate import quick as operate

        operate(sys.argv[2:])
    from transom_cli.cli.app import run_app

    run_app()


def _launch(words: list[str]) -> None:
    """Start the launcher over without the packages on PYTHONPATH, which belong to the user's training."""
    from transom_cli.start import own

    if not sys.flags.isolated:
        os.execv(sys.executable, own("transom_cli", *words))


if __name__ == "__main__":
    main()
