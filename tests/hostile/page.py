"""Requests to the page as bytes on the wire may form them, through the ASGI application in this process."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from moescale.errors import InputError
from moescale.web.pool import Pool
from moescale.web.worker import answer

PORT, TOKEN = 8765, "token"


class BrokenError(Exception):
    """The server answered with an error of its own."""


async def _computed(self: Pool, task: dict[str, Any], left: asyncio.Future[None]) -> bytes:
    """What a process would answer, in this one."""
    return json.dumps(answer(json.loads(json.dumps(task, default=asdict))), allow_nan=False).encode()


def _nothing(self: Pool) -> None:
    """No process is started."""


@lru_cache(maxsize=1)
def _app() -> tuple[Any, asyncio.AbstractEventLoop]:
    from moescale.web.app import create_app

    Pool.ask = _computed  # type: ignore[method-assign]
    Pool.start = _nothing  # type: ignore[method-assign]
    app = create_app(PORT, TOKEN)
    loop = asyncio.new_event_loop()
    lifespan = app.router.lifespan_context(app)
    loop.run_until_complete(lifespan.__aenter__())
    return app, loop


def ask(folder: Path) -> object:
    """Send the request in `request.json`, which may be anything, with the body beside it; False where it was turned away."""
    text = (folder / "request.json").read_bytes()
    try:
        stated: Any = json.loads(text.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        stated = None
    if not isinstance(stated, dict):  # raw bytes as a query
        stated = {"query": text[:2000].decode("latin-1")}
    bodies = [path.read_bytes() for path in sorted(folder.iterdir()) if path.name.startswith("body")]
    status, content, kind = _answered(stated, bodies[0] if bodies else b"")
    if status >= 500:
        raise BrokenError(f"status {status}: {content[:300]!r}")
    if kind.startswith("application/json") and status == 200:
        answer = json.loads(content, parse_constant=_refuse)
        if isinstance(answer, dict) and "error" in answer:
            error = answer["error"]
            raise InputError(
                error["what"], where=error["where"], nearest=error["nearest"], next_step=error["next_step"]
            )
    return status < 400


def _refuse(name: str) -> None:
    raise BrokenError(f"{name} is not JSON")


def _answered(stated: dict[str, Any], body: bytes) -> tuple[int, bytes, str]:
    path = str(stated.get("path", "/api/draft"))
    given = stated.get("headers")
    known = {"host": f"127.0.0.1:{PORT}", "authorization": f"Bearer {TOKEN}"}
    named = {**known, **(given if isinstance(given, dict) else {"x-given": given})}
    headers = [(str(k).lower().encode("utf-8", "replace"), str(v).encode("utf-8", "replace")) for k, v in named.items()]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": str(stated.get("method", "GET")),
        "scheme": "http",
        # As a server does: percent signs decoded, and what is no UTF-8 replaced.
        "path": unquote_to_bytes(path.encode("utf-8", "replace")).decode("utf-8", "replace"),
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": str(stated.get("query", "")).encode("utf-8", "replace"),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", PORT),
    }
    parts = [body[at : at + 65536] for at in range(0, len(body), 65536)] or [b""]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if parts:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
        await asyncio.Event().wait()  # the client stays
        return {}

    async def send(message: Any) -> None:
        sent.append(message)

    app, loop = _app()
    loop.run_until_complete(app(scope, receive, send))
    start = next(message for message in sent if message["type"] == "http.response.start")
    content = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    kinds = [value.decode("latin-1") for key, value in start["headers"] if key == b"content-type"]
    return int(start["status"]), content, kinds[0] if kinds else ""
