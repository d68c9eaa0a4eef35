"""The routes of the server."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from lmd import __version__
from lmd.serve import measures, problems
from lmd.serve.direct import PREFIX, Direct, Handler
from lmd.serve.forms import read_form
from lmd.serve.guard import Guard
from lmd.serve.page import api_page, front_page
from lmd.serve.problems import Problem
from lmd.serve.schemas import (
    Answer,
    Explained,
    Health,
    ModelInfo,
    Options,
    ProblemDetails,
    Rows,
    Version,
)
from lmd.serve.service import Service

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_PROBLEM: dict[str, Any] = {
    "model": ProblemDetails,
    "content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
}


def create_app(service: Service, token: str | None = None) -> "ASGIApp":
    """The application, behind its guard."""
    app = Direct(routes(service), handlers(service))
    return Guard(app, service.limits, service.measures, token)


def routes(service: Service) -> FastAPI:
    """The application without its guard."""

    @asynccontextmanager
    async def life(_app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="lmd",
        version=__version__,
        description="Predictions and explanations of classifiers of medical images.",
        docs_url=None,  # the pages of the framework load scripts from other sites
        redoc_url=None,
        lifespan=life,
    )
    _add_errors(app)
    _add_pages(app, service)
    _add_information(app, service)
    _add_answers(app, handlers(service))
    return app


def _add_errors(app: FastAPI) -> None:
    def respond(problem: Problem) -> Response:
        headers = {"content-type": problems.MEDIA_TYPE, **problem.headers}
        return Response(problem.body(), problem.status, headers)

    async def of_ours(_request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return respond(error)

    async def of_framework(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        found = problems.of_status(error.status_code, str(error.detail))
        found.headers.update(error.headers or {})
        return respond(found)

    async def of_parameters(_request: Request, _error: Exception) -> Response:
        return respond(Problem("bad-request", "A parameter of the request is not valid."))

    app.add_exception_handler(Problem, of_ours)
    app.add_exception_handler(HTTPException, of_framework)
    app.add_exception_handler(RequestValidationError, of_parameters)


def _add_pages(app: FastAPI, service: Service) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        text, policy = front_page([served.info() for served in service.models.values()], service)
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        text, policy = api_page(app.openapi())
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})


def _add_information(app: FastAPI, service: Service) -> None:
    wrong: dict[int | str, dict[str, Any]] = {
        404: {**_PROBLEM, "description": "There is no such model."}
    }

    @app.get("/health", summary="Whether the server answers")
    async def health() -> Health:
        return Health(models=list(service.models))

    @app.get("/version", summary="The version of the server")
    async def version() -> Version:
        return Version(lmd=__version__)

    @app.get(
        "/metrics",
        summary="Counters for Prometheus",
        response_class=PlainTextResponse,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def counters() -> PlainTextResponse:
        return PlainTextResponse(service.text(), media_type=measures.MEDIA_TYPE)

    @app.get("/api/models", summary="All models")
    async def models() -> list[ModelInfo]:
        return [served.info() for served in service.models.values()]

    @app.get("/api/models/{model}", summary="One model", responses=wrong)
    async def model_info(model: str) -> ModelInfo:
        return service.model(model).info()


def handlers(service: Service) -> dict[str, Handler]:
    """What answers uploads, by the last part of the address."""
    limits = service.limits

    async def predict(model: str, request: Request) -> Response:
        served = service.model(model)
        with service.places(served, 1):
            form = await read_form(request, limits, field="image", most=1)
            return _json(await service.predict(served, form))

    async def batch(model: str, request: Request) -> Response:
        served = service.model(model)
        form = await read_form(request, limits, field="images", most=limits.files)
        with service.places(served, len(form.images)):
            return _json(await service.predict_all(served, form))

    async def explain(model: str, request: Request) -> Response:
        served = service.model(model)
        if not served.explains:
            raise Problem("no-heat-maps", served.predictor.engine.no_heat_maps)
        with service.places(served, 1):
            form = await read_form(request, limits, field="image", most=1)
            return _json(await service.explain(served, form))

    return {"predict": predict, "batch": batch, "explain": explain}


def _add_answers(app: FastAPI, found: Mapping[str, Handler]) -> None:
    """The handlers as routes, for the description of the API; requests take the direct way."""
    about: dict[str, tuple[str, dict[str, Any]]] = {
        "predict": ("Predict one image", _upload("image", Answer)),
        "batch": ("Predict several images", _upload("images", Rows)),
        "explain": ("Explain one image", _upload("image", Explained, 409)),
    }
    for action, (summary, details) in about.items():
        app.add_api_route(
            f"{PREFIX}{{model}}/{action}",
            found[action],
            methods=["POST"],
            summary=summary,
            **details,
        )


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")


def _upload(field: str, answer: type[BaseModel], *more: int) -> dict[str, Any]:
    """The description of a route that takes images in ``field`` and options."""
    file: dict[str, Any] = {"type": "string", "format": "binary"}
    if field == "images":
        file = {"type": "array", "items": file, "minItems": 1}
    form = {
        "type": "object",
        "properties": {field: file, "options": Options.model_json_schema()},
        "required": [field],
        "additionalProperties": False,
    }
    content = {"schema": form, "encoding": {"options": {"contentType": "application/json"}}}
    statuses = sorted({400, 404, 408, 413, 415, 422, 503, *more})
    titles = {kind.status: kind.title for kind in reversed(problems.KINDS.values())}
    return {
        "response_model": answer,
        "responses": {of: {**_PROBLEM, "description": titles[of]} for of in statuses},
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"multipart/form-data": content}}
        },
    }
