"""Who may ask: the machine's own pages on loopback, holders of a token elsewhere; and the headers of every answer.

A page of another host cannot read answers (same-origin policy), but it could send requests, and by rebinding its name to
127.0.0.1 it could read them too. So the Host header must name this server, an Origin header must be its own, and requests
that a browser marks as cross-site are refused.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "moescale-token"
UPLOAD_LIMIT_BYTES = 16 * 2**20
LOOPBACK_NAMES = ("localhost",)

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


@dataclass(frozen=True, slots=True)
class Access:
    """What a request must show. Without a token the server is for this machine alone."""

    port: int
    token: str | None = None


def is_loopback(host: str) -> bool:
    """Whether a host, as given to bind to, is this machine's loopback."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK_NAMES


def new_token() -> str:
    """A token that nobody guesses: 192 random bits."""
    return secrets.token_urlsafe(24)


def refusal(access: Access, headers: MutableMapping[str, str], secure: bool = False) -> str | None:
    """Why a request with these headers (lower-case names) is refused, or None. Whether it has the token is asked apart."""
    host = headers.get("host", "")
    try:
        parts = urlsplit(f"//{host}")
        name, port = parts.hostname or "", parts.port
    except ValueError:
        name, port = "", None
    if not name or "@" in host or "/" in host:
        return "the Host header names no host"
    if access.token is None and not (is_loopback(name) and port == access.port):
        return f"this server answers to http://127.0.0.1:{access.port} only"
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"{'https' if secure else 'http'}://{host}".lower():
        return "the request comes from a page of another origin"
    if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        navigates = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if not navigates:
            return "the request comes from a page of another site"
    return None


def holds_token(access: Access, headers: MutableMapping[str, str], query: str) -> bool:
    """Whether a request shows the token in its cookie or its query."""
    if access.token is None:
        return True
    shown = [value for key, value in parse_qsl(query) if key == "token"]
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        cookie = None
    if cookie is not None:
        shown.append(cookie.value)
    return any(secrets.compare_digest(text.encode(), access.token.encode()) for text in shown)


class Guard:
    """ASGI middleware: refuses what `refusal` and `holds_token` refuse, and adds the headers to every answer.

    A token in the query moves into a cookie that scripts cannot read, and out of the address.
    """

    def __init__(self, app: App, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        query = scope.get("query_string", b"").decode("latin-1")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        if reason := refusal(self.access, headers, scope.get("scheme") == "https"):
            await _answer(send_with_headers, 403, reason)
        elif not holds_token(self.access, headers, query):
            await _answer(send_with_headers, 401, "open the address with the token that `moescale web` printed")
        elif self.access.token is not None and "token" in dict(parse_qsl(query)):
            rest = urlencode([(key, value) for key, value in parse_qsl(query) if key != "token"])
            where = scope["path"] + (f"?{rest}" if rest else "")
            # A path of two slashes would name another host.
            location = "/" + where.lstrip("/\\")
            cookie = f"{COOKIE}={self.access.token}; HttpOnly; SameSite=Strict; Path=/"
            await _answer(
                send_with_headers, 303, "", (b"location", location.encode("latin-1")), (b"set-cookie", cookie.encode())
            )
        else:
            await self.app(scope, receive, send_with_headers)


async def _answer(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    body = text.encode()
    plain = (b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*plain, *headers]})
    await send({"type": "http.response.body", "body": body})
