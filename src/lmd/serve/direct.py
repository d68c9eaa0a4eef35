"""Uploads go straight to their answer: the framework's layers cost as much as a small model."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/api/models/"
Handler = Callable[[str, Request], Awaitable[Response]]


@dataclass(frozen=True)
class _Route:
    """What the counters ask of a route."""

    path: str


class Direct:
    """Answers POST requests to ``/api/models/NAME/ACTION`` itself, and hands on all others."""

    def __init__(self, app: "ASGIApp", handlers: Mapping[str, Handler]) -> None:
        self._app = app
        self._handlers = {
            action: (_Route(f"{PREFIX}{{model}}/{action}"), handler)
            for action, handler in handlers.items()
        }

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """One request; a ``Problem`` is left to the guard."""
        if scope["type"] == "http" and scope["method"] == "POST":
            head, _, action = scope["path"].rpartition("/")
            name = head.removeprefix(PREFIX)
            if action in self._handlers and head != name and "/" not in name:
                scope["route"], handler = self._handlers[action]
                response = await handler(name, Request(scope, receive))
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)
