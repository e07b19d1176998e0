"""Who may talk to the app: only a browser on this computer that was given the token, and only the app's own pages.

Any web page can make a browser send requests to localhost, and a name that an attacker controls can be made to point
there (DNS rebinding). So a request must name this server in its Host header, must not come from a page of another
origin, and must carry the token that was printed at the start.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, final
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

REFUSED_TOKEN = "Open the address that `tensorveil app` printed: it holds the token of this run.\n"
REFUSED_HOST = "This server answers to its own address on this computer only.\n"
REFUSED_ORIGIN = "This server answers to its own pages only.\n"
REFUSED_SIZE = "The file is larger than the limit for uploads; give its path instead.\n"
POLICY = (
    "default-src 'self'; connect-src 'self' {socket}; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "font-src 'self' data:; script-src 'self' 'unsafe-inline' 'unsafe-eval'; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'self'"
)


class _TooLargeError(Exception):
    """A body is larger than the limit."""


@final
class Guard:
    """An ASGI application that lets only allowed requests through to another one.

    Attributes
    ----------
    token : the secret in the address that is printed
    """

    def __init__(self, inner: Application, port: int, largest_body: int, token: str | None = None) -> None:
        self._inner, self._largest, self._port = inner, largest_body, port
        self._hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
        self._cookie = f"tensorveil-{port}"  # cookies do not tell ports apart
        self.token = secrets.token_urlsafe(32) if token is None else token

    @property
    def address(self) -> str:
        """The address to open, with the token."""
        return f"http://{self._hosts[0]}/?token={self.token}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _refuse(scope, send, 403, refusal)
        elif self._is_entrance(scope):
            await self._enter(send)
        elif not self._has_cookie(headers):
            await _refuse(scope, send, 403, REFUSED_TOKEN)
        elif scope["type"] == "websocket":
            await self._inner(scope, receive, send)
        else:
            await self._limited(scope, headers, receive, send)

    def _refusal(self, scope: Scope, headers: dict[str, list[str]]) -> str | None:
        host = headers.get("host", [])
        if len(host) != 1 or host[0].lower() not in self._hosts:
            return REFUSED_HOST
        origin = headers.get("origin", [])
        needed = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD")
        if (origin or needed) and origin != [f"http://{host[0].lower()}"]:
            return REFUSED_ORIGIN
        return None

    def _same(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def _is_entrance(self, scope: Scope) -> bool:
        """Whether this is the address that was printed."""
        if scope["type"] != "http" or scope["path"] != "/" or scope["method"] != "GET":
            return False
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        return len(given) == 1 and self._same(given[0])

    def _has_cookie(self, headers: dict[str, list[str]]) -> bool:
        found: SimpleCookie = SimpleCookie()
        try:
            found.load("; ".join(headers.get("cookie", [])))
        except CookieError:
            return False
        return self._cookie in found and self._same(found[self._cookie].value)

    async def _enter(self, send: Send) -> None:
        """Turn the token of the address into a cookie, so that it stays neither in the address bar nor in links."""
        cookie = f"{self._cookie}={self.token}; Path=/; HttpOnly; SameSite=Lax"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _limited(self, scope: Scope, headers: dict[str, list[str]], receive: Receive, send: Send) -> None:
        """Hand a request on, with a limit for its body and with headers that bind the browser to this server."""
        stated = headers.get("content-length", ["0"])[0]
        if not stated.isdecimal() or int(stated) > self._largest:
            await _refuse(scope, send, 413, REFUSED_SIZE)
            return
        count, begun = 0, False

        async def counted() -> MutableMapping[str, Any]:
            nonlocal count
            message = await receive()
            count += len(message.get("body", b""))
            if count > self._largest:  # a body without a stated length
                raise _TooLargeError
            return message

        async def marked(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message = {**message, "headers": [*message.get("headers", []), *self._marks()]}
            await send(message)

        try:
            await self._inner(scope, counted, marked)
        except _TooLargeError:
            if not begun:
                await _refuse(scope, send, 413, REFUSED_SIZE)

    def _marks(self) -> list[tuple[bytes, bytes]]:
        sockets = " ".join(f"ws://{host}" for host in self._hosts)
        return [
            (b"content-security-policy", POLICY.format(socket=sockets).encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"cache-control", b"no-store"),
        ]


async def _refuse(scope: Scope, send: Send, status: int, text: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
