"""The page under load and in a browser.

`python benchmarks/page.py [--clients 200] [--seconds 30]` starts a server and asks it as that many pages do: a draft, then a plan,
each asked again after a refusal as the page does (version 0.2: `--tries 10`). Three loads: all ask the same four questions, which
were asked before; all do while 500 slow connections stand open; and each asks what nobody has asked. Beside them a reader loads `/`
every 0.2 s. Lost is what failed, or had no answer 120 s after the last question.
`python benchmarks/page.py --browser` measures start-up and redraws in headless Chromium instead; it needs chromium and the extras
web and test. Times are wall clock, so that a busy machine shows in them; the load average is printed beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

SRC = Path(__file__).parents[1] / "src"
SLIDERS = {"Budget (FLOPs)": "the budget", "Prompt tokens": "the prompt length", "$ per GPU hour": "the price"}
PATIENCE_S = 120.0  # after the last question
PACE_S = 0.25  # from one move of a slider to the next, as of a hand
SLOW = 500  # connections that send one byte and wait


@contextmanager
def serving() -> Generator[tuple[str, float]]:
    """The address of a fresh server, and when its process was started."""
    began = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "moescale", "web", "--no-open", "--port", "0"],
        env=environment, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        try:
            assert server.stderr is not None
            found = re.search(r"http://\S+", server.stderr.readline())
            if found is None:
                raise SystemExit("the server did not start")
            threading.Thread(target=server.stderr.read, daemon=True).start()  # a full pipe would stop the server
            yield found[0], began
        finally:
            server.terminate()


class Client:
    """A connection that is opened again where it was closed, and what became of its questions."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        token = parse_qs(parts.query).get("token", [""])[0]
        self.host, self.port = parts.hostname or "", parts.port or 0
        self.headers = f"Host: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n"
        self.stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.took_s: list[float] = []
        self.lost = self.tries = 0

    async def get(self, path: str) -> tuple[int, float]:
        """The status of an answer, read to its end, and the seconds to wait before another try."""
        if self.stream is None or self.stream[1].is_closing() or self.stream[0].at_eof():
            self.stream = await asyncio.open_connection(self.host, self.port)
        reader, writer = self.stream
        writer.write(f"GET {path} HTTP/1.1\r\n{self.headers}".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = re.search(r"content-length: (\d+)", head)
        await (reader.readexactly(int(length[1])) if length else reader.read())
        if "connection: close" in head:
            writer.close()
        again = re.search(r"retry-after: (\d+)", head)
        return int(head.split()[1]), float(again[1]) if again else 1.0

    async def ask(self, path: str, tries: int) -> None:
        """Ask as the page does, and note how long it took or that there was no answer."""
        began = time.perf_counter()
        self.lost += 1  # until it is there
        with suppress(OSError, EOFError):
            for _ in range(tries):
                self.tries += 1
                status, again_s = await self.get(path)
                if status == 200:
                    self.took_s.append(time.perf_counter() - began)
                    self.lost -= 1
                    return
                await asyncio.sleep(again_s)
        self.stream = None


async def load(asked: argparse.Namespace, address: str, question: Callable[[int, int], str], slow: int) -> list[str]:
    """A row of the table: what the clients and a reader of the page saw."""
    pages, reader, first = [Client(address) for _ in range(asked.clients)], Client(address), Client(address)
    names = ("draft", "plan")
    if question is same:
        for i in range(4):
            for name in names:
                await first.ask(f"/api/{name}?{question(i, 0)}", asked.tries)
    end = time.perf_counter() + asked.seconds

    async def visit(client: Client, i: int) -> None:
        turn = 0
        while time.perf_counter() < end:
            for name in names:
                await client.ask(f"/api/{name}?{question(i, turn)}", asked.tries)
            turn += 1

    async def read() -> None:
        while time.perf_counter() < end:
            await reader.ask("/", asked.tries)
            await asyncio.sleep(0.2)

    async def dawdle() -> None:
        while time.perf_counter() < end:
            with suppress(OSError):
                stream, writer = await asyncio.open_connection(reader.host, reader.port)
                writer.write(b"G")
                await stream.read()
                writer.close()
            await asyncio.sleep(0.01)

    dawdlers = [asyncio.create_task(dawdle()) for _ in range(slow)]
    await asyncio.sleep(0.5 if slow else 0)
    working = [asyncio.create_task(visit(client, i)) for i, client in enumerate(pages)] + [asyncio.create_task(read())]
    await asyncio.wait(working, timeout=asked.seconds + PATIENCE_S)
    for task in (*working, *dawdlers):
        task.cancel()
    await asyncio.gather(*working, *dawdlers, return_exceptions=True)
    took, lost = sorted(t for client in pages for t in client.took_s), sum(client.lost for client in pages)
    again = sum(client.tries for client in pages) - len(took) - lost
    waits = [f"{took[int(share * (len(took) - 1))]:.2f}" if took else "-" for share in (0.5, 0.99)]
    return [
        f"{len(took)}",
        f"{lost}",
        f"{max(again, 0)}",
        *waits,
        f"{reader.lost}",
        f"{max(reader.took_s, default=0):.2f}",
    ]


def same(i: int, turn: int) -> str:
    """One of four questions."""
    return f"budget={1 + (i + turn) % 4}e22"


def new(i: int, turn: int) -> str:
    """A question of this client and turn."""
    return f"budget={1 + i / 1000 + turn / 1e6:.7f}e22"


def under_load(asked: argparse.Namespace) -> None:
    """Print the table."""
    head = ["load", "answered", "lost", "asked again", "p50 s", "p99 s", "/ lost", "/ slowest s"]

    def line(cells: list[str]) -> None:
        print(
            f"{cells[0]:<38}"
            + "".join(f"{cell:>{len(name) + 3}}" for name, cell in zip(head[1:], cells[1:], strict=True))
        )

    line(head)
    for name, question, slow in (
        ("the same four questions", same, 0),
        (f"the same, beside {SLOW} slow connections", same, SLOW),
        ("new questions", new, 0),
    ):
        with serving() as (address, _):
            line([name, *asyncio.run(load(asked, address, question, slow))])
    print(
        f"{asked.clients} clients, {asked.seconds:g} s; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


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


def sliding(
    browser: Any, address: str, latency: str, label: str, asked: argparse.Namespace
) -> tuple[list[float], list[float]]:
    """Milliseconds from each change of a slider to the frame with the new chart, and of the server's share of it."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}&latency={latency}{asked.question}")
    page.wait_for_function("() => document.body.dataset.settled !== undefined", timeout=60_000)
    slider = page.get_by_label(label, exact=True)
    slider.focus()
    page.evaluate("performance.clearMeasures(); performance.clearResourceTimings()")
    for _ in range(asked.steps):
        began = time.perf_counter()
        seen = page.evaluate("performance.getEntriesByName('redraw').length")
        slider.press("ArrowRight")
        page.wait_for_function(f"() => performance.getEntriesByName('redraw').length > {seen}", polling=5)
        time.sleep(max(0.0, began + PACE_S - time.perf_counter()))
    redraw = page.evaluate("performance.getEntriesByName('redraw').map(e => e.duration)")
    server = page.evaluate(
        "performance.getEntriesByType('resource').filter(e => e.name.includes('/api/sketch')).map(e => e.duration)"
    )
    page.close()
    return redraw, server


def in_a_browser(asked: argparse.Namespace) -> None:
    """Print how long it takes to start and to redraw."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None or importlib.util.find_spec("playwright") is None:
        raise SystemExit("--browser needs chromium and playwright: apt-get install chromium, pip install '.[test]'")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        browser.new_page().close()
        starts = [start_up(browser) for _ in range(asked.repeats)]
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        for name in starts[0]:
            values = [start[name] for start in starts]
            print(f"start-up: {name:16s} {statistics.median(values):5.2f} s (best {min(values):.2f})")
        with serving() as (address, _):
            for latency in ("silicon", "roofline"):
                for label, words in SLIDERS.items():
                    redraw, server = sliding(browser, address, latency, label, asked)
                    tenth = sorted(redraw)[int(0.9 * len(redraw))]
                    print(
                        f"{latency:8s} {words:17s} to redrawn chart: median {statistics.median(redraw):4.0f} ms, "
                        f"best {min(redraw):4.0f}, 90% within {tenth:4.0f} (the request {statistics.median(server):.0f}); "
                        f"load {os.getloadavg()[0]:.1f}"
                    )
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument(
        "--tries", type=int, default=sys.maxsize, help="of a refused question; default: until it is answered"
    )
    parser.add_argument("--browser", action="store_true", help="start-up and redraws in headless Chromium instead")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--question", default="", help="of the sliders' page, as `&budget=1e23&gpu=h100-sxm`")
    asked = parser.parse_args()
    if asked.browser:
        in_a_browser(asked)
    else:
        under_load(asked)


if __name__ == "__main__":
    main()
