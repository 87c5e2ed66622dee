"""The page in a real browser: sliders move, links reproduce a view, tables are uploaded, nothing leaves the machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest

from command_line import run

pytest.importorskip("fastapi", reason="the extra web is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"),
]

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "examples" / "runs.csv"
FAINT_TEXTS = """() => {
    const rgb = c => c.match(/[0-9.]+/g).slice(0, 3).map(v => {
      v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    const light = c => { const [r, g, b] = rgb(c); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const under = e => { for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor; if (c !== 'rgba(0, 0, 0, 0)') return c; } return 'rgb(255,255,255)'; };
    return [...document.querySelectorAll('p, dt, dd, th, td, label, h2, strong, small, summary, button')]
      .filter(e => e.offsetParent && e.textContent.trim())
      .filter(e => { const [a, b] = [light(getComputedStyle(e).color), light(under(e))].sort((x, y) => y - x);
                     return (a + 0.05) / (b + 0.05) < 4.5; })
      .map(e => e.outerHTML.slice(0, 80));
  }"""
PATIENCE_MS = 20_000  # for a machine that does other things as well


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A page that is really served."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "moescale", "web", "--no-open", "--port", "0"],
        env=environment, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stderr is not None
        line = server.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, line
        yield found[0]
        server.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        # Chromium's sandbox needs privileges that containers lack; the page is our own.
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """A page that has its whole answer; fails when it says anything on its console or asks another host."""
    page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
    page.set_default_timeout(PATIENCE_MS)
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    here = urlsplit(url).netloc
    page.on("request", lambda r: said.append(r.url) if urlsplit(r.url).netloc not in (here, "") else None)
    page.on("requestfailed", lambda r: said.append(f"failed: {r.url}") if "ERR_ABORTED" not in str(r.failure) else None)
    page.goto(url)
    settled(page)
    yield page
    page.close()
    assert said == []


def settled(page: Any) -> None:
    """Wait for the whole answer to what the address says now."""
    page.wait_for_timeout(250)  # a change reaches the address and the answers after a moment
    page.wait_for_function(
        "() => { const q = new URLSearchParams(location.search); for (const k of ['theme', 'bands', 'size']) q.delete(k);"
        " return document.body.dataset.settled === q.toString(); }"
    )


def answer(address: str, page: Any, name: str = "plan") -> Any:
    """What the server answers to the address of the page."""
    with urlopen(f"{address}api/{name}?{urlsplit(page.url).query}") as reply:
        return json.load(reply)


def slide(page: Any, label: str, presses: int, key: str = "ArrowRight") -> None:
    slider = page.get_by_label(label, exact=True)
    slider.focus()
    for _ in range(presses):
        slider.press(key)


def test_the_first_view_is_the_command_lines_plan(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        told = run("plan", "--budget", "5.15e21", "--mfu", "0.4").out  # which the page's slider states
        words = " ".join(told.split())
        assert told.startswith(page.inner_text("#headline"))
        for text in page.locator("#facts dd").all_inner_texts():
            assert text in words
        for row in page.locator("#rivals tbody tr").all_inner_texts():
            assert " ".join(row.replace(", recommended", "").split()) in words
        assert page.locator("#rivals tr.chosen").count() == 1
        assert page.inner_text("#caveat") in words
        assert page.locator("#strip dt").count() == 7
        assert page.inner_text("#command") == "moescale plan --mfu 0.4 --budget 5.15e21"
        assert page.locator("canvas:visible").count() == 4
        assert page.locator("#plans tbody tr").count() == 6
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll('input, select, button, [role=img], [role=region], [role=group]')]
              .filter(e => !(e.labels?.length || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby')
                             || e.textContent.trim()))
              .map(e => e.outerHTML)"""
        )
        assert unnamed == []


def test_sliders_move_the_answer(browser: Any, address: str) -> None:
    with opened(browser, f"{address}?latency=roofline") as page:
        before = page.inner_text("#headline")
        slide(page, "Budget (FLOPs)", 30)
        page.wait_for_url("**budget=1.02e22*")
        assert parse_qs(urlsplit(page.url).query)["budget"][0] == "1.02e22"
        slide(page, "Prompt tokens", 20)
        slide(page, "Utilization", 40, "ArrowLeft")
        slide(page, "US$ per GPU hour", 10)
        settled(page)
        query = parse_qs(urlsplit(page.url).query)
        assert set(query) == {"latency", "budget", "prompt", "utilization", "usd-per-gpu-hour"}
        found = answer(address, page)
        headline = page.inner_text("#headline")
        assert headline != before
        assert headline == found["decision"]["label"]
        assert page.inner_text("#command") == found["command"]
        assert len(page.evaluate("performance.getEntriesByName('redraw').map(e => e.duration)")) >= 1


def test_a_link_reproduces_the_view(browser: Any, address: str) -> None:
    query = "latency=roofline&train-gpus=64&days=20&train-gpu=h100-sxm&gpu=h200-sxm&experts=1,8,32&match=1&max-usd-per-mtok=0.05&theme=dark&bands=0"
    with opened(browser, f"{address}?{query}") as page:
        assert page.get_by_label("GPU", exact=True).input_value() == "h200-sxm"
        assert page.get_by_label("GPUs to train on, exact").input_value() == "64"
        assert page.get_by_label("Days, exact").input_value() == "20"
        assert page.get_by_label("in GPUs and days").is_checked()
        assert page.get_by_label("lowest loss at a serving cost").is_checked()
        assert page.get_by_label("Base", exact=True).input_value() == "1"
        assert not page.get_by_label("all laws").is_checked()
        assert not page.get_by_label("16", exact=True).is_checked()
        assert page.get_attribute("html", "data-theme") == "dark"
        assert page.inner_text("#headline") == answer(address, page)["decision"]["label"]
        with opened(browser, page.url) as again:
            assert again.inner_text("#answer") == page.inner_text("#answer")
            assert again.inner_text("#plans") == page.inner_text("#plans")
            assert again.inner_text("#command") == page.inner_text("#command")


def test_bounds_experts_and_the_base_are_chosen(browser: Any, address: str) -> None:
    with opened(browser, f"{address}?latency=roofline") as page:
        page.get_by_label("64", exact=True).uncheck()
        page.get_by_label("dense", exact=True).uncheck()
        page.get_by_label("Base", exact=True).select_option("8")
        settled(page)
        query = parse_qs(urlsplit(page.url).query)
        assert query["experts"] == ["4,8,16,32"]
        assert query["match"] == ["8"]
        field = page.get_by_label("Loss at most, exact")
        assert field.input_value() == ""
        assert float(field.get_attribute("placeholder")) == pytest.approx(
            answer(address, page, "draft")["base_loss"], rel=1e-4
        )
        field.fill("1.2")
        field.press("Enter")
        settled(page)
        error = page.locator("#error")
        assert error.is_visible()
        told = run(*page.inner_text("#command").split()[1:])
        assert told.code == 1
        assert error.inner_text() == told.err.splitlines()[0].removeprefix("moescale: ")
        assert not page.locator("#candidates").is_visible()
        field.fill("two")
        field.press("Enter")
        settled(page)
        assert page.locator("#bad-max-loss").is_visible()
        assert field.get_attribute("aria-invalid") == "true"
        assert not error.is_visible()  # it is said once
        assert "see “Loss at most”" in page.inner_text("#headline")
        assert page.locator(".card:visible").count() == 0
        field.fill("")
        field.press("Enter")
        settled(page)
        assert not page.locator("#bad-max-loss").is_visible()
        assert page.inner_text("#headline").startswith("Train ")


def test_a_pinned_answer_stays_beside_the_next_one(browser: Any, address: str) -> None:
    with opened(browser, f"{address}?latency=roofline") as page:
        first = answer(address, page)["decision"]
        page.click("#pin")
        assert page.locator("#pin").is_enabled()
        slide(page, "Budget (FLOPs)", 30)
        settled(page)
        now = answer(address, page)["decision"]
        assert now["label"] == page.inner_text("#headline") != first["label"]
        assert first["label"] in page.inner_text("#pins")
        line = page.locator("#strip div").first.locator("small").last.inner_text()
        ratio = now["strip"][0]["value"] / first["strip"][0]["value"]
        assert line == f"A {first['strip'][0]['text']}, ×{float(f'{ratio:.3g}'):g}"
        page.click("#pin")
        assert page.locator("#pin").is_disabled()  # two at most
        page.get_by_role("button", name="Open").first.click()
        settled(page)
        assert page.inner_text("#headline") == first["label"]
        assert urlsplit(page.url).query == "latency=roofline"
        page.get_by_label("Unpin B").click()
        page.get_by_label("Unpin A").click()
        assert page.locator("#pins li").count() == 0
        assert page.locator("#pin").is_enabled()


def test_budgets_in_days_and_dollars_and_a_life(browser: Any, address: str) -> None:
    with opened(browser, f"{address}?latency=roofline&law=yun2024-recovered") as page:
        flops = answer(address, page, "draft")["budget_flops"]
        for choice, keys in (("in GPUs and days", {"train-gpus", "days"}), ("in dollars", {"budget-usd"})):
            page.get_by_label(choice).check()
            settled(page)
            assert keys < set(parse_qs(urlsplit(page.url).query))
            assert answer(address, page, "draft")["budget_flops"] == pytest.approx(flops, rel=0.02)
        page.get_by_label("cheapest to train and serve").check()
        page.wait_for_timeout(600)
        settled(page)
        assert parse_qs(urlsplit(page.url).query)["lifetime-tokens"] == ["5T"]
        life = answer(address, page)["lifetime"]["recommendation"]
        assert page.inner_text("#headline").startswith(f"Train {life['experts']} experts")
        assert "its life" in page.locator("#strip dt").all_inner_texts()
        page.get_by_label("cheapest to serve, as good as the base").check()
        settled(page)
        assert "lifetime-tokens" not in page.url


def test_keys_price_the_models_of_the_chart(browser: Any, address: str) -> None:
    with opened(browser, f"{address}?latency=roofline") as page:
        chart = page.locator("#loss-cost .plot")
        chart.focus()
        for key in ("ArrowUp", "ArrowRight", "ArrowRight"):
            chart.press(key)
        page.wait_for_function("() => document.getElementById('live').textContent.includes('E = 16')")
        words = page.inner_text("#picked")
        assert words.startswith("E = 16 at ")
        assert page.inner_text("#live") == words
        assert "limited by memory" in page.inner_text("#serving")
        box = chart.bounding_box()
        page.mouse.move(box["x"] + 0.55 * box["width"], box["y"] + 0.4 * box["height"])
        page.wait_for_function("w => document.getElementById('picked').textContent !== w", arg=words)
        page.locator("#loss-cost summary").click()
        count = "() => document.querySelectorAll('#loss-cost .rows tr').length"
        page.wait_for_function(f"n => ({count})() > 0")
        assert page.evaluate(count) == 1 + 6 * 59 + len(answer(address, page, "bands")["models"])


def test_charts_and_numbers_are_saved(browser: Any, address: str, tmp_path: Path) -> None:
    with opened(browser, f"{address}?latency=roofline") as page:
        for kind, start in (("svg", b"<svg"), ("png", b"\x89PNG"), ("csv", b"experts,stretch,n_params")):
            with page.expect_download() as saved:
                page.locator(f"#loss-cost [data-save={kind}]").click()
            path = tmp_path / saved.value.suggested_filename
            saved.value.save_as(path)
            assert path.name == f"loss-cost.{kind}"
            assert path.read_bytes().startswith(start)
        svg = (tmp_path / "loss-cost.svg").read_text()
        found = answer(address, page, "draft")
        for curve in found["curves"]:
            assert curve["colour"] in svg
            assert curve["label"] in svg
        optimum = [
            line.split(",") for line in (tmp_path / "loss-cost.csv").read_text().splitlines() if "loss-opt" in line
        ]
        assert [float(row[2]) for row in optimum] == [c["n_params"][found["optimum"]] for c in found["curves"]]
        page.locator("#law-card > summary").click()
        with page.expect_download() as saved:
            page.locator("#law-file").click()
        saved.value.save_as(tmp_path / "law.toml")
        assert run("predict", "--law", tmp_path / "law.toml", "--n-params", "1B", "--tokens", "20B").code == 0


def test_tables_are_uploaded_fitted_and_cancelled(browser: Any, address: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.csv"
    broken.write_text(RUNS.read_text().replace("3.04796", "three"))
    with opened(browser, f"{address}?latency=roofline&experts=1,4,8") as page:
        page.locator("#upload summary").click()
        page.set_input_files("#file", broken)
        page.wait_for_selector("#upload-error:visible")
        told = run("fit", broken).err.splitlines()[-1].removeprefix("moescale: ")
        assert page.inner_text("#upload-error") == told.replace(str(broken), broken.name)
        assert page.locator("#form").input_value() == "auto"
        page.select_option("#form", "yun2024")
        page.select_option("#draws", "500")
        page.set_input_files("#file", RUNS)
        page.wait_for_selector("#fit-progress[value]")
        page.click("#fit-cancel")
        page.wait_for_function("() => document.getElementById('upload-done').textContent.startsWith('Cancelled')")
        assert not page.locator("#fit-progress").is_visible()
        page.select_option("#draws", "0")
        page.set_input_files("#file", RUNS)
        page.wait_for_function("() => document.getElementById('upload-done').textContent.startsWith('runs: ')")
        settled(page)
        assert parse_qs(urlsplit(page.url).query)["law"][0].startswith("upload:")
        assert "fitted to 100 runs" in page.inner_text("#law-note")
        assert page.locator("#residuals canvas").is_visible()
        assert "--law runs.toml" in page.inner_text("#command")
        assert page.get_by_label("Scaling law").input_value().startswith("upload:")
    with opened(browser, f"{address}?law=upload:0123456789abcdef") as page:
        assert "another session" in page.inner_text("#bad-law")


@pytest.mark.parametrize(("width", "scheme"), [(375, "dark"), (1400, "light")])
def test_the_page_fits_screens_and_themes(browser: Any, address: str, width: int, scheme: str) -> None:
    with opened(
        browser, f"{address}?latency=roofline", viewport={"width": width, "height": 800}, color_scheme=scheme
    ) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for theme in (scheme, "dark" if scheme == "light" else "light"):
            assert page.get_attribute("html", "data-theme") == theme
            assert page.evaluate(FAINT_TEXTS) == [], theme  # WCAG 2.2, 1.4.3: a contrast of at least 4.5
            page.get_by_role("button", name="Dark").click()
        assert "theme" in parse_qs(urlsplit(page.url).query) or page.wait_for_url("**theme=**") is None
