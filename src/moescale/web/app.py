"""The server of the page: static files by a fixed manifest, answers by processes that compute them, uploads into memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import lzma
import socket
import threading
import webbrowser
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from importlib import resources
from typing import Any, cast

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from moescale.errors import InputError, MoescaleError
from moescale.io.files import decode_utf8
from moescale.options.fields import Quantity
from moescale.web.jobs import Jobs
from moescale.web.pool import BrokenError, BusyError, Pool
from moescale.web.query import canonical
from moescale.web.security import LAW_LIMIT_BYTES, TABLE_LIMIT_BYTES, Guard
from moescale.web.store import PREFIX, Laws, Uploaded
from moescale.web.worker import error_record

ADDRESS = "127.0.0.1"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
UPLOAD_TYPE = "application/octet-stream"  # never a form's, so that another site's page must ask before it may send one
MOST_BOOTSTRAP = 1000  # replicates that the page offers; the command line takes more
FIT_KEYS = ("law", "where", "size-column", "tokens-column", "experts-column", "loss-column")
FIT_IT = "fit it with `moescale fit -o law.toml` and upload the law"
NO_STORE = {"cache-control": "no-store"}
JSON = "application/json"
CLIENT_LEFT = 499  # the status of an answer that nobody reads, by nginx's convention

# A connection is closed when its next request is not there, headers and all, after REQUEST_S, when an upload is not there after
# UPLOAD_S, and when what was sent is not read for READING_S. All are far beyond what a browser on this machine takes.
REQUEST_S = 10.0
UPLOAD_S = 60.0
READING_S = 60.0
MOST_HEADER_BYTES = 32 * 2**10  # an address and its headers; a browser sends about 1 KiB
# Connections at a time; beyond, the one that has waited longest for a request is closed. A browser opens six a page.
MOST_CONNECTIONS = 2000
SPARE_FILES = 100  # open files besides connections: processes and libraries


def static_files() -> dict[str, bytes]:
    """The built files of the page by name: those of the manifest, decompressed, each with the hash that the build wrote down."""
    folder = resources.files("moescale.web") / "static"
    manifest: dict[str, str] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    files = {name: lzma.decompress((folder / f"{name}.xz").read_bytes()) for name in manifest}
    for name, data in files.items():
        if hashlib.sha256(data).hexdigest() != manifest[name]:
            raise InputError(f"{name} of the page is not as it was built", next_step="run `make page`")
    return files


def create_app(port: int, token: str, *, law_text: str | None = None, law_name: str = "") -> FastAPI:
    """The application of a server on `port`, which answers to who has the `token`.

    `law_text` is a law file's text, which is then the page's default law.
    """
    laws, defaults = Laws(), dict[str, str]()
    if law_text is not None:
        from moescale.web.api import read_law

        given = read_law(law_text, law_name)
        laws.keep(given)
        defaults["law"] = given.name
    files = static_files()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        app.state.pool, app.state.jobs = Pool(), Jobs(laws)
        await app.state.pool.start()
        yield
        await end_work(app)

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_middleware(Guard, port=port, token=token)  # pyright: ignore[reportArgumentType]  # its scopes are plain mappings

    app.add_exception_handler(MoescaleError, _refused)
    app.add_exception_handler(ClientDisconnect, _left)
    _add_files(app, files)
    _add_answers(app, laws, defaults)
    _add_uploads(app, laws)
    return app


async def end_work(app: FastAPI) -> None:
    """End every process that works for a request."""
    await cast(Pool, app.state.pool).close()
    await cast(Jobs, app.state.jobs).close()


def _json(value: dict[str, Any], status: int = 200, headers: Mapping[str, str] = NO_STORE) -> JSONResponse:
    return JSONResponse(value, status, headers)


async def _refused(_: Request, error: Exception) -> Response:
    # A refusal is an answer (status 200): a page that asks impossible questions is no broken page.
    assert isinstance(error, MoescaleError)
    if isinstance(error, BusyError):
        return _json({"error": error_record(error)}, 503, {**NO_STORE, "retry-after": f"{error.retry_s}"})
    return _json({"error": error_record(error)}, 500 if isinstance(error, BrokenError) else 200)


async def _left(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT)


def _add_files(app: FastAPI, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        app.add_api_route("/" if name == "index.html" else f"/{name}", _file(name, data), methods=["GET"])


def _file(name: str, data: bytes) -> Callable[[Request], Response]:
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers = {"cache-control": "no-cache", "etag": tag}

    def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=TYPES[name[name.rindex(".") :]], headers=headers)

    return answer


def _task(name: str, query: dict[str, str], laws: list[Uploaded]) -> dict[str, Any]:
    return {"name": name, "query": query, "laws": laws}


async def _ask(request: Request, task: dict[str, Any]) -> bytes:
    async def leaves() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    left = asyncio.ensure_future(leaves())
    try:
        answer = await cast(Pool, request.app.state.pool).ask(task, left)
        if left.done():
            raise ClientDisconnect
        return answer
    finally:
        left.cancel()


def _add_answers(app: FastAPI, laws: Laws, defaults: dict[str, str]) -> None:
    def wanted(query: dict[str, str], *, runs: bool) -> list[Uploaded]:
        if not query.get("law", "").startswith(PREFIX):
            return []
        law = laws.uploaded(query["law"])
        return [law if runs else replace(law, evidence={})]

    def task_of(name: str, request: Request) -> dict[str, Any]:
        query = canonical({**defaults, **_query(request)})
        return _task(name, query, wanted(query, runs=name == "evidence"))

    def route(name: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return Response(await _ask(request, task_of(name, request)), media_type=JSON, headers=NO_STORE)

        return answer

    for name in ("draft", "plan", "bands", "scales", "evidence"):
        app.add_api_route(f"/api/{name}", route(name), methods=["GET"])

    @app.get("/api/place/{name}")
    async def place(name: str, request: Request) -> Response:
        """How many questions are before this one, and the seconds that they take; null where it does not wait."""
        found = cast(Pool, request.app.state.pool).place(task_of(name, request))
        return _json({"ahead": found and found[0], "seconds": found and found[1]})

    @app.get("/api/catalogue")
    async def catalogue(request: Request) -> Response:
        entries = [replace(law, text="", evidence={}) for law in laws.every()]
        asked = await _ask(request, _task("catalogue", defaults, entries))
        return Response(asked, media_type=JSON, headers=NO_STORE)

    @app.get("/api/law")
    async def law(request: Request) -> Response:
        query = {key: value for key, value in {**defaults, **_query(request)}.items() if key == "law"}
        asked = json.loads(await _ask(request, _task("law", query, wanted(query, runs=False))))
        if "error" in asked:
            return _json(asked)
        return Response(asked["text"], media_type="application/toml; charset=utf-8", headers=NO_STORE)


def _query(request: Request) -> dict[str, str]:
    pairs = request.query_params.multi_items()
    if len(dict(pairs)) < len(pairs):
        raise InputError("a setting is given twice", where="address", next_step="leave one of them out")
    return dict(pairs)


def _add_uploads(app: FastAPI, laws: Laws) -> None:
    def jobs() -> Jobs:
        return app.state.jobs

    @app.post("/api/laws")
    async def upload_law(request: Request) -> Response:
        name = _file_name(_query(request))
        text = decode_utf8(await _body(request, name, LAW_LIMIT_BYTES), where=name)
        asked = json.loads(await _ask(request, _task("read", {"text": text, "where": name}, [])))
        if "error" in asked:
            return _json(asked)
        kept = Uploaded(**asked)
        laws.keep(kept)
        return _json({"law": kept.name, "name": kept.law_name})

    @app.post("/api/fits")
    async def start_fit(request: Request) -> Response:
        query = _query(request)
        name = _file_name(query)
        task: dict[str, Any] = {name.replace("-", "_"): query.get(name) or None for name in FIT_KEYS}
        task |= {"name": name, "law": task["law"] or "auto", "bootstrap": _replicates(query.get("bootstrap") or "0")}
        data = await _body(request, name, TABLE_LIMIT_BYTES)
        return _json({"fit": jobs().start(task, data)})

    @app.get("/api/fits/{key}")
    async def fit_events(key: str) -> Response:
        jobs().find(key)
        return StreamingResponse(jobs().events(key), media_type="text/event-stream", headers=NO_STORE)

    @app.delete("/api/fits/{key}")
    async def cancel_fit(key: str) -> Response:
        await jobs().cancel(key)
        return _json({"cancelled": key})


def _file_name(query: dict[str, str]) -> str:
    """The name of an upload, for messages only; nothing is opened or written under it."""
    name = query.get("name", "").replace("\\", "/").rsplit("/", 1)[-1].strip()[:120]
    return "".join(c for c in name if c.isprintable()) or "upload"


def _replicates(text: str) -> int:
    found = int(Quantity("", 0, MOST_BOOTSTRAP, whole=True).parse(text, "bootstrap"))
    if found == 1:
        raise InputError("one replicate makes no interval", where="bootstrap", nearest=f"0, or 2 to {MOST_BOOTSTRAP}")
    return found


async def _body(request: Request, name: str, most_bytes: int) -> bytes:
    if request.headers.get("content-type", "") != UPLOAD_TYPE:
        raise InputError(
            f"an upload is sent as {UPLOAD_TYPE}",
            where=name,
            next_step="state that type, and no other, in Content-Type",
        )
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(UPLOAD_S):
            async for part in request.stream():
                size += len(part)
                if size > most_bytes:
                    what = f"is larger than {most_bytes // 2**20} MiB, the most that the page takes"
                    table = most_bytes == TABLE_LIMIT_BYTES
                    raise InputError(
                        what, where=name, next_step=FIT_IT if table else "use the command line, which has no such limit"
                    )
                parts.append(part)
    except TimeoutError as error:
        raise InputError(f"did not arrive within {UPLOAD_S:g} s", where=name, next_step="upload it again") from error
    return b"".join(parts)


def listen(port: int) -> socket.socket:
    """A socket that listens on loopback; InputError where the port cannot be had."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((ADDRESS, port))
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise InputError(
            f"cannot listen on {ADDRESS} port {port}: {error.strerror or error}",
            where="--port",
            next_step="take another port, or --port 0 for any free one",
        ) from error
    return bound


def most_connections() -> int:
    """MOST_CONNECTIONS, or fewer where this process may not open as many files."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MOST_CONNECTIONS + SPARE_FILES
        if 0 <= soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return min(MOST_CONNECTIONS, max(soft - SPARE_FILES, SPARE_FILES)) if soft >= 0 else MOST_CONNECTIONS
    return MOST_CONNECTIONS


class Patient(H11Protocol):
    """HTTP on a connection that is closed when its client keeps it waiting: uvicorn itself waits for ever for a request."""

    waiting: asyncio.TimerHandle | None = None
    unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._expect_request()
        self.limit_concurrency = None  # uvicorn would refuse the newest, whatever it asks
        if len(self.connections) > (self.config.limit_concurrency or MOST_CONNECTIONS):
            min(
                filter(Patient.since, cast(set[Patient], self.connections)), key=Patient.since, default=self
            ).transport.abort()

    def since(self) -> float:
        """When this connection began to wait for a request, in the loop's time; 0 where one is under way or it is closed."""
        waits = self.waiting is not None and not self.waiting.cancelled() and not self.transport.is_closing()
        return self.waiting.when() if self.waiting is not None and waits else 0.0

    def on_response_complete(self) -> None:
        self._expect_request()
        super().on_response_complete()

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and self.waiting is not None:
            self.waiting.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread = self.loop.call_later(READING_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.unread is not None:
            self.unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self.waiting, self.unread):
            if timer is not None:
                timer.cancel()

    def _expect_request(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
        self.waiting = self.loop.call_later(REQUEST_S, self.transport.abort)


class Server(uvicorn.Server):
    """Ends the work of its requests before it waits for them."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await end_work(cast(FastAPI, self.config.app))
        await super().shutdown(sockets)


def make_server(app: FastAPI) -> Server:
    """A server of the page with its limits; `run(sockets=[..])` serves."""
    config = uvicorn.Config(
        app,
        http=Patient,
        log_level="error",  # a refused request is no line
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=most_connections(),
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        timeout_graceful_shutdown=1,
    )
    return Server(config)


def serve(app: FastAPI, bound: socket.socket, *, open_url: str | None = None) -> None:
    """Serve until interrupted; opens `open_url` in a browser once the server answers."""
    server = make_server(app)
    if open_url is not None:
        threading.Timer(0.2, webbrowser.open, (open_url,)).start()
    server.run(sockets=[bound])
