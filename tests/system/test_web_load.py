"""The server of the page under load: work is bounded and ends with its client, equal questions are computed once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("fastapi", reason="the extra web is not installed")
pytest.importorskip("httpx", reason="the extra test is not installed")

import numpy as np
from httpx import Client
from hypothesis import given
from hypothesis import strategies as st

import slow_answers
from examples import daily
from moescale.errors import InputError
from moescale.scaling_laws import find_law
from moescale.web import app as server
from moescale.web import pool
from moescale.web.app import create_app, listen
from moescale.web.state import read_state
from processes import PATIENCE_S, children, lives, until, web_server
from web_client import FAST, KNOWN, TOKEN, ask, served

HEAVY = {"max-gpus": "1024", "experts": ",".join(map(str, range(1, 31)))}  # took two minutes and 5 GB


def raw(
    port: int, address: str, *, method: str = "GET", headers: Sequence[str] = (), body: bytes = b"", token: str = TOKEN
) -> socket.socket:
    """A connection with a request that was sent, and whose answer nobody has read."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    lines = [f"{method} {address} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {token}", *headers]
    connection.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode() + body)
    return connection


@contextmanager
def stuck(folder: Path) -> Iterator[Client]:
    """A server whose processes never answer a question of bands; in `folder` is a file for each that was asked."""
    with listen(0) as bound, pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "Pool", lambda: pool.Pool(partial(slow_answers.stuck, folder)))
        with served(bound, create_app(bound.getsockname()[1], TOKEN)) as client:
            yield client


def asked(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir()]


@pytest.mark.parametrize("name", ["draft", "plan", "bands", "scales"])
def test_a_question_of_too_much_work_is_refused(client: Client, name: str) -> None:
    error = ask(client, name, **HEAVY)["error"]
    assert (error["where"], error["nearest"]) == ("max-gpus", "15 GPUs")
    assert "30 expert counts on up to 1024 GPUs" in error["what"]
    assert "moescale plan" in error["next_step"]


@daily(30)
@given(counts=st.integers(1, 60), gpus=st.integers(1, 1024), draws=st.integers(0, 40_000))
def test_what_is_too_much_names_what_is_not(counts: int, gpus: int, draws: int) -> None:
    """Every question is within the bound or is refused, and what the refusal names instead is within it."""
    known = find_law("hoffmann2022")
    law = replace(known, draws=np.tile(list(known.parameters.values()), (draws, 1)))
    experts = ",".join(map(str, range(1, counts + 1)))
    query = {"experts": experts, "match-experts": "1", **FAST}
    try:
        read_state({**query, "max-gpus": str(gpus)}, lambda _: law)
    except InputError as error:
        assert counts * (gpus + draws / 50) > 700
        if error.nearest is not None:
            read_state({**query, "max-gpus": error.nearest.removesuffix(" GPUs")}, lambda _: law)
    else:
        assert counts * (gpus + draws / 50) <= 700


def test_work_ends_when_its_client_leaves(tmp_path: Path) -> None:
    with stuck(tmp_path) as client:
        with raw(client.base_url.port or 0, "/api/bands"):
            (pid,) = until(lambda: asked(tmp_path), "a process is asked")
            assert lives(pid)
        until(lambda: not lives(pid), "the process has ended")
        assert client.get("/api/draft").json() == {}
        assert [lives(pid) for pid in asked(tmp_path)].count(True) == 1  # that waits for the next question
    assert not [pid for pid in asked(tmp_path) if lives(pid)]


def test_an_answer_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stuck(tmp_path) as client:
        assert client.get("/api/draft").json() == {}  # a process has started, which may take longer than the limit
        (pid,) = asked(tmp_path)
        (tmp_path / str(pid)).unlink()
        monkeypatch.setattr(pool, "LIMIT_S", 1.0)
        error = client.get("/api/bands", timeout=PATIENCE_S).json()["error"]
        assert "took longer than 1 s" in error["what"]
        assert "command line" in error["next_step"]
        (pid,) = asked(tmp_path)  # of the process that was asked now
        assert not lives(pid)


def test_a_process_that_breaks_is_told_and_replaced(tmp_path: Path) -> None:
    with stuck(tmp_path) as client:
        with raw(client.base_url.port or 0, "/api/bands") as waiting:
            (pid,) = until(lambda: asked(tmp_path), "a process is asked")  # either of the two that were started
            os.kill(pid, signal.SIGKILL)
            assert b" 500 " in waiting.recv(100)
        assert client.get("/api/draft").json() == {}


def test_few_questions_are_computed_at_a_time_and_the_others_wait(tmp_path: Path) -> None:
    with stuck(tmp_path) as client, ExitStack() as open_connections:
        for budget in range(5):
            open_connections.enter_context(raw(client.base_url.port or 0, f"/api/bands?budget={budget + 1}e20"))
        until(lambda: sum(map(lives, asked(tmp_path))) == pool.MOST_COMPUTING, "both processes are asked")
        assert client.get("/app.js").status_code == 200
    assert not [pid for pid in asked(tmp_path) if lives(pid)]  # the server has ended, and they with it


def test_equal_questions_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MOST_COMPUTING", 1)

    async def ask() -> list[bytes]:
        found = pool.Pool(partial(slow_answers.counted, 0.3))
        found.start()
        stays, left = asyncio.Future[None](), asyncio.Future[None]()
        task: dict[str, Any] = {"name": "plan", "query": {"budget": "1e21"}, "laws": []}
        leaves = asyncio.create_task(found.ask(task, left))
        others = [asyncio.create_task(found.ask({**task}, stays)) for _ in range(20)]
        await asyncio.sleep(0.1)
        left.set_result(None)
        assert await leaves == b""  # who leaves ends nothing for the others
        answers = [await other for other in others] + [await found.ask(task, stays)]
        answers.append(await found.ask({**task, "query": {"budget": "2e21"}}, stays))
        await found.close()
        return answers

    answers = asyncio.run(ask())
    assert {json.loads(answer)["asked"] for answer in answers[:-1]} == {1}
    assert json.loads(answers[-1])["asked"] == 2


def test_few_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MOST_COMPUTING", 1)
    monkeypatch.setattr(pool, "MOST_KEPT", 2)

    async def ask() -> list[int]:
        found = pool.Pool(partial(slow_answers.counted, 0.0))
        found.start()
        stays = asyncio.Future[None]()
        tasks = [{"name": "plan", "query": {"budget": budget}, "laws": []} for budget in "1213212"]
        answers = [json.loads(await found.ask(task, stays))["asked"] for task in tasks]
        await found.close()
        return answers

    # "3" takes the place of "2", which was not asked for the longest time, and "2" that of "1".
    assert asyncio.run(ask()) == [1, 2, 1, 3, 4, 5, 4]


def load(port: int, token: str) -> list[socket.socket]:
    """Heavy questions, an upload that stands still and a request without an end."""
    most = {"max-gpus": "64", "experts": "1,2,3,4,5,6,7,8,9,10"}
    heavy = [HEAVY, *({**most, "max-usd-per-mtok": f"0.05{i}"} for i in range(6))]

    def upload(address: str, length: int, body: bytes) -> socket.socket:
        headers = ["Content-Type: application/octet-stream", f"Content-Length: {length}"]
        return raw(port, address, method="POST", headers=headers, body=body, token=token)

    return [
        *(raw(port, "/api/bands?" + urlencode(query), token=token) for query in heavy),
        upload("/api/laws?name=a.toml", 1000, b"a"),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.fuzz), signal.SIGKILL])
def test_a_signal_ends_the_server_and_all_its_work(number: signal.Signals) -> None:
    with web_server() as (running, port, token):
        connections = load(port, token)
        working = until(lambda: found if len(found := children(running.pid)) == 2 else [], "two answers are under way")
        running.send_signal(number)
        assert running.wait(PATIENCE_S) in (128 + number, -number)
        until(lambda: not [pid for pid in working if lives(pid)], "the server's processes have ended")
        for connection in connections:
            connection.close()
        assert "Traceback" not in running.stderr.read()


def test_neither_a_client_that_leaves_nor_a_refusal_is_a_line_in_the_terminal() -> None:
    with web_server() as (running, port, token):
        for connection in load(port, token):
            connection.close()
        for sent in (b"no request at all\r\n\r\n", b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
                connection.sendall(sent)
                assert connection.recv(100).startswith(b"HTTP/1.1 4")
        for given in (token, "no"):
            with raw(port, "/api/law?law=none", token=given) as connection:
                assert connection.recv(100).startswith(b"HTTP/1.1 200" if given == token else b"HTTP/1.1 403")
        running.terminate()
        assert running.stderr.read() == "moescale: ended by SIGTERM\n"
        assert running.wait(PATIENCE_S) in (143, -15)


def test_slow_connections_keep_nobody_out(client: Client, port: int) -> None:
    with ExitStack() as open_connections:
        for _ in range(500):
            slow = open_connections.enter_context(socket.create_connection(("127.0.0.1", port)))
            slow.sendall(b"G")
        for address in ("/", "/app.js", "/api/draft"):
            with Client(base_url=client.base_url, timeout=5, trust_env=False, headers=KNOWN) as another:
                assert another.get(address).status_code == 200
