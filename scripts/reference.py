"""Write the pages of docs/ that are generated from the code (`make docs-reference`); tests compare them."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from reference_commands import commands_markdown  # noqa: E402
from reference_messages import messages_markdown  # noqa: E402
from reference_settings import settings_markdown  # noqa: E402

PAGES = {
    "settings.md": settings_markdown,
    "commands.md": commands_markdown,
    "messages.md": lambda: messages_markdown(ROOT / "transom_cli"),
}


def main() -> None:
    for name, text in PAGES.items():
        (ROOT / "docs" / name).write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
