"""``python -m transom_cli`` and the ``transom`` command."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        _main()
    except KeyboardInterrupt:  # while a command is still being imported
        sys.exit(130)


def _main() -> None:
    if sys.argv[1:2] in (["status"], ["list"]):
        from transom_cli.cli.quick import quick

        code = quick(sys.argv[1:])
        if code is not None:
            sys.exit(code)
    if sys.argv[1:2] == ["operate"]:
        from transom_cli.cli.operate import quick as operate

        operate(sys.argv[2:])
    from transom_cli.cli.app import run_app

    run_app()


if __name__ == "__main__":
    main()
