"""``python -m transom_cli`` and the ``transom`` command."""

from __future__ import annotations


def main() -> None:
    from transom_cli.cli.app import run_app

    run_app()


if __name__ == "__main__":
    main()
