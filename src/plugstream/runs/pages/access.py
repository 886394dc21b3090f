"""Who may read the pages of runs, and who may change a run: the token, Host, Origin, and what answers always say.

Any page in a person's browser may send requests to 127.0.0.1, and any name may be made to point there. So a request
must name this server in `Host` (a name that points here is not enough), and must come from one of its own pages where
`Origin` or `Sec-Fetch-Site` says where it comes from. A request that changes a run needs the token of the printed
address, in a header that no form and no link can send. Where the server listens beyond this machine reading needs it
too: in that header, in the address, or as a cookie, which is a hash of it, since a browser sends cookies to every port.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

TOKEN_HEADER = "x-plugstream-token"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer, refusals among them."""
_MOST_UNHEARD, _LONGEST_UNHEARD = 2**16, 2.0  # bytes and seconds of a refused request that are read
_MOST_BODY, _LONGEST_BODY = 2**16, 10.0  # of one that is not

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(24)


def is_local(host: str) -> bool:
    """Whether only this machine reaches who listens at this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class Access:
    """What a request needs; `local` is a server for this machine alone, `names` are of hosts besides its addresses."""

    token: str
    local: bool = True
    names: frozenset[str] = frozenset()

    @classmethod
    def at(cls, host: str, token: str, names: Iterable[str] = ()) -> Access:
        """The access to a server that listens at this address, and is reached by these names, too."""
        local = is_local(host)
        machine = () if local else (host, socket.gethostname(), socket.getfqdn())
        return cls(token, local, frozenset(name.lower().rstrip(".") for name in (*machine, *names)))

    @property
    def cookie(self) -> str:
        """What lets a browser read once it has shown the token; it lets nobody change anything."""
        return hmac.new(self.token.encode(), b"plugstream reads", hashlib.sha256).hexdigest()

    def refusal(self, method: str, headers: Iterable[tuple[bytes, bytes]], query: bytes) -> tuple[int, str] | None:
        """Status and reason, in one line, why a request is refused; None where it is not."""
        fields: dict[str, list[str]] = {}
        for name, value in headers:
            fields.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        host, origin = fields.get("host", []), fields.get("origin", [])
        if len(host) != 1 or not self._is_here(host[0]):
            return 403, "this server is not known by that name; use the address that it printed, or --allow-host NAME"
        here = [f"{scheme}://{host[0].lower()}" for scheme in ("http", "https")]  # a proxy may have made it https
        if len(origin) > 1 or (origin and origin[0].lower() not in here):
            return 403, "requests of other pages are refused"
        visit = fields.get("sec-fetch-mode") == ["navigate"] and method == "GET"  # a link may lead here
        if fields.get("sec-fetch-site", ["none"]) not in (["same-origin"], ["none"]) and not visit:
            return 403, "requests of other pages are refused"
        if method not in ("GET", "HEAD"):
            if not self._knows(fields.get(TOKEN_HEADER, [])):
                return 401, "changes need the token of the printed address"
        elif not self.local and not self._may_read(fields, query):
            return 401, "open the address that the server printed, which has a token in it"
        return None

    def shows_token(self, query: bytes) -> bool:
        """Whether an address has the token in it."""
        try:
            return self._knows(parse_qs(query.decode("ascii"), max_num_fields=16).get("token", []))
        except ValueError:
            return False

    def _knows(self, tokens: list[str]) -> bool:
        return len(tokens) == 1 and hmac.compare_digest(tokens[0].encode(), self.token.encode())

    def _may_read(self, fields: dict[str, list[str]], query: bytes) -> bool:
        if self._knows(fields.get(TOKEN_HEADER, [])) or self.shows_token(query):
            return True
        cookies: SimpleCookie = SimpleCookie()
        try:
            for text in fields.get("cookie", []):
                cookies.load(text)
        except CookieError:
            return False
        cookie = cookies.get(self.cookie_name)
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self.cookie.encode())

    @property
    def cookie_name(self) -> str:
        """Of its own for each server: a browser has the cookies of all ports of a machine together."""
        return f"plugstream-{hashlib.sha256(self.token.encode()).hexdigest()[:8]}"

    def _is_here(self, host: str) -> bool:
        """Whether a `Host` is an address or a name of this server.

        The port may be any, since a tunnel has its own. An address cannot be made to point elsewhere, as a name can.
        """
        name = _name_of(host)
        if name is None:
            return False
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name == "localhost" or name in self.names
        return address.is_loopback or not self.local


class Guard:
    """An ASGI application that is asked only what `Access` allows, and whose answers all have `HEADERS`."""

    def __init__(self, app: Any, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket; there are none here
            await send({"type": "websocket.close", "code": 1008})
            return
        query = scope.get("query_string", b"")
        extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
        refused = self.access.refusal(scope["method"], scope["headers"], query)
        if refused is None and scope["method"] == "GET" and self.access.shows_token(query):
            value = f"{self.access.cookie_name}={self.access.cookie}; Path=/; HttpOnly; SameSite=Strict"
            extra.append((b"set-cookie", value.encode()))

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in extra}
                others = [pair for pair in message.get("headers", []) if pair[0].lower() not in names]
                message = {**message, "headers": [*others, *extra]}
            await send(message)

        if scope["method"] in ("GET", "HEAD"):
            if _has_body(scope["headers"]):
                refused = refused or (413, "a request to read has no body")
        elif refused is not None:
            # A socket that is closed with bytes unread resets its connection, and the reason may never arrive.
            await _read_body(receive, _MOST_UNHEARD, _LONGEST_UNHEARD)
        else:
            body = await _read_body(receive, _MOST_BODY, _LONGEST_BODY)
            receive = _replay(body or b"", receive)
            if body is None:
                refused = 408, f"the request did not arrive within {_LONGEST_BODY:g} s"
            elif len(body) > _MOST_BODY:
                refused = 413, f"a request has at most {_MOST_BODY} bytes"
        if refused is None:
            await self.app(scope, receive, send_with_headers)
            return
        status, text = refused
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        await send_with_headers({"type": "http.response.start", "status": status, "headers": headers})
        await send_with_headers({"type": "http.response.body", "body": f"{text}\n".encode()})


def _has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request says that something follows it."""
    fields = {name.lower(): value.strip() for name, value in headers}
    return b"transfer-encoding" in fields or fields.get(b"content-length", b"0") != b"0"


async def _read_body(receive: Receive, most: int, seconds: float) -> bytes | None:
    """The body of a request, cut off once it has more than `most` bytes; None where it takes longer than that.

    Bytes are counted as they arrive, since a body in chunks does not say its size beforehand, and an application that
    answers early leaves the rest to a server that reads on.
    """
    body, more = b"", True
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while more and len(body) <= most:
                message = await receive()
                body += message.get("body", b"")
                more = message.get("more_body", False)
            return body
    return None


def _replay(body: bytes, receive: Receive) -> Receive:
    """What an application receives of a request whose body was read: that, and then whatever else comes."""
    messages: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> MutableMapping[str, Any]:
        return messages.pop() if messages else await receive()

    return replayed


def _name_of(host: str) -> str | None:
    """The name or address of a `Host`, without its port; None where it is none."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        return name if bracket and (not port or (port[0] == ":" and port[1:].isdecimal())) else None
    name, colon, port = host.partition(":")
    if (colon and not port.isdecimal()) or not name or "@" in name or "/" in name:
        return None
    return name.lower().rstrip(".")
