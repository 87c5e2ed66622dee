"""The page in a real browser: sliders move, links reproduce a view, laws are uploaded, nothing leaves the machine.

The longest walks through it are tests of `make test-engines`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import numpy as np
import pytest

from command_line import run
from processes import web_server
from reference_data import ROOT

pytest.importorskip("fastapi", reason="the extra web is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")]

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
# Tables of a chart's numbers are folded away and scroll; nothing else may scroll within the page, in either direction.
SCROLLED_WITHIN = """() => [...document.querySelectorAll('main *, form *')].filter(e => !e.closest('.rows') && e.offsetParent)
    .filter(e => ['auto', 'scroll'].some(o => [getComputedStyle(e).overflowX, getComputedStyle(e).overflowY].includes(o)))
    .filter(e => e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1).map(e => e.outerHTML.slice(0, 80))"""
# WCAG 2.2, 2.5.8: a target of at least 24 x 24 CSS px; of a box or a radio button its label.
SMALL_TARGETS = """() => [...document.querySelectorAll('button, select, input, summary, a, [role=img][tabindex]')]
    .map(e => ['checkbox', 'radio'].includes(e.type) ? e.closest('label') : e).filter(e => e.offsetParent)
    .filter(e => { const b = e.getBoundingClientRect(); return b.width < 24 || b.height < 24; })
    .filter(e => !e.classList.contains('skip')).map(e => e.outerHTML.slice(0, 100))"""
BESIDE = """() => { const [a, b] = ['loss-cost', 'pins'].map(id => document.getElementById(id).getBoundingClientRect());
    return b.left >= a.right || b.top >= a.bottom; }"""
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
VIOLATIONS = """async () => {
    const found = await axe.run(document, {rules: {'target-size': {enabled: true}}});
    return {passes: found.passes.length, violations: found.violations.flatMap(v =>
      v.nodes.map(n => `${v.id}: ${n.html.slice(0, 120)} ${n.failureSummary}`))};
  }"""
# Every part of the page, but for the thousands of cells of the charts' numbers.
UNFOLD = "() => document.querySelectorAll('details:not(.table)').forEach(d => { d.open = true; })"
PATIENCE_MS = 60_000  # for a machine that does other things as well


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address that a really served page is opened by, with its token; more of a query may follow."""
    with web_server() as (server, port, token):
        yield f"http://127.0.0.1:{port}/?token={token}"
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
    page.evaluate("() => document.getElementById('rest')?.setAttribute('open', '')")
    yield page
    page.close()
    assert said == []


def settled(page: Any) -> None:
    """Wait for the whole answer to what the address says now."""
    page.wait_for_timeout(250)  # a change reaches the address and the answers after a moment
    page.wait_for_function(
        "() => { const q = new URLSearchParams(location.search); for (const k of ['theme', 'bands', 'pins']) q.delete(k);"
        " return document.body.dataset.settled === q.toString(); }"
    )


def answer(address: str, page: Any, name: str = "plan") -> Any:
    """What the server answers to the address of the page."""
    root, _, token = address.partition("?token=")
    known = {"Authorization": f"Bearer {token}"}
    with urlopen(Request(f"{root}api/{name}?{urlsplit(page.url).query}", headers=known)) as reply:
        return json.load(reply)


def sizes_of(decision: Any) -> str:
    """The sizes of a decision's headline."""
    return decision["label"].partition(": ")[2]


def slide(page: Any, label: str, presses: int, key: str = "ArrowRight") -> None:
    slider = page.get_by_label(label, exact=True)
    slider.focus()
    for _ in range(presses):
        slider.press(key)


def on_the_command_line(text: str) -> str:
    """A text of the page in the command line's words, as letters alone."""
    labels = {"Confidence": "--confidence", "Budget (FLOPs)": "--budget", "Loss at most": "--max-loss"}
    labels |= {"Batch at most": "--max-num-seqs", "MFU: share of peak FLOP/s": "--mfu"}
    text = re.sub("“(.+?)”", lambda found: labels[found[1]], text)
    return " ".join(re.sub(r"[.;:]+(?=\s|$)", " ", text).lower().split())


@pytest.mark.usefixtures("plans_made_once")
def test_the_first_view_is_the_command_lines_plan(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        told = run("plan", "--budget", "5.15e21").out
        words = " ".join(told.split())
        decision = answer(address, page)["decision"]
        assert told.startswith(decision["label"])
        assert page.inner_text("#headline").startswith(f"{decision['benefit']}: ")
        assert re.search(r" cheaper to serve at the same loss or lower \(\d+% likely\)$", decision["benefit"])
        assert page.locator("#facts dd").count() == 2
        details = " ".join(run("plan", "--budget", "5.15e21", "--details").out.split())
        for text in page.locator("#facts dd").all_inner_texts():
            assert text in details
        for row in page.locator("#rivals tbody tr").all_inner_texts():
            assert " ".join(row.replace("recommended", "").split()) in details
        assert page.locator("#rivals tr.chosen").count() == told.count("\n>")  # one of the three choices, or none
        assert on_the_command_line(page.inner_text("#caveat")) in on_the_command_line(details)
        names = page.locator("#strip dt").all_inner_texts()
        assert names == ["serve", "train", "chance"]
        figures = dict(zip(names, page.locator("#strip dd").all_inner_texts(), strict=True))
        for name in ("train", "chance"):  # the command line's numbers
            assert figures[name].splitlines()[0] in words
        price, share, _ = figures["serve"].splitlines()
        assert price.removesuffix("/Mtok") in words
        part, base = share.split(" of the baseline's ")
        # The lowest of the choices that are still open, or the only one.
        assert re.search(rf"costs {part.removesuffix('%')}(%| to \d+%) of baseline", words)
        assert base in words
        # The chart and the cost to serve open on the model of the headline.
        experts, sizes = re.findall(r"Train (\d+) experts(?: \(.*?\))?: (.*?), ", told)[0]
        assert page.inner_text("#picked").startswith(f"The recommended model: E = {experts}, {sizes}")
        assert page.inner_text("#picked").endswith(f"{price.removesuffix('/Mtok')} per million output tokens")
        assert page.inner_text("#command") == "moescale plan --budget 5.15e21"
        assert page.locator("canvas:visible").count() == 2
        assert page.locator("#plans tbody tr").count() == 14
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll('input, select, button, [role=img], [role=region], [role=group]')]
              .filter(e => !(e.labels?.length || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby')
                             || e.textContent.trim()))
              .map(e => e.outerHTML)"""
        )
        assert unnamed == []


def test_a_page_without_the_token_says_which_address_to_open(browser: Any, address: str) -> None:
    page = browser.new_page()
    page.goto(address.partition("?")[0])
    page.wait_for_selector("#error:visible")
    assert "open the address that `moescale web` printed" in page.inner_text("#error")
    assert page.locator(".card:visible").count() == 0
    page.goto(address)
    settled(page)
    assert "experts" in page.inner_text("#headline")
    assert "token" not in page.url
    assert page.evaluate("document.cookie") == ""  # no script reads it
    page.close()


@pytest.mark.engine
def test_sliders_move_the_answer(browser: Any, address: str) -> None:
    with opened(browser, f"{address}&latency=roofline&shape=mixtral") as page:
        before = page.inner_text("#headline")
        slide(page, "Budget (FLOPs)", 30)
        page.wait_for_url("**budget=1.02e22*")
        assert parse_qs(urlsplit(page.url).query)["budget"][0] == "1.02e22"
        slide(page, "Prompt tokens", 20)
        slide(page, "Utilization", 40, "ArrowLeft")
        slide(page, "$ per GPU hour", 10)
        settled(page)
        query = parse_qs(urlsplit(page.url).query)
        assert set(query) == {"latency", "shape", "budget", "prompt", "utilization", "usd-per-gpu-hour"}
        found = answer(address, page)
        headline = page.inner_text("#headline")
        assert headline != before
        assert headline.endswith(sizes_of(found["decision"]))
        assert page.inner_text("#command") == found["command"]
        assert len(page.evaluate("performance.getEntriesByName('redraw').map(e => e.duration)")) >= 1


@pytest.mark.fuzz
def test_a_link_reproduces_the_view(browser: Any, address: str) -> None:
    query = "latency=roofline&train-gpus=64&days=20&train-gpu=h100-sxm&gpu=h200-sxm&experts=1,8,32&match=1&max-usd-per-mtok=0.05&theme=dark&bands=0"
    with opened(browser, f"{address}&{query}") as page:
        assert page.get_by_label("GPU", exact=True).input_value() == "h200-sxm"
        assert page.get_by_label("Training GPUs, exact").input_value() == "64"
        assert page.get_by_label("Days, exact").input_value() == "20"
        assert page.get_by_label("GPUs, days").is_checked()
        assert page.get_by_label("lowest loss at a serving cost").is_checked()
        assert page.get_by_label("Baseline", exact=True).input_value() == "1"
        assert not page.get_by_label("band of all laws").is_checked()
        assert not page.get_by_label("16", exact=True).is_checked()
        assert page.get_attribute("html", "data-theme") == "dark"
        assert page.inner_text("#headline").endswith(sizes_of(answer(address, page)["decision"]))
        with opened(browser, f"{address}&{urlsplit(page.url).query}") as again:
            assert again.inner_text("#answer") == page.inner_text("#answer")
            assert again.inner_text("#plans") == page.inner_text("#plans")
            assert again.inner_text("#command") == page.inner_text("#command")


@pytest.mark.engine
def test_bounds_experts_and_the_base_are_chosen(browser: Any, address: str) -> None:
    with opened(browser, f"{address}&latency=roofline&shape=mixtral") as page:
        page.get_by_label("64", exact=True).uncheck()
        page.get_by_label("dense", exact=True).uncheck()
        page.get_by_label("Baseline", exact=True).select_option("8")
        settled(page)
        query = parse_qs(urlsplit(page.url).query)
        assert query["experts"] == ["4,8,16,32,128,256"]
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
        assert "“Loss at most”" in error.inner_text()
        assert "--" not in error.inner_text()
        assert on_the_command_line(error.inner_text()) == on_the_command_line(
            told.err.splitlines()[0].removeprefix("moescale: ")
        )
        assert page.inner_text("#headline").startswith("Infeasible")
        assert not page.locator("#candidates").is_visible()
        field.fill("two")
        field.press("Enter")
        settled(page)
        assert page.locator("#bad-max-loss").is_visible()
        assert field.get_attribute("aria-invalid") == "true"
        assert error.inner_text() == "Go to “Loss at most”"  # the message stands once, beside the field
        assert page.locator(".card:visible").count() == 0
        error.get_by_role("button").click()
        assert field.evaluate("e => e === document.activeElement")
        field.fill("")
        field.press("Enter")
        settled(page)
        assert not page.locator("#bad-max-loss").is_visible()
        assert "parameters" in page.inner_text("#headline")


@pytest.mark.engine
def test_a_pinned_answer_stays_beside_the_next_one(browser: Any, address: str) -> None:
    with opened(browser, f"{address}&latency=roofline&shape=mixtral") as page:
        first = answer(address, page)["decision"]
        page.click("#pin")
        assert page.locator("#pin").is_disabled()  # this very answer is pinned
        slide(page, "Budget (FLOPs)", 30)
        settled(page)
        now = answer(address, page)["decision"]
        assert now["label"] != first["label"]
        assert page.inner_text("#headline").endswith(sizes_of(now))
        row = page.locator("#pins tr").filter(has_text="active parameters").locator("td").all_inner_texts()
        mine, pinned = (d["figures"][1] for d in (now, first))
        ratio = f"{mine['value'] / pinned['value']:.3g}"
        assert mine["name"] == "active parameters"
        assert row == [mine["text"], f"{pinned['text']} (×{float(ratio):g})"]
        assert page.locator("#strip").is_visible()
        assert page.evaluate(BESIDE)  # and not over the chart
        page.click("#pin")
        assert page.locator("#pin").is_disabled()
        slide(page, "Budget (FLOPs)", 30)
        settled(page)
        assert page.locator("#pin").is_disabled()  # two at most
        with opened(browser, f"{address}&{urlsplit(page.url).query}") as again:
            again.wait_for_function("() => !document.getElementById('pins').textContent.includes('..')")
            assert again.inner_text("#pins") == page.inner_text("#pins")
        page.get_by_label("Open pinned A").click()
        settled(page)
        assert page.inner_text("#headline").endswith(sizes_of(first))
        assert set(parse_qs(urlsplit(page.url).query)) == {"latency", "shape", "pins"}
        page.get_by_label("Unpin B").click()
        page.get_by_label("Unpin A").click()
        page.wait_for_url("**?latency=roofline&shape=mixtral")
        assert page.locator("#pins tr").count() == 0
        assert page.locator("#pin").is_enabled()


@pytest.mark.engine
def test_budgets_in_days_and_dollars_and_a_life(browser: Any, address: str) -> None:
    with opened(browser, f"{address}&latency=roofline&law=yun2024-recovered") as page:
        flops = answer(address, page, "draft")["budget_flops"]
        for choice, keys in (("GPUs, days", {"train-gpus", "days"}), ("dollars", {"budget-usd"})):
            page.get_by_label(choice, exact=True).check()
            settled(page)
            assert keys < set(parse_qs(urlsplit(page.url).query))
            assert answer(address, page)["budget_flops"] == pytest.approx(flops, rel=0.1)  # the MFU is of other GPUs
        page.get_by_label("cheapest to train and serve").check()
        page.wait_for_timeout(600)
        settled(page)
        assert parse_qs(urlsplit(page.url).query)["lifetime-tokens"] == ["5T"]
        life = answer(address, page)["lifetime"]["recommendation"]
        assert f" {life['experts']} experts, " in page.inner_text("#headline")
        assert page.locator("#strip dt").all_inner_texts() == ["life", "saving", "chance"]
        assert "cheaper to train and serve" in page.inner_text("#headline")
        page.get_by_label("cheapest to serve at the baseline's loss").check()
        settled(page)
        assert "lifetime-tokens" not in page.url


@pytest.mark.fuzz
def test_keys_price_the_models_of_the_chart(browser: Any, address: str) -> None:
    with opened(browser, f"{address}&latency=roofline&shape=mixtral") as page:
        chart = page.locator("#loss-cost .plot")
        chart.focus()
        for key in ("ArrowUp", "ArrowRight", "ArrowRight"):
            chart.press(key)
        chosen = answer(address, page)["recommendation"]["experts"]
        above = f"E = {chosen // 2}, "  # the curve of the next smaller count
        page.wait_for_function(f"() => document.getElementById('live').textContent.includes('{above}')")
        words = page.inner_text("#picked")
        assert words.startswith(above)
        assert page.inner_text("#live") == words
        assert "limited by max_num_seqs" in page.inner_text("#serving")
        box = chart.bounding_box()
        for share in np.linspace(0.2, 0.8, 13):  # across the curves, one of which the pointer meets
            page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + share * box["height"])
            if page.inner_text("#picked") != words:
                break
        assert page.inner_text("#picked") != words
        page.locator("#loss-cost summary").click()
        count = "() => document.querySelectorAll('#loss-cost .rows tr').length"
        page.wait_for_function(f"n => ({count})() > 0")
        assert page.evaluate(count) == 1 + 8 * 39 + len(answer(address, page, "bands")["models"])


def test_charts_and_numbers_are_saved(browser: Any, address: str, tmp_path: Path) -> None:
    with opened(browser, f"{address}&latency=roofline&shape=mixtral") as page:
        for kind, start in (("svg", b"<svg"), ("png", b"\x89PNG"), ("csv", b"experts,stretch,n_params")):
            with page.expect_download() as saved:
                page.locator(f"#loss-cost [data-save={kind}]").click()
            path = tmp_path / saved.value.suggested_filename
            saved.value.save_as(path)
            assert path.name == f"loss-cost.{kind}"
            assert path.read_bytes().startswith(start)
        svg = (tmp_path / "loss-cost.svg").read_text()
        found = answer(address, page, "draft")
        chosen = answer(address, page, "plan")["decision"]["model"]["experts"]
        for curve in found["curves"]:  # those that the decision does not stand on are grey
            assert curve["colour"] in svg or curve["experts"] not in (chosen, found["base_experts"])
            assert curve["label"] in svg
        optimum = [row.split(",") for row in (tmp_path / "loss-cost.csv").read_text().splitlines() if "loss-opt" in row]
        assert [float(row[2]) for row in optimum] == [c["n_params"][found["optimum"]] for c in found["curves"]]
        with page.expect_download() as saved:
            page.locator("#law-file").click()
        saved.value.save_as(tmp_path / "law.toml")
        assert run("predict", "--law", tmp_path / "law.toml", "--n-params", "1B", "--tokens", "20B").code == 0


@pytest.mark.engine
def test_a_law_is_uploaded(browser: Any, address: str, tmp_path: Path) -> None:
    broken, law = tmp_path / "broken.toml", tmp_path / "mine.toml"
    broken.write_text("format = 1")
    assert run("fit", RUNS, "--law", "yun2024", "-o", law).code == 0
    with opened(browser, f"{address}&latency=roofline&experts=1,4,8") as page:
        page.locator("#upload summary").click()
        page.set_input_files("#file", broken)
        page.wait_for_selector("#upload-error:visible")
        assert "broken.toml" in page.inner_text("#upload-error")
        page.set_input_files("#file", law)
        page.wait_for_function("() => document.getElementById('upload-done').textContent === 'Law mine is loaded.'")
        settled(page)
        assert parse_qs(urlsplit(page.url).query)["law"][0].startswith("upload:")
        assert "--law mine.toml" in page.inner_text("#command")
        assert page.get_by_label("Scaling law").input_value().startswith("upload:")
    with opened(browser, f"{address}&law=upload:0123456789abcdef") as page:
        assert "another session" in page.inner_text("#bad-law")


def test_bad_parts_of_an_address_are_named_and_the_others_hold(browser: Any, address: str) -> None:
    with opened(browser, f"{address}&latency=roofline&colour=red&promt=9&prompt=abc&shape=mixtral") as page:
        told = page.locator("#dropped li").all_inner_texts()
        assert sorted(told) == [
            "colour=red: unknown setting 'colour'",  # nothing is like it
            "prompt=abc: 'abc' is not a quantity",
            "promt=9: unknown setting 'promt'; perhaps prompt",
        ]
        assert set(parse_qs(urlsplit(page.url).query)) == {"latency", "shape"}
        assert "experts" in page.inner_text("#headline")


def test_words_are_explained_on_tap_and_a_small_screen_keeps_the_answer_in_sight(browser: Any, address: str) -> None:
    size = {"width": 390, "height": 844}
    with opened(browser, f"{address}&latency=roofline&shape=mixtral", viewport=size) as page:
        page.get_by_role("button", name="chance", exact=True).click()
        assert "laboratories" in page.inner_text("#tip")
        assert not page.locator("#line").is_visible()
        page.locator("#same").scroll_into_view_if_needed()
        page.wait_for_selector("#line:visible")
        assert "cheaper to serve" in page.inner_text("#line")


@pytest.mark.fuzz
@pytest.mark.parametrize(("width", "scheme"), [(375, "dark"), (1000, "light")])
def test_the_page_fits_screens_and_themes(browser: Any, address: str, width: int, scheme: str) -> None:
    size = {"width": width, "height": 800}
    with opened(
        browser, f"{address}&latency=roofline&pins=%7Cbudget%3D1e22", viewport=size, color_scheme=scheme
    ) as page:
        page.evaluate(UNFOLD)
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(SCROLLED_WITHIN) == []
        assert page.evaluate(SMALL_TARGETS) == []
        # No number is written out in more digits than it has meaning.
        texts = "[...document.querySelectorAll('input')].map(e => `${e.value} ${e.placeholder} ${e.ariaValueText}`)"
        written = f"{page.inner_text('body')} {page.evaluate(texts)}"
        assert re.findall(r"\d{7,}", re.sub(r"upload:\w+", "", written)) == []
        for theme in (scheme, "dark" if scheme == "light" else "light"):
            assert page.get_attribute("html", "data-theme") == theme
            assert page.evaluate(FAINT_TEXTS) == [], theme  # WCAG 2.2, 1.4.3: a contrast of at least 4.5
            page.get_by_role("button", name=f"{'Light' if theme == 'dark' else 'Dark'} theme").click()
        page.wait_for_url("**theme=**")


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: `make page`, or `npm ci` in web/")
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1400, "light")])
def test_no_rule_of_axe_fails(browser: Any, address: str, width: int, scheme: str) -> None:
    for query in ("", "&pins=%7Cbudget%3D1e22", "&budget=abc", "&max-loss=1.2"):
        size = {"width": width, "height": 900}
        with opened(browser, f"{address}&latency=roofline{query}", viewport=size, color_scheme=scheme) as page:
            page.evaluate(UNFOLD)
            page.wait_for_timeout(300)  # the folded charts are drawn
            page.evaluate(AXE.read_text(encoding="utf-8"))
            found = page.evaluate(VIOLATIONS)
            assert found["violations"] == [], query
            assert found["passes"] > 30


@pytest.mark.parametrize("shape", [pytest.param((), marks=pytest.mark.fuzz), ("--shape", "deepseek")])
def test_a_report_prints_what_decides_on_one_page(browser: Any, shape: tuple[str, ...], tmp_path: Path) -> None:
    plan, report = tmp_path / "plan.json", tmp_path / "plan.html"
    asked = ("plan", "--budget", "1e23", "--gpu", "h100-sxm", "--latency", "roofline", *shape)
    plan.write_text(run(*asked, "--json").out, encoding="utf-8")
    assert run("report", plan, "-o", report).code == 0
    page = browser.new_page()
    page.goto(report.as_uri())
    printed = [page.pdf(format=paper) for paper in ("A4", "Letter")]
    assert [pdf.count(b"/Type /Page") - pdf.count(b"/Type /Pages") for pdf in printed] == [1, 1]
    page.close()
