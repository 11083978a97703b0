"""Makes docs/images/*.png: the report by day and by night, and the live screen, of runs that are made up.

    python scripts/images.py [FOLDER]

Needs Chromium. What is drawn is made by the program itself, from run directories as operator and launchers write them.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import report as long_run
import status as living_run

from transom_cli.report.document import document
from transom_cli.report.gather import gather
from transom_cli.report.page import page
from transom_cli.ui.watch.app import WatchApp
from transom_cli.ui.watch.follow import Follow

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDE, PHONE = (1100, 1000), (390, 800)
SCREEN = (100, 30)  # columns and rows


def shoot(browser: str, source: Path, target: Path, size: tuple[int, int], *, dark: bool = False) -> None:
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={source.parent}/profile", f"--window-size={size[0]},{size[1]}"]
    command += [f"--blink-settings=preferredColorScheme={int(not dark)}", f"--screenshot={target}", source.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    print(f"{target}: {target.stat().st_size / 1024:,.0f} KiB")


async def live_screen(folder: Path) -> str:
    """As textual draws it: an SVG image."""
    app = WatchApp(Follow(living_run.make(folder, 64, 8), lambda view: view))
    async with app.run_test(size=SCREEN) as pilot:
        await pilot.pause(1.5)
        await pilot.press("enter")
        await pilot.pause(0.5)
        return app.export_screenshot(title="transom status --watch")


def main() -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        sys.exit("error: no Chromium is here\n\nhint: apt-get install chromium")
    out = Path(sys.argv[1]) if sys.argv[1:] else IMAGES
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        html = folder / "report.html"
        run = long_run.make(folder / "long", 3.2, 11, 64, steps=115_000, requeued=4)
        html.write_text(page(document(gather(run))))
        shoot(browser, html, out / "report-light.png", WIDE)
        shoot(browser, html, out / "report-dark.png", WIDE, dark=True)
        shoot(browser, html, out / "report-phone.png", PHONE, dark=True)
        drawn = asyncio.run(live_screen(folder / "live"))
        box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)
        assert box is not None
        screen = folder / "screen.svg"
        screen.write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL))  # those would be fetched
        shoot(browser, screen, out / "watch.png", (round(float(box[1])), round(float(box[2]))))


if __name__ == "__main__":
    main()
