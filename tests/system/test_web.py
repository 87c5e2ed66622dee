"""The server of the page: its answers are the command line's, its uploads stay in memory, strangers are refused."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra web is not installed")
pytest.importorskip("httpx", reason="the extra test is not installed")

import httpx
from httpx import Client

from command_line import answer_of, run
from moescale.scaling_laws import find_law
from moescale.scaling_laws.store import law_text
from moescale.units import format_flops
from moescale.views.figures.style import colour_of
from moescale.web.api import read_law
from moescale.web.app import static_files
from moescale.web.state import DEFAULTS, OPTIONS, read_state
from moescale.web.store import LAW_LIMIT_BYTES, MOST_LAWS, Uploaded, keep
from reference_data import ROOT
from web_client import FAST, TOKEN, ask

BYTES = {"content-type": "application/octet-stream"}
ONE_LAW = {"law": "yun2024-recovered", **FAST}
LONG = partial(pytest.param, marks=pytest.mark.fuzz)


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        LONG({}),
        LONG(
            {
                "budget": "2e22", "gpu": "h100-sxm", "experts": "1,8,16", "match-experts": "1", "utilization": "0.5",
                **ONE_LAW,
            }
        ),
        LONG({"train-gpus": "64", "days": "65", "train-gpu": "h100-sxm", "mfu": "0.35", "max-tokens": "400B", **ONE_LAW}),
        LONG(
            {
                "budget-usd": "200K", "objective": "loss", "shape": "fine-grained", "max-active-params": "3B",
                "mfu": "0.35", **FAST,
            }
        ),
        LONG(
            {"match": "olmoe-1b-7b", "budget": "5e22", "experts": "4,16", "confidence": "0.95", "shape": "mixtral", **FAST}
        ),
        LONG({"lifetime-tokens": "2T", "experts": "1,8", **ONE_LAW}),
        {
            "max-loss": "2.25", "prompt": "1155", "output": "211", "usd-per-gpu-hour": "2.5", "max-gpus": "4",
            **ONE_LAW,
        },
        LONG({"max-usd-per-mtok": "0.05", "weights": "fp8", "kv-cache": "fp8", "max-num-seqs": "256", **ONE_LAW}),
    ],
)  # fmt: skip
def test_the_command_gives_the_same_plan(client: Client, query: dict[str, str]) -> None:
    page = client.get("/api/plan", params=query).json()
    command = shlex.split(page["command"])
    assert command[:2] == ["moescale", "plan"]
    told = answer_of(*command[1:])
    of_default = {key for key in told if key.startswith("default_law")}  # which the page does not ask
    assert set(told) - set(page) - of_default == {"made_with"}
    for key in set(told) & set(page):
        assert page[key] == told[key], key


@pytest.mark.parametrize(
    "query", [{"shape": "mixtral"}, LONG({}), LONG({"lifetime-tokens": "1T", "law": "yun2024-recovered"})]
)
def test_the_decision_is_the_command_lines_first_screen(client: Client, query: dict[str, str]) -> None:
    page = client.get("/api/plan", params={**query, **FAST}).json()
    told = run(*shlex.split(page["command"])[1:], "--details").out
    words, decision, lived = " ".join(told.split()), page["decision"], "lifetime-tokens" in query
    # The page does not ask what the default law would choose, which the first line then has in place of a word.
    first, label = (text.replace(" parameters", "") for text in (told, decision["label"]))
    assert re.sub(r" \(\d+ by other labs' runs\)", "", first, count=1).startswith(label)
    for name, text in decision["facts"]:
        assert f" {name} {text}" in words, name
    for table in decision["tables"]:
        assert " ".join(table["title"].split()) in words
        for row in table["rows"]:
            assert " ".join(" ".join(row).split()) in words
    titles = [table["title"] for table in decision["tables"]]
    assert titles[0].startswith(
        "For 1T served tokens, 5.15e21 FLOPs, a100-sxm-40gb" if lived else "For 5.15e21 FLOPs, a100-sxm-40gb"
    )
    assert any(title.startswith("Training and serving 1T tokens") for title in titles) == lived
    assert all(" ".join(note.split()) in words for note in decision["caveats"])
    model = (page["lifetime"] if lived else page)["recommendation"]
    shown = {figure["name"]: figure["value"] for figure in decision["figures"]}
    assert decision["model"]["n_params"] == model["n_params"]
    assert shown["active parameters"] == model["n_params_active"]
    assert shown["serve"] == model["usd_per_mtok"]
    assert shown.get("expected regret") == model.get("regret", {}).get("expected")
    assert dict(decision["facts"])["training"].startswith(f"{format_flops(model['training_flops'])} FLOPs")
    assert shown["train"] == (model["training_usd"] if lived else page["training"]["usd"])
    assert ("life" in shown) == lived
    assert decision["serving"]["usd_per_mtok"] == model["usd_per_mtok"]  # of the model as built, as its price
    assert decision["serving"]["tpot_s"] == model["tpot_s"]
    assert decision["accuracy"].split(" with latency")[0] in words


def test_a_draft_has_the_plans_numbers(client: Client) -> None:
    query = {"experts": "1,4,32,64", "shape": "mixtral", **FAST}
    draft, plan = ask(client, "draft", **query), ask(client, "plan", **query)
    assert draft["command"] == plan["command"]
    for curve, best in zip(draft["curves"], plan["loss_optimal"], strict=True):
        at = {name: curve[name][draft["optimum"]] for name in ("n_params", "tokens", "loss", "usd_per_mtok", "gpus")}
        # Batches within a latency limit are solved to 1e-8, by themselves and among others.
        assert at == pytest.approx({name: best[name] for name in at}, rel=1e-7)
        assert curve["colour"] == colour_of(curve["experts"])
    assert [curve["beyond_law"] for curve in draft["curves"]] == [False] * 4


def test_every_law_of_the_catalogue_is_shown(client: Client) -> None:
    laws = ask(client, "catalogue")["laws"]
    assert "yun2024-recovered" in [law["name"] for law in laws]
    for law in laws:
        shown = ask(client, "draft", law=law["name"], experts="1,8", match_experts="1", **FAST)
        assert shown.get("curves") or shown.get("error"), law["name"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"max-loss": "1.2"}, "reaches a loss of at most 1.2"),
        ({"max-usd-per-mtok": "1e-9"}, "no model of this budget serves"),
        ({"budget": "1e26", "max-gpus": "1"}, "can be served"),
        ({"experts": "1"}, "with at most 1 expert reaches the loss of the loss-optimal 4-expert model"),
        ({"experts": "1024,2048"}, "may not recommend 1024 experts"),
    ],
)
def test_no_answer_is_told_as_the_command_line_tells_it(client: Client, query: dict[str, str], words: str) -> None:
    error = client.get("/api/plan", params={**query, **ONE_LAW}).json()["error"]
    assert error["infeasible"] is True
    assert words in error["message"]
    command = client.get("/api/draft", params={**query, **ONE_LAW}).json()["command"]
    told = run(*shlex.split(command)[1:])
    assert (told.code, told.err.splitlines()[0]) == (1, f"moescale: {error['message']}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("budget", "seven"), ("budget", "-1"), ("experts", "0"), ("experts", ","), ("match-experts", "2.5"),
        ("gpu", "a100"), ("gpu", "/etc/passwd"), ("max-gpus", "0"), ("prompt", "0"), ("utilization", "0"),
        ("utilization", "1.1"), ("usd-per-gpu-hour", "0"), ("weights", "fp3"), ("latency", "fast"),
        ("max-num-seqs", "0"), ("memory-fraction", "2"), ("law", "yun2025"),
    ],
)  # fmt: skip
def test_what_the_command_line_refuses_the_page_refuses(client: Client, key: str, value: str) -> None:
    error = client.get("/api/draft", params={key: value}).json()["error"]
    assert error["where"] == key
    assert error["infeasible"] is False
    told = run("plan", *([] if key == "budget" else ["--budget", "5.15e21"]), f"--{key}", value)
    assert told.code == 2


@pytest.mark.parametrize("query", [{"budjet": "1e21"}, [("budget", "1e21"), ("budget", "1e22")], {"law": "x" * 500}])
def test_odd_queries_are_refused(client: Client, query: Any) -> None:
    assert "message" in client.get("/api/draft", params=query).json()["error"]


def test_the_keys_are_options_of_plan_none_opens_a_file_and_the_shown_defaults_hold() -> None:
    options = set(re.findall(r"--([a-z-]+)", run("plan", "--help").out))
    assert set(OPTIONS) <= options
    assert not {"trace", "plot", "o"} & set(OPTIONS)
    assert set(DEFAULTS) <= set(OPTIONS)
    given, left_out = read_state(DEFAULTS, find_law), read_state({}, find_law)
    assert (given.question, given.request.deployment) == (left_out.question, left_out.request.deployment)


@pytest.mark.parametrize(
    ("query", "command"),
    [
        ({}, "--budget 5.15e21"),
        ({"gpu": "a100-sxm-40gb", "experts": "1,4,8,16"}, "--budget 5.15e21 --experts 1,4,8,16"),
        ({"budget": "2e22", "law": " yun2024-joint "}, "--budget 2e22 --law yun2024-joint"),
        ({"mfu": "0.3", "days": "30", "train-gpus": "64"}, "--train-gpus 64 --mfu 0.3 --days 30"),
        ({"max-tpot": "50ms", "host": "in-line"}, "--budget 5.15e21 --host in-line --max-tpot 50ms"),
        ({"disaggregated": "true"}, "--budget 5.15e21 --disaggregated"),
        ({"disaggregated": "no"}, "--budget 5.15e21"),
    ],
)
def test_the_command_has_what_is_no_default(query: dict[str, str], command: str) -> None:
    assert read_state(query, find_law).command == f"moescale plan {command}"


# -- uploads ----------------------------------------------------------------------------------------------------------


def test_an_uploaded_law_answers_and_one_of_a_form_or_beyond_the_limit_is_refused(client: Client) -> None:
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
    endless = (b"x" * 2**20 for _ in range(LAW_LIMIT_BYTES // 2**20 + 1))
    answer = client.post("/api/laws", params={"name": "big.toml"}, content=endless, headers=BYTES).json()
    assert f"larger than {LAW_LIMIT_BYTES // 2**20} MiB" in answer["error"]["message"]
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"):
        answer = client.post("/api/laws", params={"name": "a.toml"}, content=b"a", headers={"content-type": kind})
        assert "application/octet-stream" in answer.json()["error"]["message"]


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00", b"format = 1", b"[" * 5000, b'name = "a"\n' * 3])
def test_a_broken_law_is_refused(client: Client, data: bytes) -> None:
    answer = client.post("/api/laws", params={"name": "x.toml"}, content=data, headers=BYTES).json()
    assert "x.toml" in answer["error"]["message"]


def test_the_oldest_uploads_go_first() -> None:
    laws, text = dict[str, Uploaded](), law_text(find_law("yun2024-joint"))
    given = [read_law(f"{text}\n# {i}\n", "a") for i in range(MOST_LAWS + 1)]
    for law in given:
        keep(laws, law)
    assert [*laws] == [law.name for law in given[1:]]
    assert len(laws) == MOST_LAWS


# -- strangers --------------------------------------------------------------------------------------------------------


def test_no_path_of_a_request_is_opened(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "law.toml"
    path.write_text(law_text(find_law("yun2024-joint")))
    assert run("predict", "--law", path, "--n-params", "1B", "--tokens", "20B").code == 0  # the command line reads it
    for name in ("plan", "law"):
        answer = client.get(f"/api/{name}", params={"law": str(path)})
        assert answer.json()["error"]["where"] == "law"
    for key in ("gpu", "latency", "train-gpu"):
        error = client.get("/api/plan", params={key: str(path)}).json()["error"]
        assert "unknown" in error["message"]
    for address in ("/%2e%2e/app.py", "/..%2fapp.py", "/static/app.js", "/manifest.json", "//etc/passwd", "/api/x"):
        assert client.get(httpx.URL(str(client.base_url).rstrip("/") + address)).status_code == 404, address


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:PORT"}, 200),
        ({"origin": "http://127.0.0.1:PORT"}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"host": "evil.example"}, 400),
        ({"host": "evil.example:PORT"}, 400),
        ({"host": "127.0.0.1.evil.example:PORT"}, 400),
        ({"host": "a@127.0.0.1:PORT"}, 400),
        ({"host": ""}, 400),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:PORT"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, 403),
    ],
)
def test_pages_of_other_hosts_are_refused(client: Client, port: int, headers: dict[str, str], status: int) -> None:
    headers = {name: value.replace("PORT", str(port)) for name, value in headers.items()}
    for address in ("/", "/app.css", "/api/catalogue"):
        assert client.get(address, headers=headers).status_code == status
    if status >= 400:
        assert client.get("/api/draft", headers=headers).status_code == status
        assert client.post("/api/fits", headers={**BYTES, **headers}).status_code == status


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer no"}, {"cookie": "moescale-PORT=no"}, {"cookie": "=;\x01"}]
)
def test_answers_need_the_token(client: Client, port: int, headers: dict[str, str]) -> None:
    """On a machine of several users each of them reaches loopback."""
    headers = {name: value.replace("PORT", str(port)) for name, value in headers.items()}
    with Client(base_url=client.base_url, timeout=30, trust_env=False, headers=headers) as stranger:
        for method, address in (
            ("GET", "draft"), ("GET", "catalogue"), ("GET", "law"), ("GET", "place/plan"), ("POST", "laws"),
            ("POST", "fits"), ("GET", "nothing"),
        ):  # fmt: skip
            answer = stranger.request(method, f"/api/{address}")
            assert answer.status_code == 403
            assert "open the address that `moescale web` printed" in answer.text
        assert stranger.get("/").status_code == stranger.get("/app.js").status_code == 200  # which say nothing


def test_the_address_with_the_token_opens_the_page(client: Client, port: int) -> None:
    with Client(base_url=client.base_url, timeout=30, trust_env=False) as browser:
        wrong = browser.get("/", params={"token": "no"})
        assert (wrong.status_code, wrong.headers["location"], "set-cookie" in wrong.headers) == (303, "/", False)
        entered = browser.get("/", params={"budget": "1e22", "token": TOKEN, "max-loss": ""})
        assert (entered.status_code, entered.headers["location"]) == (303, "/?budget=1e22&max-loss=")
        cookie = entered.headers["set-cookie"]
        assert cookie == f"moescale-{port}={TOKEN}; HttpOnly; Path=/; SameSite=strict"
        assert TOKEN not in entered.headers["location"]
        assert browser.get("/api/draft", headers={"cookie": cookie.partition(";")[0]}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_opens_the_page_and_nothing_else(client: Client, site: str) -> None:
    """What a link does is a navigation of the whole window."""
    opens = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.get("/", params={"budget": "1e21"}, headers=opens).status_code == 200
    for address in ("/vega.js", "/api/draft", "/api/bands", "/api/catalogue", "/api/law"):
        assert client.get(address, headers=opens).status_code == 403, address


def test_every_answer_has_the_headers(client: Client) -> None:
    for address, headers in (("/", {}), ("/api/draft", {}), ("/nothing", {}), ("/", {"host": "evil.example"})):
        found = client.get(address, headers=headers).headers
        policy = found["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert found["x-content-type-options"] == "nosniff"
        assert found["referrer-policy"] == "no-referrer"


# -- the built page ---------------------------------------------------------------------------------------------------


def test_the_built_files_are_those_of_the_manifest_and_of_the_sources_and_load_nothing_from_elsewhere() -> None:
    folder = ROOT / "src" / "moescale" / "web" / "static"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {path.name for path in folder.iterdir()} == {*(f"{name}.xz" for name in manifest), "manifest.json"}
    files = static_files()
    assert {name: hashlib.sha256(data).hexdigest() for name, data in files.items()} == manifest
    assert set(files) == {"index.html", "app.css", "app.js", "vega.js", "licenses.txt"}
    for name in ("index.html", "app.css"):
        assert (ROOT / "web" / name).read_bytes() == files[name], f"{name}: run `make page`"
        assert b"//" not in files[name].replace(b"//# ", b""), name
    assert b"<style" not in files["index.html"]
    assert not re.search(rb"<script(?![^>]*src=)", files["index.html"])
    assert b" style=" not in files["index.html"]


def test_the_licences_of_what_the_scripts_contain_are_shipped(client: Client) -> None:
    """Every package that the page is built from, and all of Vega's and D3's that the lock file lists for it, with a licence's text."""
    page = client.get("/").text
    assert 'href="/licenses.txt"' in page
    answer = client.get("/licenses.txt")
    assert answer.headers["content-type"].startswith("text/plain")
    blocks = re.split(r"\n-{80}\n", answer.text)[1:-1]
    stated = {(name, version) for name, version in re.findall(r"^(\S+) (\d\S*) \(.+\)$", answer.text, re.MULTILINE)}
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text())["packages"]
    assert not [name for name, entry in lock.items() if "resolved" in entry]  # no registry
    locked = {(path.rpartition("node_modules/")[2], entry.get("version")) for path, entry in lock.items()}
    drawn = {(name, version) for name, version in locked if re.match(r"(vega|d3)\b", name)}
    assert {"vega", "vega-lite", "vega-embed", "d3-scale", "d3-delaunay"} <= {name for name, _ in drawn}
    assert drawn <= stated
    # Built into vega-embed and d3-delaunay, whose modules do not say so.
    assert {"semver", "fast-json-patch", "delaunator", "robust-predicates"} <= {name for name, _ in stated}
    for block in blocks:
        assert re.search(r"as is|unlicense|retain the above", block, re.IGNORECASE), block[:200]
    assert "Esprima" in answer.text.rpartition("-" * 80)[2]


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
