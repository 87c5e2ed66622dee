"""The server of the page: its answers are the command line's, its uploads stay in memory, strangers are refused."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from command_line import answer_of, run

pytest.importorskip("fastapi", reason="the extra web is not installed")
pytest.importorskip("httpx", reason="the extra test is not installed")

import httpx
import uvicorn
from fastapi import FastAPI
from httpx import Client

from moescale.figures import colour_of
from moescale.hardware import price
from moescale.laws import find_law
from moescale.laws.store import law_text
from moescale.units import format_flops
from moescale.web.app import create_app, kernels_version, listen, static_files
from moescale.web.security import UPLOAD_LIMIT_BYTES, Access, is_loopback
from moescale.web.state import DEFAULTS, NUMBERS, read_state
from moescale.web.store import MOST_LAWS, Laws

ROOT = Path(__file__).parents[1]
BYTES = {"content-type": "application/octet-stream"}
RUNS = ROOT / "examples" / "runs.csv"
FAST = {"latency": "roofline"}


@contextmanager
def served(bound: socket.socket, app: FastAPI, **options: Any) -> Iterator[Client]:
    """A client of the application, which is really served."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    address = f"http://127.0.0.1:{bound.getsockname()[1]}"
    try:
        with Client(base_url=address, timeout=120, trust_env=False, **options) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def bound() -> Iterator[socket.socket]:
    with listen("127.0.0.1", 0) as bound:
        yield bound


@pytest.fixture(scope="module")
def port(bound: socket.socket) -> int:
    return bound.getsockname()[1]


@pytest.fixture(scope="module")
def app(port: int) -> FastAPI:
    return create_app(Access(port), warm=False)


@pytest.fixture(scope="module")
def client(bound: socket.socket, app: FastAPI) -> Iterator[Client]:
    with served(bound, app) as client:
        yield client


def ask(client: Client, name: str, **query: str) -> Any:
    answer = client.get(f"/api/{name}", params={key.replace("_", "-"): value for key, value in query.items()})
    assert answer.status_code == 200
    return answer.json()


def events_of(client: Client, key: str) -> list[tuple[str, Any]]:
    """The events of a fit until its last one."""
    text = client.get(f"/api/fits/{key}").text
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.strip().split("\n\n")]
    return [(block["event"], json.loads(block["data"])) for block in blocks]


def fit(client: Client, name: str, data: bytes, **query: str) -> list[tuple[str, Any]]:
    answer = client.post("/api/fits", params={"name": name, **query}, content=data, headers=BYTES).json()
    assert "fit" in answer, answer
    return events_of(client, answer["fit"])


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"budget": "2e22", "gpu": "h100-sxm", "experts": "1,8,16", "match-experts": "1", "utilization": "0.5"},
        {"gpu-hours": "100K", "train-gpu": "h100-sxm", "mfu": "0.35", "max-tokens": "400B", **FAST},
        {"max-loss": "2.05", "prompt": "1155", "output": "211", "usd-per-gpu-hour": "2.5", "max-gpus": "4", **FAST},
        {"max-usd-per-mtok": "0.05", "weights": "fp8", "kv-cache": "fp8", "max-num-seqs": "256", **FAST},
    ],
)
def test_the_command_gives_the_same_plan(client: Client, query: dict[str, str]) -> None:
    page = client.get("/api/bands", params=query).json()
    command = shlex.split(page["command"])
    assert command[:2] == ["moescale", "plan"]
    told = answer_of(*command[1:])
    for key in ("loss_optimal", "bounded_loss", "bounded_cost", "frontier", "recommendation", "budget_flops", "law"):
        assert page[key] == told[key], key
    assert page["sentence"] == told["recommendation"]["why"]
    quick = client.get("/api/plan", params=query).json()
    assert quick["recommendation"]["n_params"] == told["recommendation"]["n_params"]
    assert "intervals" not in json.dumps(quick)


def test_a_budget_that_is_not_spent_is_said_in_the_headline(client: Client) -> None:
    """The page's headline is "With .. FLOPs train", and its text says why some of them are left."""
    page = ask(client, "plan", **{"budget": "1e24", "max-tokens": "15T", **FAST})
    used = page["training"]["flops_used"]
    assert page["budget"] == f"{format_flops(used)} of 1e24"
    assert 0.2 < page["training"]["budget_share"] < 0.5
    assert "--max-tokens ends training at 15T tokens" in page["sentence"]
    assert ask(client, "plan", budget="1e22", **FAST)["budget"] == "1e22"


def test_hours_of_a_training_gpu_give_days_and_dollars(client: Client) -> None:
    page = ask(client, "plan", **{"gpu-hours": "100K", "train-gpu": "h100-sxm", "mfu": "0.35", **FAST})
    assert page["training"]["gpu_days"] == pytest.approx(1e5 / 24, rel=1e-6)
    assert page["training"]["usd"] == pytest.approx(1e5 * price("h100-sxm").usd_per_gpu_hour, rel=1e-6)
    assert "--train-gpu h100-sxm --mfu 0.35" in page["command"]
    assert "gpu_days" not in ask(client, "plan", **FAST)["training"]


def test_a_draft_has_the_plans_numbers(client: Client) -> None:
    draft, plan = ask(client, "draft", **FAST), ask(client, "plan", **FAST)
    assert draft["command"] == plan["command"]
    for curve, best in zip(draft["curves"], plan["loss_optimal"], strict=True):
        at = {name: curve[name][draft["optimum"]] for name in ("n_params", "tokens", "loss", "usd_per_mtok", "gpus")}
        assert at == {name: best[name] for name in at}
        assert curve["colour"] == colour_of(curve["experts"])
    assert [curve["beyond_law"] for curve in draft["curves"]] == [False] * 5 + [True]


def test_a_band_lies_around_each_curve(client: Client) -> None:
    draft, bands = ask(client, "draft", **FAST), ask(client, "bands", **FAST)["bands"]
    for curve, band in zip(draft["curves"], bands, strict=True):
        assert len(band["low"]) == len(band["high"]) == len(curve["loss"])
        assert all(low < high for low, high in zip(band["low"], band["high"], strict=True))


def test_scales_rise_with_the_budget(client: Client) -> None:
    scales = ask(client, "scales", **FAST)
    assert len(scales["curves"]) == 6
    for curve in scales["curves"]:
        assert curve["n_params"] == sorted(curve["n_params"])
        assert curve["tokens"] == sorted(curve["tokens"])


def test_every_law_of_the_catalogue_is_shown(client: Client) -> None:
    laws = ask(client, "catalogue")["laws"]
    assert "yun2024-recovered" in [law["name"] for law in laws]
    for law in laws:
        shown = ask(client, "evidence", law=law["name"], experts="1,8", match_experts="1", **FAST)
        assert shown.get("lines") or shown.get("missing") or shown.get("error"), law["name"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"max-loss": "1.2"}, "reaches a loss of at most 1.2"),
        ({"max-usd-per-mtok": "0.0001"}, "no model of this budget serves"),
        ({"budget": "1e26", "max-gpus": "1"}, "can be served"),
    ],
)
def test_no_answer_is_told_as_the_command_line_tells_it(client: Client, query: dict[str, str], words: str) -> None:
    error = client.get("/api/plan", params={**query, **FAST}).json()["error"]
    assert error["infeasible"] is True
    assert words in error["message"]
    command = client.get("/api/draft", params={**query, **FAST}).json()["command"]
    told = run(*shlex.split(command)[1:])
    assert (told.code, told.err.splitlines()[0]) == (1, f"moescale: {error['message']}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("budget", "seven"), ("budget", "-1"), ("experts", "0"), ("experts", ","), ("match-experts", "2.5"),
        ("gpu", "a100"), ("gpu", "/etc/passwd"), ("max-gpus", "0"), ("prompt", "0"), ("utilization", "0"),
        ("utilization", "1.1"), ("usd-per-gpu-hour", "0"), ("weights", "fp3"), ("latency", "fast"),
        ("max-num-seqs", "0"), ("memory-fraction", "2"), ("law", "yun2025"), ("experts", "64,128"),
    ],
)  # fmt: skip
def test_what_the_command_line_refuses_the_page_refuses(client: Client, key: str, value: str) -> None:
    query = {"match-experts": "64"} if value == "64,128" else {}
    error = client.get("/api/draft", params={key: value, **query}).json()["error"]
    assert error["where"] == key
    assert error["infeasible"] is False
    options = [part for name, text in {key: value, **query}.items() for part in (f"--{name}", text)]
    told = run("plan", *([] if key == "budget" else ["--budget", "5.15e21"]), *options)
    assert told.code == 2


@pytest.mark.parametrize("query", [{"budjet": "1e21"}, [("budget", "1e21"), ("budget", "1e22")], {"law": "x" * 500}])
def test_odd_queries_are_refused(client: Client, query: Any) -> None:
    assert "message" in client.get("/api/draft", params=query).json()["error"]


def test_the_defaults_are_those_of_the_command_line() -> None:
    from moescale.cli import options
    from moescale.cli.plan import plan

    names = {key.replace("-", "_"): text for key, text in DEFAULTS.items()}
    given = dict(zip(plan.__code__.co_varnames[: plan.__code__.co_argcount], [None] * 99, strict=False))
    assert set(names) <= set(given)
    ours = read_state({}, find_law)
    assert ours.deployment.prompt_tokens == options.DEFAULT_TRAFFIC[0]
    assert ours.deployment.output_tokens == options.DEFAULT_TRAFFIC[1]
    assert names["law"] == options.DEFAULT_LAW
    assert names["gpu"] == options.DEFAULT_GPU
    defaults = dict(zip(reversed(list(given)), reversed(plan.__defaults__ or ()), strict=False))
    for name, text in names.items():
        if name not in ("budget", "prompt", "output"):
            assert str(defaults[name]).rstrip("0").rstrip(".") in (text, f"{text}.") or str(defaults[name]) == text, (
                name
            )


def test_every_number_of_the_state_is_an_option_or_stands_for_one() -> None:
    options = set(re.findall(r"--([a-z-]+)", run("plan", "--help").out))
    assert set(NUMBERS) - {"gpu-hours", "mfu"} <= options


# -- uploads ----------------------------------------------------------------------------------------------------------


def test_an_uploaded_law_answers_and_comes_back(client: Client) -> None:
    text = law_text(find_law("yun2024-joint")).replace('name = "yun2024-joint"', 'name = "mine"')
    kept = client.post("/api/laws", params={"name": "mine.toml"}, content=text.encode(), headers=BYTES).json()
    assert kept["name"] == "mine"
    mine = ask(client, "plan", law=kept["law"], **FAST)
    theirs = ask(client, "plan", law="yun2024-joint", **FAST)
    assert mine["recommendation"]["n_params"] == theirs["recommendation"]["n_params"]
    assert "--law mine.toml" in mine["command"]
    assert client.get("/api/law", params={"law": kept["law"]}).text == text
    assert kept["law"] in [law["name"] for law in ask(client, "catalogue")["laws"]]
    again = client.post("/api/laws", params={"name": "other.toml"}, content=text.encode(), headers=BYTES).json()
    assert again["law"] == kept["law"]


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00", b"format = 1", b"[" * 5000, b'name = "a"\n' * 3])
def test_a_broken_law_is_refused(client: Client, data: bytes) -> None:
    answer = client.post("/api/laws", params={"name": "x.toml"}, content=data, headers=BYTES).json()
    assert "x.toml" in answer["error"]["message"]


def test_a_table_is_fitted_as_the_command_line_does(client: Client, tmp_path: Path) -> None:
    events = fit(client, "runs.csv", RUNS.read_bytes(), where="tokens >= 3e9", bootstrap="20")
    kinds = [kind for kind, _ in events]
    assert kinds[-1] == "done"
    shares = [data["share"] for kind, data in events if kind == "progress"]
    assert len(shares) >= 4
    assert all(0 <= share <= 1 for share in shares)
    assert {"scan", "polish", "bootstrap"} <= {data["step"] for kind, data in events if kind == "progress"}
    done = events[-1][1]
    (tmp_path / "runs.csv").write_bytes(RUNS.read_bytes())
    told = answer_of("fit", tmp_path / "runs.csv", "--where", "tokens >= 3e9", "--bootstrap", "20")
    for key in ("parameters", "rmsle", "intervals", "n_runs", "warnings"):
        assert done["fit"][key] == told[key], key
    shown = ask(client, "evidence", law=done["law"], **FAST)
    assert len(shown["runs"]["loss"]) == told["n_runs"] == shown["n_runs"]
    mean = sum(r * r for r in shown["runs"]["residual"]) / told["n_runs"]
    assert mean**0.5 == pytest.approx(told["rmsle"], rel=1e-9)
    assert ask(client, "plan", law=done["law"], experts="1,4,8", **FAST)["law"] == "runs"


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b"n_params_dense,n_experts,tokens,loss\n1e8,1,2e9,3.1\n1e8,4,2e9,bad\n", ""),
        (b"n_params_dense,n_experts,loss\n1e8,1,3.1\n", ""),
        (b"", ""),
        (b"PK\x03\x04zip", ""),
        (RUNS.read_bytes(), "tokens >="),
        (RUNS.read_bytes(), "__import__('os').system('true') > 0"),
        (RUNS.read_bytes(), "tokens > 1e99"),
    ],
    ids=["cell", "column", "empty", "zip", "half a filter", "code", "none left"],
)
def test_a_broken_table_has_the_command_lines_message(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, where: str
) -> None:
    kind, error = fit(client, "table.csv", data, **({"where": where} if where else {}))[-1]
    assert kind == "error"
    (tmp_path / "table.csv").write_bytes(data)
    monkeypatch.chdir(tmp_path)
    told = run("fit", "table.csv", *(["--where", where] if where else []))
    assert told.code == 2
    assert told.err.splitlines()[-1] in (f"moescale: {error['message']}", f"moescale: --where, {error['message']}")


def test_a_fit_is_cancelled_cleanly(app: FastAPI, client: Client) -> None:
    before = len(ask(client, "catalogue")["laws"])
    answer = client.post(
        "/api/fits", params={"name": "runs.csv", "bootstrap": "1000"}, content=RUNS.read_bytes(), headers=BYTES
    ).json()
    job = app.state.jobs.find(answer["fit"])
    until = time.monotonic() + 60
    while not job.events and time.monotonic() < until:
        time.sleep(0.02)
    assert job.events[0][0] == "progress"
    assert client.delete(f"/api/fits/{answer['fit']}").json() == {"cancelled": answer["fit"]}
    assert job.process.returncode is not None
    assert events_of(client, answer["fit"])[-1][0] == "cancelled"
    assert len(ask(client, "catalogue")["laws"]) == before
    assert "error" in client.delete("/api/fits/none").json()


@pytest.mark.parametrize("query", [{"bootstrap": "1"}, {"bootstrap": "1e9"}, {"bootstrap": "x"}, {"law": "yun"}])
def test_odd_fits_are_refused_before_they_start(client: Client, query: dict[str, str]) -> None:
    answer = client.post("/api/fits", params={"name": "a.csv", **query}, content=b"", headers=BYTES).json()
    if query == {"law": "yun"}:  # an alias of a form
        assert events_of(client, answer["fit"])[-1][0] == "error"
    else:
        assert answer["error"]["where"] == "bootstrap"


def test_an_upload_beyond_the_limit_is_refused_and_read_no_further(client: Client) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(UPLOAD_LIMIT_BYTES // 2**20 + 1):
            yield b"x" * 2**20

    for name in ("laws", "fits"):
        answer = client.post(f"/api/{name}", params={"name": "big.toml"}, content=endless(), headers=BYTES).json()
        assert "larger than 16 MiB" in answer["error"]["message"]


def test_the_oldest_uploads_go_first() -> None:
    laws, text = Laws(), law_text(find_law("yun2024-joint"))
    first = laws.add(text + "\n# 0\n", where="a")
    for i in range(1, MOST_LAWS + 1):
        laws.add(f"{text}\n# {i}\n", where="a")
    assert len(laws.every()) == MOST_LAWS
    assert first.name not in [kept.name for kept in laws.every()]


# -- strangers --------------------------------------------------------------------------------------------------------


def test_no_path_of_a_request_is_opened(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "law.toml"
    path.write_text(law_text(find_law("yun2024-joint")))
    assert (
        run("plan", "--budget", "1e21", "--law", path, "--latency", "roofline").code == 0
    )  # the command line reads it
    for name in ("plan", "evidence", "law"):
        answer = client.get(f"/api/{name}", params={"law": str(path)})
        assert answer.json()["error"]["where"] == "law"
    for key in ("gpu", "latency", "train-gpu"):
        error = client.get("/api/plan", params={key: str(path), "gpu-hours": "1000"}).json()["error"]
        assert "unknown" in error["message"]
    for address in ("/%2e%2e/app.py", "/..%2fapp.py", "/static/app.js", "/manifest.json", "//etc/passwd", "/api/x"):
        assert client.get(httpx.URL(str(client.base_url).rstrip("/") + address)).status_code == 404, address


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:PORT"}, 200),
        ({"host": "[::1]:PORT"}, 200),
        ({"origin": "http://127.0.0.1:PORT"}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "evil.example:PORT"}, 403),
        ({"host": "127.0.0.1.evil.example:PORT"}, 403),
        ({"host": "127.0.0.1:9"}, 403),
        ({"host": "a@127.0.0.1:PORT"}, 403),
        ({"host": ""}, 403),
        ({"host": "127.0.0.1:no"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:PORT"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
    ],
)
def test_pages_of_other_hosts_are_refused(client: Client, port: int, headers: dict[str, str], status: int) -> None:
    headers = {name: value.replace("PORT", str(port)) for name, value in headers.items()}
    for address in ("/", "/app.css", "/api/catalogue"):
        assert client.get(address, headers=headers).status_code == status
    if status == 403:
        assert client.post("/api/fits", headers={**BYTES, **headers}).status_code == status
        assert client.delete("/api/fits/x", headers=headers).status_code == status


def test_a_form_of_another_page_cannot_upload(client: Client) -> None:
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"):
        answer = client.post("/api/laws", params={"name": "a.toml"}, content=b"a", headers={"content-type": kind})
        assert "application/octet-stream" in answer.json()["error"]["message"]


def test_every_answer_has_the_headers(client: Client) -> None:
    for address, headers in (("/", {}), ("/api/draft", {}), ("/nothing", {}), ("/", {"host": "evil.example"})):
        found = client.get(address, headers=headers).headers
        policy = found["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert found["x-content-type-options"] == "nosniff"
        assert found["referrer-policy"] == "no-referrer"


def test_another_address_needs_the_token() -> None:
    page = create_app(Access(1, "s3cret"), warm=False)
    with listen("127.0.0.1", 0) as bound, served(bound, page, headers={"host": "box.example:1"}) as client:
        assert client.get("/").status_code == 401
        assert client.get("/", params={"token": "wrong"}).status_code == 401
        assert client.get("/api/catalogue", headers={"cookie": "moescale-token=s3cre"}).status_code == 401
        assert client.get("/", headers={"origin": "http://evil.example"}, params={"token": "s3cret"}).status_code == 403
        moved = client.get("/", params={"budget": "1e21", "token": "s3cret"}, follow_redirects=False)
        assert (moved.status_code, moved.headers["location"]) == (303, "/?budget=1e21")
        assert "HttpOnly" in moved.headers["set-cookie"]
        assert "SameSite=Strict" in moved.headers["set-cookie"]
        assert client.get("/").status_code == 200  # the cookie is kept
        elsewhere = client.get(
            client.base_url.copy_with(path="//evil.example/"), params={"token": "s3cret"}, follow_redirects=False
        )
        assert elsewhere.headers.get("location", "/").startswith("/")
        assert not elsewhere.headers.get("location", "/").startswith("//")


def test_loopback_is_told_from_other_addresses() -> None:
    assert [is_loopback(h) for h in ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost")] == [True] * 5
    assert [is_loopback(h) for h in ("0.0.0.0", "::", "192.168.1.2", "box", "")] == [False] * 5


# -- the built page ---------------------------------------------------------------------------------------------------


def test_the_page_opens_with_what_the_server_would_answer() -> None:
    """To the digits that another processor keeps; with a law of its own the server answers nothing beforehand."""
    opening = json.loads((ROOT / "src" / "moescale" / "web" / "opening.json").read_text())
    if opening["kernels"] != kernels_version():
        pytest.skip("other kernel tables are installed than the opening was computed with")
    with listen("127.0.0.1", 0) as bound:
        access = Access(port=bound.getsockname()[1])
        with served(bound, create_app(access, warm=False)) as fresh:
            assert fresh.get("/api/opening").json() == opening
            for name in ("catalogue", "draft"):
                assert_close(opening[name], fresh.get(f"/api/{name}").json(), name)
            law = law_text(find_law("hoffmann2022"))
            fresh.post("/api/laws", params={"name": "own.toml"}, content=law, headers=BYTES).raise_for_status()
            assert fresh.get("/api/opening").json() == {}
    with listen("127.0.0.1", 0) as bound:
        access = Access(port=bound.getsockname()[1])
        with served(bound, create_app(access, law_text=law, law_name="own.toml", warm=False)) as own:
            assert own.get("/api/opening").json() == {}


def assert_close(a: Any, b: Any, place: str) -> None:
    """Two JSON values are the same, numbers within 1e-9 (other processors round otherwise)."""
    assert type(a) is type(b) or {type(a), type(b)} <= {int, float}, place
    if isinstance(a, dict):
        assert a.keys() == b.keys(), place
        for key in a:
            assert_close(a[key], b[key], f"{place}.{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), place
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_close(x, y, f"{place}[{i}]")
    elif isinstance(a, int | float) and not isinstance(a, bool):
        assert a == pytest.approx(b, rel=1e-9), place
    else:
        assert a == b, place


def test_the_built_files_are_those_of_the_manifest() -> None:
    folder = ROOT / "src" / "moescale" / "web" / "static"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {path.name for path in folder.iterdir()} == {*manifest, "manifest.json"}
    for name, digest in manifest.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
    assert set(static_files()) == {"index.html", "app.css", "app.js", "vega.js"}


def test_the_sources_are_those_of_the_built_files() -> None:
    folder = ROOT / "src" / "moescale" / "web" / "static"
    for name in ("index.html", "app.css"):
        assert (ROOT / "web" / name).read_bytes() == (folder / name).read_bytes(), f"{name}: run `make page`"


def test_the_page_loads_nothing_from_elsewhere() -> None:
    files = static_files()
    for name in ("index.html", "app.css"):
        assert b"//" not in files[name].replace(b"//# ", b""), name
    assert b"<style" not in files["index.html"]
    assert not re.search(rb"<script(?![^>]*src=)", files["index.html"])
    assert b" style=" not in files["index.html"]


def test_the_lock_file_names_no_registry() -> None:
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text())
    assert not [name for name, entry in lock["packages"].items() if "resolved" in entry]


def test_files_are_sent_once(client: Client) -> None:
    first = client.get("/app.js")
    assert client.get("/app.js", headers={"if-none-match": first.headers["etag"]}).status_code == 304


# -- the command ------------------------------------------------------------------------------------------------------


def test_a_busy_port_and_a_missing_law_are_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = run("web", "--no-open", "--port", taken.getsockname()[1])
    assert told.code == 2
    assert "take another port" in told.err
    assert run("web", "--no-open", "--port", "70000").code == 2
    assert run("web", "--no-open", "--law", tmp_path / "none.toml").code == 2
    assert run("web", "--no-open", "--host", "no.such.host.invalid").code == 2
    for no_address in ("\x80", "a\0b", "a..b"):
        refused = run("web", "--no-open", "--host", no_address)
        assert (refused.code, "--host" in refused.err) == (2, True)
