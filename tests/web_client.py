"""A client of the page's server, which is really served, for the tests of its answers and of its load."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra web is not installed")
pytest.importorskip("httpx", reason="the extra test is not installed")

from fastapi import FastAPI
from httpx import Client

from moescale.web.app import create_app, listen, make_server

FAST = {"latency": "roofline"}
TOKEN = "the-token-of-this-server"
KNOWN = {"authorization": f"Bearer {TOKEN}"}


@contextmanager
def served(bound: socket.socket, app: FastAPI) -> Iterator[Client]:
    """A client of the application, which is really served."""
    running = make_server(app)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]})
    thread.start()
    address = f"http://127.0.0.1:{bound.getsockname()[1]}"
    try:
        with Client(base_url=address, timeout=120, trust_env=False, headers=KNOWN) as client:
            yield client
    finally:
        running.should_exit = True
        thread.join()


@contextmanager
def serving() -> Iterator[Client]:
    """A client of the application as `moescale web` makes it."""
    with listen(0) as bound, served(bound, create_app(bound.getsockname()[1], TOKEN)) as client:
        yield client


def ask(client: Client, name: str, **query: str) -> Any:
    answer = client.get(f"/api/{name}", params={key.replace("_", "-"): value for key, value in query.items()})
    assert answer.status_code == 200
    return answer.json()
