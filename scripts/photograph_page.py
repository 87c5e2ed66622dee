"""Take the pictures of docs/plan.md: the page in headless Chromium.

`python scripts/photograph_page.py` needs chromium and the extras web and test; it writes docs/page/*.webp.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "page"
COLOURS = 256  # of the palette: drawings have few


def save(page: Any, name: str, selector: str | None = None) -> None:
    from PIL import Image

    taken = page.locator(selector).screenshot() if selector else page.screenshot()
    picture = Image.open(io.BytesIO(taken)).convert("RGB").quantize(COLOURS)
    FOLDER.mkdir(exist_ok=True)
    picture.convert("RGB").save(FOLDER / f"{name}.webp", lossless=True, quality=100, method=6)


def settled(page: Any) -> None:
    page.wait_for_timeout(400)
    page.wait_for_function("() => document.body.dataset.settled !== undefined", timeout=60_000)
    page.wait_for_timeout(400)


def main() -> None:
    from playwright.sync_api import sync_playwright

    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "moescale", "web", "--no-open", "--port", "0"]
    with (
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server,
        sync_playwright() as driver,
    ):
        assert server.stderr is not None
        found = re.search(r"http://\S+", server.stderr.readline())
        assert found is not None
        address = found[0]
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 980})
        page.goto(address)
        settled(page)
        save(page, "plan")
        browser.close()
        server.terminate()


if __name__ == "__main__":
    main()
