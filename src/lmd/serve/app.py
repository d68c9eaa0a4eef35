"""The routes of the server and its pages, which load nothing from other places."""

import base64
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route, Router

from lmd import __version__
from lmd.serve import schemas
from lmd.serve.guard import Guard
from lmd.serve.limits import MB
from lmd.serve.schemas import KINDS, PROBLEM_TYPE, Problem
from lmd.serve.service import Service
from lmd.serve.uploads import read_form

Handler = Callable[[Request], Awaitable[Response]]
_PROBLEM: dict[str, Any] = {
    "model": schemas.ProblemDetails,
    "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
}
_TEMPLATES = Environment(
    loader=PackageLoader("lmd.serve", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)  # metadata for model hubs


def create_app(service: Service, token: str | None = None) -> Guard:
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
    uploads = _uploads(service)
    for path, (handler, description) in uploads.items():
        app.add_api_route(path, handler, methods=["POST"], **description)
    routes = [Route(path, handler, methods=["POST"]) for path, (handler, _) in uploads.items()]
    router = Router([*routes, Mount("/", app)], lifespan=life)
    return Guard(router, service.limits, service.measures, token)


async def _respond(_request: Request, error: Exception) -> Response:
    """Answer with problem details."""
    if isinstance(error, HTTPException):
        problem = Problem.of_status(error.status_code, str(error.detail))
        problem.headers.update(error.headers or {})
        return problem.response()
    if isinstance(error, Problem):
        return error.response()
    return Problem("bad-request", "A parameter of the request is not valid.").response()


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
