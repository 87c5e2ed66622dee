"""Who may ask: this machine's own page and programs, on loopback; and the headers of every answer.

A page of another host cannot read answers (same-origin policy), but it could send requests, and by rebinding its name to
127.0.0.1 it could read them too. So the Host header must name this server, an Origin header must be its own, and of what
a browser marks as another site's only a navigation to the page itself is let through: it opens the page, as a link does.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

TABLE_LIMIT_BYTES = 16 * 2**20  # of a table of runs
LAW_LIMIT_BYTES = 4 * 2**20  # of a law file: ten thousand draws; read in about a second

HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)


def is_loopback(host: str) -> bool:
    """Whether a host, as a Host header names it, is this machine's loopback."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def refusal(port: int, path: str, headers: Mapping[str, str]) -> str | None:
    """Why a request for `path` with these headers (lower-case names) is refused, or None."""
    host = headers.get("host", "")
    try:
        parts = urlsplit(f"//{host}")
        name, stated = parts.hostname or "", parts.port
    except ValueError:
        name, stated = "", None
    if not name or "@" in host or "/" in host:
        return "the Host header names no host"
    if not (is_loopback(name) and stated == port):
        return f"this server answers to http://127.0.0.1:{port} only"
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"http://{host}".lower():
        return "the request comes from a page of another origin"
    # Browsers since 2023 say who asks (W3C Fetch Metadata); programs and older browsers send no such header.
    site, navigates = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode") == "navigate"
    if site is None or site == "same-origin":
        return None
    if navigates and headers.get("sec-fetch-dest") == "document" and path == "/":
        return None
    if site != "none":
        return "the request comes from a page of another site"
    if navigates and path.startswith("/api/"):
        return "a browser opens the page itself, not its answers"
    return None


class Guard:
    """ASGI middleware: refuses what `refusal` refuses, and adds the headers to every answer."""

    def __init__(self, app: App, port: int) -> None:
        self.app = app
        self.port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        if reason := refusal(self.port, scope["path"], headers):
            await _answer(send_with_headers, 403, reason)
            return
        try:
            await self.app(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server ends, and this request with it
            if not started:
                await _answer(send_with_headers, 503, "the server ends")


async def _answer(send: Send, status: int, text: str) -> None:
    body = text.encode()
    plain = (b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*plain]})
    await send({"type": "http.response.body", "body": body})
