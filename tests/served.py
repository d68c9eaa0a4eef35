"""A small model on disk with all that a server can show, and a client for it."""

import asyncio
import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from PIL import Image

from lmd.explain.neighbours import Neighbours
from lmd.model import build_model
from lmd.model.files import HeldOut, ModelSpec, Prior, save_model
from lmd.predict.novelty import Novelty
from lmd.serve.app import create_app
from lmd.serve.limits import Limits
from lmd.serve.models import Measures, Service, load_models

SIZE = 16
CLASSES = ("melanoma", "naevus", "keratosis")


def shipped(folder: Path) -> Path:
    """A run folder's model with answers that differ between images; it is not trained."""
    folder.mkdir(parents=True, exist_ok=True)
    model, preprocessing = build_model("resnet8", "none", 3, image_size=SIZE, seed=3)
    with torch.no_grad():
        model.classifier.weight.mul_(30)
    rng = np.random.default_rng(0)
    held_out = tuple(tuple(sorted(rng.uniform(0.2, 1, 30).tolist())) for _ in CLASSES)
    width = model.classifier.in_features
    spec = ModelSpec(
        CLASSES,
        "resnet8",
        "linear",
        width,
        preprocessing,
        "CE",
        (60, 30, 10),
        prior=Prior("training", (0.6, 0.3, 0.1)),
        held_out=HeldOut(("head", "medium", "tail"), held_out),
    )
    digest = save_model(model, folder, spec)
    features = rng.normal(size=(12, width)).astype(np.float32)
    Neighbours.of(features, np.arange(12) % 3, CLASSES).save(folder, digest)
    basis, distances = np.eye(width, 2, dtype=np.float32), np.full(9, 20, np.float32)
    Novelty(features[:3], basis, np.ones(2), 1.0, distances).save(folder, digest)
    return folder


def photo(seed: int = 0, size: tuple[int, int] = (60, 40)) -> Image.Image:
    """A smooth picture, wide by high."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The contents of a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def make_service(*paths: Path, **limits: Any) -> Service:
    """The models at ``paths``, behind these limits."""
    bounds, measures = Limits(**limits), Measures()
    return Service(load_models(paths, bounds, measures), bounds, measures)


class WebClient:
    """Sends requests to the application, without a network and one after the other."""

    def __init__(self, service: Service, token: str | None, headers: dict[str, str]) -> None:
        self._runner = asyncio.Runner()
        transport = httpx.ASGITransport(create_app(service, token), raise_app_exceptions=False)
        self._client = httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers
        )

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._client.get(path, **options))

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._client.post(path, **options))

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._client.request(method, path, **options))

    def together(self, path: str, every: list[dict[str, Any]]) -> list[httpx.Response]:
        """The answers to requests that are sent at the same time."""

        async def send() -> list[httpx.Response]:
            return await asyncio.gather(*(self._client.post(path, **each) for each in every))

        return self._runner.run(send())

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


@contextmanager
def client(service: Service, token: str | None = None, **headers: str) -> Iterator[WebClient]:
    """A client of the real application; the service is closed at the end."""
    found = WebClient(service, token, headers)
    try:
        yield found
    finally:
        found.close()
        service.close()


def is_problem(response: Any) -> bool:
    """Whether an answer is a problem as RFC 9457 wants it."""
    body = response.json()
    right = response.headers["content-type"] == "application/problem+json"
    return right and body["status"] == response.status_code and {"type", "title"} <= body.keys()


@contextmanager
def started(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    command = [sys.executable, "-m", "lmd", "serve", str(folder), "--port", "0", *options]
    command += [] if "--engine" in options else ["--engine", "torch"]  # which starts faster
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        page = next((line for line in lines if line.startswith("The page: ")), None)
        assert page is not None, "the server did not start"
        yield process, page.split()[-1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
