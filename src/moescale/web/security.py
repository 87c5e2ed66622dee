"""Who may ask: this machine's own page and programs, on loopback; and the headers of every answer.

A page of another host cannot read answers (same-origin policy), but it could send requests, and by rebinding its name to
127.0.0.1 it could read them too. So the Host header must name this server, an Origin header must be its own, and of what
a browser marks as another site's only a navigation to the page itself is let through: it opens the page, as a link does.

Other users of this machine reach loopback too. So answers, files and uploads need the token of the address that the command
prints; the page keeps it as a cookie, and a program sends it as `Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

TABLE_LIMIT_BYTES = 16 * 2**20  # of a table of runs
LAW_LIMIT_BYTES = 4 * 2**20  # of a law file: ten thousand draws; read in about a second

UNKNOWN = "this page needs its token: open the address that `moescale web` printed, which ends in ?token=.."

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


def knows(token: str, port: int, headers: Mapping[str, str]) -> bool:
    """Whether a request with these headers (lower-case names) has the token."""
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(cookie_name(port))
    except CookieError:
        cookie = None
    stated = (headers.get("authorization", "").removeprefix("Bearer "), cookie.value if cookie else "")
    return any(secrets.compare_digest(one.encode(), token.encode()) for one in stated)


def cookie_name(port: int) -> str:
    """Cookies are shared by the servers of a host, so that each port has its own."""
    return f"moescale-{port}"


class Guard:
    """ASGI middleware: refuses what `refusal` refuses and whoever lacks the token, and adds the headers to every answer."""

    def __init__(self, app: App, port: int, token: str) -> None:
        self.app = app
        self.port = port
        self.token = token

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

        path: str = scope["path"]
        reason = refusal(self.port, path, headers)
        if reason is None and path.startswith("/api/") and not knows(self.token, self.port, headers):
            reason = UNKNOWN
        if reason is not None:
            await _answer(send_with_headers, 403, reason)
            return
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if path == "/" and (given := dict(query).get("token")) is not None:
            await _answer(send_with_headers, 303, "", self._entered(given, query))
            return
        try:
            await self.app(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server ends, and this request with it
            if not started:
                await _answer(send_with_headers, 503, "the server ends")

    def _entered(self, given: str, query: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
        """Headers that lead on to the address without its token, which becomes a cookie where it is right."""
        kept = urlencode([(key, value) for key, value in query if key != "token"])
        headers = [(b"location", f"/?{kept}".rstrip("?").encode()), (b"cache-control", b"no-store")]
        if secrets.compare_digest(given.encode(), self.token.encode()):
            cookie = f"{cookie_name(self.port)}={self.token}; Path=/; HttpOnly; SameSite=Strict"
            headers.append((b"set-cookie", cookie.encode()))
        return headers


async def _answer(send: Send, status: int, text: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    body = text.encode()
    plain = (b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*plain, *headers]})
    await send({"type": "http.response.body", "body": body})
