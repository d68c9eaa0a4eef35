"""What every request passes before a route sees it: host, token, origin, size, room and time."""

import asyncio
import base64
import binascii
import hmac
import logging
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lmd.serve.limits import Limits, is_loopback
from lmd.serve.models import Measures
from lmd.serve.schemas import Problem, busy

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
]
LOG = logging.getLogger("lmd.serve")


class Guard:
    """Checks requests, limits what they cost, and turns every error into problem JSON.

    Without a token only host names of this machine are answered, so that no web site can reach the
    server under a name of its own (DNS rebinding).
    """

    def __init__(
        self, app: "ASGIApp", limits: Limits, measures: Measures, token: str | None = None
    ) -> None:
        self._app, self._limits, self._measures = app, limits, measures
        self._token = None if token is None else token.encode()
        self._open = self._bytes = 0

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """One connection of the ASGI protocol."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            exchange = _Exchange(receive, send, self._limits)
            start = time.monotonic()
            try:
                await self._answer(scope, exchange)
            finally:
                route = getattr(scope.get("route"), "path", "none")
                self._measures.requests.labels(route, exchange.status).inc()
                self._measures.seconds.labels(route).observe(time.monotonic() - start)

    async def _answer(self, scope: "Scope", exchange: "_Exchange") -> None:
        headers = {key.lower(): value for key, value in scope["headers"]}
        try:
            self._check(scope, headers)
            with self._room(headers):
                async with asyncio.timeout(self._limits.max_seconds):
                    await self._app(scope, exchange.receive, exchange.send)
            return
        except Problem as error:
            problem = error
        except TimeoutError:
            why = f"The request must arrive within {self._limits.max_seconds:g} s."
            slow = Problem("slow-upload", why)
            problem = busy("The answer took too long", 5) if exchange.complete else slow
        except Exception as error:
            # The message may quote the upload, so only the place is logged.
            place = "".join(traceback.format_tb(error.__traceback__))
            LOG.error("%s while answering a request\n%s", type(error).__name__, place)
            problem = Problem("failed", "The error is in the log of the server.")
        if not exchange.status:
            await problem.response()(scope, exchange.receive, exchange.send)

    def _check(self, scope: "Scope", headers: dict[bytes, bytes]) -> None:
        if self._token is None:
            host = headers.get(b"host", b"").decode("latin-1")
            name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
            if not is_loopback(name):
                raise Problem("wrong-host", "Use localhost, or start the server with --token.")
        elif not self._accepts(headers.get(b"authorization", b"")):
            raise Problem(
                "no-token",
                "Send the header Authorization: Bearer TOKEN, or the token as the password.",
                {"WWW-Authenticate": 'Basic realm="lmd", charset="UTF-8"'},
            )
        other = headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin")
        if other and scope["method"] not in ("GET", "HEAD"):
            raise Problem("other-site", "Open the page of this server instead.")

    def _accepts(self, header: bytes) -> bool:
        """Return whether a header has the token, in a time that does not depend on its content."""
        assert self._token is not None
        scheme, _, rest = header.partition(b" ")
        secret = rest.strip()
        if scheme.lower() == b"basic":
            try:
                secret = base64.b64decode(secret, validate=True).partition(b":")[2]
            except binascii.Error:
                secret = b""
        elif scheme.lower() != b"bearer":
            secret = b""
        return hmac.compare_digest(secret, self._token)

    @contextmanager
    def _room(self, headers: dict[bytes, bytes]) -> Iterator[None]:
        """Room for the body of a request, of which all together have an upper bound."""
        most = self._limits.request_bytes
        stated = headers.get(b"content-length", b"")
        chunked = b"transfer-encoding" in headers
        length = int(stated) if stated.isdigit() else most if chunked else 0
        if length > most:
            raise _too_large(self._limits)
        full = self._bytes + length > 4 * most
        if full or self._open >= 2 * self._limits.queue:
            raise busy("Too many requests are waiting")
        self._open, self._bytes = self._open + 1, self._bytes + length
        self._measures.open.set(self._open)
        try:
            yield
        finally:
            self._open, self._bytes = self._open - 1, self._bytes - length
            self._measures.open.set(self._open)


class _Exchange:
    """Counts the bytes of a request while they arrive; adds the headers of safety to its answer."""

    def __init__(self, receive: "Receive", send: "Send", limits: Limits) -> None:
        self._receive, self._send, self._limits = receive, send, limits
        self._seen = self.status = 0  # bytes; the status of the answer
        self.complete = False

    async def receive(self) -> "Message":
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        if self._seen > self._limits.request_bytes:
            raise _too_large(self._limits)
        self.complete = self.complete or not message.get("more_body", False)
        return message

    async def send(self, message: "Message") -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            names = {key.lower() for key, _ in message["headers"]}
            more = [header for header in HEADERS if header[0] not in names]
            message = {**message, "headers": [*message["headers"], *more]}
        await self._send(message)


def _too_large(limits: Limits) -> Problem:
    return Problem("too-large", f"A request may have at most {limits.max_request_mb:g} MB.")
