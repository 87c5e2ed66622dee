"""The page's speed in headless Chromium: from start-up to usable, and from a slider's change to the redrawn chart.

`python benchmarks/page.py [--repeats 5] [--steps 40]` needs chromium and the extras web and test. Times are wall clock, so
that a busy machine shows in them; the load average is printed beside them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SRC = Path(__file__).parents[1] / "src"
SLIDERS = {"Budget (FLOPs)": "the budget", "Prompt tokens": "the prompt length", "$ per GPU hour": "the price"}


@contextmanager
def serving() -> Generator[tuple[str, float]]:
    """The address of a fresh server, and when its process was started."""
    began = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "moescale", "web", "--no-open", "--port", "0"],
        env=environment, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stderr is not None
        found = re.search(r"http://\S+/", server.stderr.readline())
        if found is None:
            raise SystemExit("the server did not start")
        yield found[0], began
        server.terminate()


def wait(page: Any, name: str) -> None:
    page.wait_for_function(f"() => document.body.dataset.{name} !== undefined", timeout=60_000, polling=5)


def start_up(browser: Any) -> dict[str, float]:
    """Seconds from starting the process until the address is printed, the first chart stands, the answer is there."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    with serving() as (address, began):
        told = time.perf_counter() - began
        page.goto(address, wait_until="commit")
        page.wait_for_selector("#question input[type=range]")
        controls = time.perf_counter() - began
        wait(page, "drawn")
        drawn = time.perf_counter() - began
        wait(page, "answered")
        answered = time.perf_counter() - began
        page.close()
    return {"address printed": told, "controls there": controls, "first chart": drawn, "answer in words": answered}


def sliding(browser: Any, address: str, latency: str, label: str, steps: int) -> tuple[list[float], list[float]]:
    """Milliseconds from each change of a slider to the frame with the new chart, and of the server's share of it."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}?latency={latency}")
    page.wait_for_function("() => document.body.dataset.settled !== undefined", timeout=60_000)
    slider = page.get_by_label(label, exact=True)
    slider.focus()
    page.evaluate("performance.clearMeasures(); performance.clearResourceTimings()")
    for _ in range(steps):
        seen = page.evaluate("performance.getEntriesByName('redraw').length")
        slider.press("ArrowRight")
        page.wait_for_function(f"() => performance.getEntriesByName('redraw').length > {seen}", polling=5)
    redraw = page.evaluate("performance.getEntriesByName('redraw').map(e => e.duration)")
    server = page.evaluate(
        "performance.getEntriesByType('resource').filter(e => e.name.includes('/api/draft')).map(e => e.duration)"
    )
    page.close()
    return redraw, server


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        browser.new_page().close()
        starts = [start_up(browser) for _ in range(asked.repeats)]
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        for name in starts[0]:
            values = [start[name] for start in starts]
            print(f"start-up: {name:16s} {statistics.median(values):5.2f} s (best {min(values):.2f})")
        with serving() as (address, _):
            for latency in ("silicon", "roofline"):
                for label, words in SLIDERS.items():
                    redraw, server = sliding(browser, address, latency, label, asked.steps)
                    tenth = sorted(redraw)[int(0.9 * len(redraw))]
                    print(
                        f"{latency:8s} {words:17s} to redrawn chart: median {statistics.median(redraw):4.0f} ms, "
                        f"best {min(redraw):4.0f}, 90% within {tenth:4.0f} (the request {statistics.median(server):.0f}); "
                        f"load {os.getloadavg()[0]:.1f}"
                    )
        browser.close()


if __name__ == "__main__":
    main()
