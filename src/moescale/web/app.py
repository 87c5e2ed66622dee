"""The server of the page: static files by a fixed manifest, answers by `api`, uploads into memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
import webbrowser
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from importlib import metadata, resources
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from moescale.errors import InputError, MoescaleError
from moescale.web.security import UPLOAD_LIMIT_BYTES, Access, Guard

if TYPE_CHECKING:
    from moescale.web.jobs import Jobs
    from moescale.web.store import Laws

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
UPLOAD_TYPE = "application/octet-stream"  # never a form's, so that another site's page must ask before it may send one
MOST_BOOTSTRAP = 1000  # replicates that the page offers; the command line takes more
HEAD_START_S = 1.0  # of the page's files before the server loads libraries, unless it is asked something before
PATIENCE_S = 30.0  # that a request waits for the libraries to be loaded
NO_STORE = {"cache-control": "no-store"}


def static_files() -> dict[str, bytes]:
    """The built files of the page by name: those of the manifest, each with the hash that the build wrote down."""
    folder = resources.files("moescale.web") / "static"
    manifest: dict[str, str] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    files = {name: (folder / name).read_bytes() for name in manifest}
    for name, data in files.items():
        if hashlib.sha256(data).hexdigest() != manifest[name]:
            raise InputError(f"{name} of the page is not as it was built", next_step="run `make page`")
    return files


def opening_text() -> str:
    """What the page opens with, in JSON: the catalogue and the first curves, computed beforehand by scripts/write_opening.py.

    So a chart stands before the server has loaded NumPy. Where other kernel tables are installed than it was computed
    with, the answer is empty and the page asks for both.
    """
    text = (resources.files("moescale.web") / "opening.json").read_text(encoding="utf-8")
    return text if json.loads(text)["kernels"] == kernels_version() else "{}"


def kernels_version() -> str:
    """The version of the package with the kernel tables, or nothing."""
    try:
        return metadata.version("aiconfigurator-core")
    except metadata.PackageNotFoundError:
        return ""


class Session:
    """What lives as long as the server: laws and fits. Made on first use, so that the page is served before NumPy is there."""

    def __init__(self, law_text: str | None, law_name: str) -> None:
        self._lock = threading.Lock()
        self._laws: Laws | None = None
        self._given = law_text, law_name
        self._default = ""
        # Set from the start where nothing is warmed.
        self.controls_ready, self.answers_ready = threading.Event(), threading.Event()
        self._wanted = threading.Event()

    def laws(self) -> tuple[Laws, str]:
        """The laws, and the name of the page's default one; InputError for a broken law that was given."""
        from moescale.web.state import DEFAULTS
        from moescale.web.store import Laws

        with self._lock:
            if self._laws is None:
                laws, (text, name) = Laws(), self._given
                self._default = DEFAULTS["law"] if text is None else laws.add(text, where=name).name
                self._laws = laws
            return self._laws, self._default

    def as_shipped(self) -> bool:
        """Whether there is no law but the catalogue's. Takes no lock: the thread that loads libraries has it for long."""
        laws = self._laws
        return self._given[0] is None and not (laws and laws.every())

    def warm(self) -> None:
        """Load, in a thread, the libraries and tables that the first question needs.

        Requests wait for it: two threads that import the same libraries at a time do it twice, or block each other. The
        page's own files go first, since loading holds the interpreter.
        """

        def load() -> None:
            self._wanted.wait(HEAD_START_S)
            try:
                from moescale.web import api

                laws, default = self.laws()
                api.catalogue(laws, default)
                self.controls_ready.set()
                with suppress(MoescaleError):
                    api.draft({"law": default}, laws)
            finally:
                self.ready()

        threading.Thread(target=load, daemon=True).start()

    def wait(self, ready: threading.Event) -> None:
        """Return when the thread has loaded what a request needs; it begins at once."""
        self._wanted.set()
        ready.wait(PATIENCE_S)

    def ready(self) -> None:
        """Let every request through."""
        self.controls_ready.set()
        self.answers_ready.set()


def create_app(access: Access, *, law_text: str | None = None, law_name: str = "", warm: bool = True) -> FastAPI:
    """The application; `law_text` is a law file's text, which is then the page's default law."""
    session = Session(law_text, law_name)
    if law_text is not None:
        session.laws()
    files = static_files()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        jobs: Jobs | None = None
        app.state.jobs = jobs
        if warm:
            session.warm()
        else:
            session.ready()
        yield
        if (jobs := cast("Jobs | None", app.state.jobs)) is not None:
            await jobs.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_middleware(Guard, access=access)  # pyright: ignore[reportArgumentType]  # its scopes are plain mappings

    async def refuse(_: Request, error: Exception) -> Response:
        # A refusal is an answer (status 200): a page that asks impossible questions is no broken page.
        from moescale.web.api import failure

        assert isinstance(error, MoescaleError)
        return JSONResponse(failure(error), headers=NO_STORE)

    app.add_exception_handler(MoescaleError, refuse)
    _add_files(app, files)
    _add_answers(app, session)
    _add_uploads(app, session)
    return app


def _add_files(app: FastAPI, files: dict[str, bytes]) -> None:
    def file(name: str) -> Callable[[Request], Response]:
        data = files[name]
        tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        headers = {"cache-control": "no-cache", "etag": tag}

        def answer(request: Request) -> Response:
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers=headers)
            return Response(data, media_type=TYPES[name[name.rindex(".") :]], headers=headers)

        return answer

    for name in files:
        app.add_api_route("/" if name == "index.html" else f"/{name}", file(name), methods=["GET"])


def _add_answers(app: FastAPI, session: Session) -> None:
    def route(name: str) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            session.wait(session.answers_ready)
            from moescale.web import api

            laws, default_law = session.laws()
            query = {"law": default_law, **_query(request)}
            return JSONResponse(getattr(api, name)(query, laws), headers=NO_STORE)

        return answer

    for name in ("draft", "plan", "bands", "scales", "evidence"):
        app.add_api_route(f"/api/{name}", route(name), methods=["GET"])

    @app.get("/api/catalogue")
    def catalogue() -> Response:
        session.wait(session.controls_ready)
        from moescale.web import api

        return JSONResponse(api.catalogue(*session.laws()), headers=NO_STORE)

    @app.get("/api/opening")
    def opening() -> Response:
        text = opening_text() if session.as_shipped() else "{}"
        return Response(text, media_type="application/json", headers=NO_STORE)

    @app.get("/api/law")
    def law(request: Request) -> Response:
        """The TOML file of a law, to save and to give to the command line."""
        from moescale.laws.store import law_text
        from moescale.web.store import PREFIX

        laws, default_law = session.laws()
        name = _query(request).get("law", default_law)
        text = laws.uploaded(name).text if name.startswith(PREFIX) else law_text(laws.find(name))
        return Response(text, media_type="application/toml; charset=utf-8", headers=NO_STORE)


def _query(request: Request) -> dict[str, str]:
    pairs = request.query_params.multi_items()
    if len(dict(pairs)) < len(pairs):
        raise InputError("a setting is given twice", where="address", next_step="leave one of them out")
    return dict(pairs)


def _add_uploads(app: FastAPI, session: Session) -> None:
    def jobs() -> Jobs:
        from moescale.web.jobs import Jobs

        if app.state.jobs is None:
            app.state.jobs = Jobs(session.laws()[0])
        return app.state.jobs

    @app.post("/api/laws")
    async def upload_law(request: Request) -> Response:
        from moescale.files import decode_utf8

        name = _file_name(_query(request))
        data = await _body(request, name)
        laws, _ = session.laws()
        kept = await asyncio.to_thread(lambda: laws.add(decode_utf8(data, where=name), where=name))
        return JSONResponse({"law": kept.name, "name": kept.law.name}, headers=NO_STORE)

    @app.post("/api/fits")
    async def start_fit(request: Request) -> Response:
        from moescale.web.api import check_form

        query = _query(request)
        name = _file_name(query)
        task: dict[str, Any] = {
            "name": name,
            "law": check_form(query.get("law") or "yun2024"),
            "where": query.get("where") or None,
            **{
                f"{column}_column": query.get(f"{column}-column") or None
                for column in ("size", "tokens", "experts", "loss")
            },
            "bootstrap": _replicates(query.get("bootstrap") or "0"),
        }
        data = await _body(request, name)
        return JSONResponse({"fit": jobs().start(task, data)}, headers=NO_STORE)

    @app.get("/api/fits/{key}")
    async def fit_events(key: str) -> Response:
        jobs().find(key)
        return StreamingResponse(jobs().events(key), media_type="text/event-stream", headers=NO_STORE)

    @app.delete("/api/fits/{key}")
    async def cancel_fit(key: str) -> Response:
        await jobs().cancel(key)
        return JSONResponse({"cancelled": key}, headers=NO_STORE)


def _file_name(query: dict[str, str]) -> str:
    """The name of an upload, for messages only; nothing is opened or written under it."""
    name = query.get("name", "").replace("\\", "/").rsplit("/", 1)[-1].strip()[:120]
    return "".join(c for c in name if c.isprintable()) or "upload"


def _replicates(text: str) -> int:
    if not (
        text.isascii() and text.isdigit() and len(text) < 9 and (int(text) == 0 or 2 <= int(text) <= MOST_BOOTSTRAP)
    ):
        raise InputError(
            f"{text[:40]!r} is not a number of replicates", where="bootstrap", nearest=f"0, or 2 to {MOST_BOOTSTRAP}"
        )
    return int(text)


async def _body(request: Request, name: str) -> bytes:
    """The bytes of an upload; InputError beyond the limit, without reading on."""
    if request.headers.get("content-type", "") != UPLOAD_TYPE:
        raise InputError(
            f"an upload is sent as {UPLOAD_TYPE}",
            where=name,
            next_step="state that type, and no other, in Content-Type",
        )
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > UPLOAD_LIMIT_BYTES:
            raise InputError(
                f"is larger than {UPLOAD_LIMIT_BYTES // 2**20} MiB, the most that the page takes", where=name,
                next_step="fit it with `moescale fit -o law.toml` and upload the law",
            )  # fmt: skip
        parts.append(part)
    return b"".join(parts)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; InputError where the address cannot be had."""
    bound: socket.socket | None = None
    try:
        bound = socket.socket(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0], socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(128)
    except ValueError as error:  # UnicodeError among them: a label that is empty or too long, a NUL byte
        raise InputError(f"{host!r} is no address", where="--host", nearest="127.0.0.1") from error
    except OSError as error:
        if bound is not None:
            bound.close()
        raise InputError(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            where="--host" if isinstance(error, socket.gaierror) else "--port",
            next_step="take another port, or --port 0 for any free one",
        ) from error
    return bound


def serve(app: FastAPI, bound: socket.socket, *, open_url: str | None = None) -> None:
    """Serve until interrupted; opens `open_url` in a browser once the server answers."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    if open_url is not None:
        threading.Timer(0.2, webbrowser.open, (open_url,)).start()
    server.run(sockets=[bound])
