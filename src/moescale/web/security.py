"""Who may ask: this machine's own page and programs, on loopback; and the headers of every answer.

A page of another host cannot read answers (same-origin policy), but it could send requests, and by rebinding its name to
127.0.0.1 it could read them too. So the Host header must name loopback (TrustedHostMiddleware), an Origin header must be this
server's, and of what a browser marks as another site's only a navigation to the page itself is let through, as a link does it.

Other users of this machine reach loopback too. So answers and uploads need the token of the address that the command prints; the
page keeps it as a cookie, and a program sends it as `Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import asyncio
import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost")
UNKNOWN = "this page needs its token: open the address that `moescale web` printed, which ends in ?token=.."
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """ASGI middleware: refuses strangers, leads on from the address with the token, and adds the headers to every answer."""

    def __init__(self, app: ASGIApp, port: int, token: str) -> None:
        self.app = app
        self.token = token
        self.cookie = f"moescale-{port}"  # cookies are shared by the servers of a host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._answer(Request(scope)) or self.app
        try:
            await answer(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the server ends, and this request with it
            if not started:
                await PlainTextResponse("the server ends", 503)(scope, receive, send_with_headers)

    def _answer(self, request: Request) -> Response | None:
        path, headers = request.url.path, request.headers
        if headers.get("origin") not in (None, f"http://{headers.get('host')}"):
            return PlainTextResponse("the request comes from a page of another origin", 403)
        # Browsers since 2023 say who asks (W3C Fetch Metadata); programs and older browsers send no such header.
        opens = path == "/" and headers.get("sec-fetch-dest") == "document"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not opens:
            return PlainTextResponse("the request comes from a page of another site", 403)
        if path.startswith("/api/"):
            bearer = headers.get("authorization", "").removeprefix("Bearer ")
            known = self._is_token(bearer) or self._is_token(request.cookies.get(self.cookie, ""))
            return None if known else PlainTextResponse(UNKNOWN, 403)
        if path != "/" or "token" not in request.query_params:
            return None
        # On to the address without its token, which becomes a cookie where it is right.
        kept = request.url.remove_query_params("token").query
        on = RedirectResponse(f"/?{kept}" if kept else "/", 303, {"cache-control": "no-store"})
        if self._is_token(request.query_params["token"]):
            on.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
        return on

    def _is_token(self, stated: str) -> bool:
        return secrets.compare_digest(stated.encode(), self.token.encode())
