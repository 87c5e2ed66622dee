"""The server of the page: static files by a fixed manifest, answers by processes that compute them, uploads into memory.

It computes nothing itself and loads no NumPy, so that it starts at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import lzma
import socket
import threading
import webbrowser
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import resources
from typing import Any, cast

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from moescale.errors import InputError, MoescaleError
from moescale.io.files import decode_utf8
from moescale.web.pool import BrokenError, Pool
from moescale.web.security import HOSTS, Guard
from moescale.web.store import LAW_LIMIT_BYTES, Uploaded, keep

ADDRESS = HOSTS[0]
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "txt": "text/plain"}
UPLOAD_TYPE = "application/octet-stream"  # never a form's, so that another site's page must ask before it may send one
VIEW_KEYS = ("theme", "bands", "pins")  # of the address: how the page shows an answer; no part of the question
NO_STORE = {"cache-control": "no-store"}
TOML = "application/toml; charset=utf-8"
CLIENT_LEFT = 499  # the status of an answer that nobody reads, by nginx's convention


def static_files() -> dict[str, bytes]:
    """The built files of the page by name."""
    built = [path for path in (resources.files("moescale.web") / "static").iterdir() if path.name.endswith(".xz")]
    return {path.name.removesuffix(".xz"): lzma.decompress(path.read_bytes()) for path in built}


def create_app(port: int, token: str, *, law_text: str | None = None, law_name: str = "") -> FastAPI:
    """The application of a server on `port`, which answers to who has the `token`.

    `law_text` is a law file's text, which is then the page's default law.
    """
    laws, defaults = dict[str, Uploaded](), dict[str, str]()
    if law_text is not None:
        from moescale.web.api import read_law

        given = read_law(law_text, law_name)
        keep(laws, given)
        defaults["law"] = given.name

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        app.state.pool = Pool()
        app.state.pool.start()
        yield
        await app.state.pool.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False)
    app.add_middleware(Guard, port=port, token=token)
    app.add_exception_handler(MoescaleError, _refused)
    app.add_exception_handler(ClientDisconnect, _left)
    for name, data in static_files().items():
        app.add_api_route("/" if name == "index.html" else f"/{name}", _file(name, data), methods=["GET"])
    _add_answers(app, laws, defaults)
    return app


def _file(name: str, data: bytes) -> Callable[[], Response]:
    return lambda: Response(data, media_type=TYPES[name.rpartition(".")[2]], headers=NO_STORE)


async def _refused(_: Request, error: Exception) -> Response:
    # A refusal is an answer (status 200): a page that asks impossible questions is no broken page.
    assert isinstance(error, MoescaleError)
    return JSONResponse({"error": error.to_dict()}, 500 if isinstance(error, BrokenError) else 200, NO_STORE)


async def _left(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT)


def _json(answer: bytes) -> Response:
    return Response(answer, media_type="application/json", headers=NO_STORE)


def _query(request: Request) -> dict[str, str]:
    pairs = request.query_params.multi_items()
    if len(dict(pairs)) < len(pairs):
        raise InputError("a setting is given twice", where="address", next_step="leave one of them out")
    return {key: value for key, value in pairs if value.strip() and key not in VIEW_KEYS}


async def _ask(request: Request, name: str, query: dict[str, str], laws: list[Uploaded]) -> bytes:
    """The answer of a process to a question; ClientDisconnect where its client leaves before."""

    async def leaves() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    left = asyncio.ensure_future(leaves())
    try:
        answer = await cast(Pool, request.app.state.pool).ask({"name": name, "query": query, "laws": laws}, left)
        if left.done():
            raise ClientDisconnect
        return answer
    finally:
        left.cancel()


def _add_answers(app: FastAPI, laws: dict[str, Uploaded], defaults: dict[str, str]) -> None:
    async def answer(request: Request) -> Response:
        name, query = request.url.path.removeprefix("/api/"), defaults | _query(request)
        uploaded = laws.get(query.get("law", ""))
        found = await _ask(request, name, query, [uploaded] if uploaded else [])
        text = json.loads(found).get("text") if name == "law" else None
        return _json(found) if text is None else Response(text, media_type=TOML, headers=NO_STORE)

    for name in ("draft", "sketch", "plan", "bands", "scales", "faults", "law"):
        app.add_api_route(f"/api/{name}", answer, methods=["GET"])

    @app.get("/api/catalogue")
    async def catalogue(request: Request) -> Response:
        return _json(await _ask(request, "catalogue", defaults, [replace(law, text="") for law in laws.values()]))

    @app.post("/api/laws")
    async def upload_law(request: Request) -> Response:
        # For messages only; nothing is opened or written under this name.
        name = request.query_params.get("name", "").strip()[-120:] or "upload"
        text = decode_utf8(await _body(request, name), where=name)
        asked = json.loads(await _ask(request, "read", {"text": text, "where": name}, []))
        if "error" not in asked:
            law = Uploaded(**asked)
            keep(laws, law)
            asked = {"law": law.name, "name": law.law_name}
        return JSONResponse(asked, headers=NO_STORE)


async def _body(request: Request, name: str) -> bytes:
    if request.headers.get("content-type", "") != UPLOAD_TYPE:
        what, then = f"an upload is sent as {UPLOAD_TYPE}", "state that type, and no other, in Content-Type"
        raise InputError(what, where=name, next_step=then)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LAW_LIMIT_BYTES:
            what = f"is larger than {LAW_LIMIT_BYTES // 2**20} MiB, the most that the page takes"
            raise InputError(what, where=name, next_step="use the command line, which has no such limit")
    return bytes(body)


def listen(port: int) -> socket.socket:
    """A socket that listens on loopback; InputError where the port cannot be had."""
    try:
        return socket.create_server((ADDRESS, port), backlog=128)
    except OSError as error:
        what = f"cannot listen on {ADDRESS} port {port}: {error.strerror or error}"
        raise InputError(what, where="--port", next_step="take another port, or --port 0 for any free one") from error


class Server(uvicorn.Server):
    """Ends the work of its requests before it waits for them."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await cast(FastAPI, self.config.app).state.pool.close()
        await super().shutdown(sockets)


def make_server(app: FastAPI) -> Server:
    """A server of the page; `run(sockets=[..])` serves."""
    # Of processes that end with the server asyncio may warn that they are unknown.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    quiet: dict[str, Any] = {"log_level": "error", "access_log": False, "server_header": False}  # a refusal is no line
    return Server(uvicorn.Config(app, http="h11", ws="none", timeout_graceful_shutdown=1, **quiet))


def serve(app: FastAPI, bound: socket.socket, *, open_url: str | None = None) -> None:
    """Serve until interrupted; opens `open_url` in a browser once the server answers."""
    if open_url is not None:
        threading.Timer(0.2, webbrowser.open, (open_url,)).start()
    make_server(app).run(sockets=[bound])
