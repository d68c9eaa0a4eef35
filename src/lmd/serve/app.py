"""The routes of the server, its pages, which load nothing from other places, and its guard."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import re
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse
from markdown_it import MarkdownIt
from markupsafe import Markup
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Mount, Route, Router

from lmd import __version__
from lmd.report.page import environment
from lmd.serve import schemas
from lmd.serve.limits import MB, Limits, is_loopback
from lmd.serve.models import Measures, Service
from lmd.serve.schemas import KINDS, PROBLEM_TYPE, Problem, busy
from lmd.serve.uploads import read_form

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

Handler = Callable[[Request], Awaitable[Response]]
_PROBLEM: dict[str, Any] = {
    "model": schemas.ProblemDetails,
    "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
}
_TEMPLATES = environment()
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)  # metadata for model hubs
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


def create_app(service: Service, token: str | None = None) -> "Guard":
    """Return the application, behind its guard."""

    @asynccontextmanager
    async def life(_app: Router) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="lmd",
        version=__version__,
        description="Predictions and explanations of classifiers of medical images.",
        docs_url=None,  # the pages of the framework load scripts from other sites
        redoc_url=None,
    )
    for error in (Problem, HTTPException, RequestValidationError):
        app.add_exception_handler(error, _respond)
    _add_pages(app, service)
    _add_information(app, service)
    # FastAPI describes uploads, but they do not pass through its layers: with a small model these
    # take a tenth of the time of an image.
    routes: list[BaseRoute] = []
    for path, (handler, description) in _uploads(service).items():
        app.add_api_route(path, handler, methods=["POST"], **description)
        routes.append(Route(path, handler, methods=["POST"]))
    router = Router([*routes, Mount("/", app)], lifespan=life)
    return Guard(router, service.limits, service.measures, token)


async def _respond(_request: Request, error: Exception) -> Response:
    """Answer with problem details."""
    if isinstance(error, Problem):
        return error.response()
    if not isinstance(error, HTTPException):
        return Problem("bad-request", "A parameter of the request is not valid.").response()
    status = error.status_code
    kinds = [kind for kind, (kind_status, _) in KINDS.items() if kind_status == status]
    kind = next(iter(kinds), "bad-request" if status < 500 else "failed")
    problem = Problem(kind, str(error.detail), dict(error.headers or {}))
    if not kinds:
        problem.details.status, problem.details.title = status, HTTPStatus(status).phrase
    return problem.response()


def _add_pages(app: FastAPI, service: Service) -> None:
    limits = service.limits

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        models = [served.info() for served in service.models.values()]
        return _page(
            "serve.html",
            "serve.js",
            models=[model.model_dump(exclude={"card"}) for model in models],
            cards={model.name: _as_html(model.card) for model in models if model.card},
            limits={
                "files": limits.max_files,
                "bytes": limits.request_bytes,
                "image": int(limits.max_image_mb * MB),
            },
            image_mb=f"{limits.max_image_mb:g}",
        )

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        about = app.openapi()
        objects = about["components"]["schemas"]
        return _page("api.html", paths=about["paths"], schemas=objects, kinds=KINDS)


@lru_cache(maxsize=4)
def _source(name: str) -> tuple[str, str]:
    """Return the text of a file, and its hash as a source of the content security policy."""
    text = files("lmd.serve").joinpath("templates", name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return text, f"'sha256-{digest}'"


def _page(template: str, script: str | None = None, **values: Any) -> HTMLResponse:
    """Fill in a page, which may run nothing but its own script."""
    values["style"], style_source = _source("serve.css")
    script_source = "'none'"
    if script is not None:
        values["script"], script_source = _source(script)
    policy = (
        f"default-src 'none'; script-src {script_source}; style-src {style_source}; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    text = _TEMPLATES.get_template(template).render(values, version=__version__)
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})


def _as_html(card: str) -> Markup:
    """Return a model card as HTML: its markup is text, and headings fit below the page's."""
    parser = MarkdownIt("js-default")  # without raw HTML
    tokens = parser.parse(_FRONT_MATTER.sub("", card))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 2, 6)}"
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def _add_information(app: FastAPI, service: Service) -> None:
    @app.get("/health", summary="Whether the server answers")
    async def health() -> schemas.Health:
        return schemas.Health(models=list(service.models))

    @app.get("/version", summary="The version of the server")
    async def version() -> schemas.Version:
        return schemas.Version(lmd=__version__)

    @app.get(
        "/metrics",
        summary="Counters for Prometheus",
        response_class=PlainTextResponse,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def counters() -> Response:
        return Response(service.counters(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/api/models", summary="All models")
    async def models() -> list[schemas.ModelInfo]:
        return [served.info() for served in service.models.values()]

    wrong = {**_PROBLEM, "description": "There is no such model."}

    @app.get("/api/models/{model}", summary="One model", responses={404: wrong})
    async def model_info(model: str) -> schemas.ModelInfo:
        return service.model(model).info()


def _uploads(service: Service) -> dict[str, tuple[Handler, dict[str, Any]]]:
    """Return what answers uploads and its description, by path."""
    limits = service.limits

    async def predict(request: Request) -> Response:
        served = service.model(request.path_params["model"])
        with served.batcher.places(1):
            form = await read_form(request, limits, field="image", most=1)
            return _json(await service.predict(served, form))

    async def batch(request: Request) -> Response:
        served = service.model(request.path_params["model"])
        form = await read_form(request, limits, field="images", most=limits.max_files)
        with served.batcher.places(len(form.images)):
            return _json(await service.predict_all(served, form))

    async def explain(request: Request) -> Response:
        served = service.model(request.path_params["model"])
        if not served.explains:
            raise Problem("no-heat-maps", served.predictor.engine.no_heat_maps)
        with served.batcher.places(1):
            form = await read_form(request, limits, field="image", most=1)
            return _json(await service.explain(served, form))

    one = _describe("Predict one image", "image", schemas.Answer)
    several = _describe("Predict several images", "images", schemas.Rows)
    heat = _describe("Explain one image", "image", schemas.Explained, 409)
    return {
        "/api/models/{model}/predict": (predict, one),
        "/api/models/{model}/batch": (batch, several),
        "/api/models/{model}/explain": (explain, heat),
    }


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


def _describe(summary: str, field: str, answer: type[BaseModel], *more: int) -> dict[str, Any]:
    """Describe a route that takes images in ``field`` and options."""
    file: dict[str, Any] = {"type": "string", "format": "binary"}
    if field == "images":
        file = {"type": "array", "items": file, "minItems": 1}
    form = {
        "type": "object",
        "properties": {field: file, "options": schemas.Options.model_json_schema()},
        "required": [field],
        "additionalProperties": False,
    }
    content = {"schema": form, "encoding": {"options": {"contentType": "application/json"}}}
    titles = dict(reversed(KINDS.values()))
    statuses = sorted({400, 404, 408, 413, 415, 422, 503, *more})
    return {
        "summary": summary,
        "response_model": answer,
        "responses": {of: {**_PROBLEM, "description": titles[of]} for of in statuses},
        "openapi_extra": {
            "parameters": [
                {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
            ],
            "requestBody": {"required": True, "content": {"multipart/form-data": content}},
        },
    }


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
        if self._bytes + length > 4 * most or self._open >= 2 * self._limits.queue:
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
