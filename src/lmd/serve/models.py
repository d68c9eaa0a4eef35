"""The models of a server: loading, the thread of each, what they count, and the service."""

import asyncio
import base64
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from lmd.base.errors import LmdError
from lmd.decisions.decide import Decide
from lmd.decisions.policy import Policy, policy_of
from lmd.explain.explanation import Explanation, explain_pixels, nearest_index
from lmd.explain.pictures import OPACITY, as_png, colour_map
from lmd.export.export import TracedEngine, onnx_is_there
from lmd.predict.engines import TorchEngine
from lmd.predict.onnx_files import OnnxEngine
from lmd.predict.predictor import Answers, Predictor, load
from lmd.report.charts import data_uri
from lmd.scoring.proportions import class_mix
from lmd.serve import schemas
from lmd.serve.limits import Limits
from lmd.serve.schemas import Answer, Explained, ModelInfo, Options, Problem, Rows, busy
from lmd.serve.uploads import Decoded, Form, Upload, decode

Pixels = NDArray[np.uint8]
Scores = tuple[NDArray[np.float32], bool]  # probabilities ``(K,)``; is it unlike training?
Engine = Literal["auto", "onnx", "torch"]
T = TypeVar("T")

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH = 32
WAIT = 0.005  # seconds that a batch waits for images that are being decoded
LOADED = 4  # times as long if more than a batch is on its way: then larger batches save time
MOST_CARD = 200_000  # characters
SIDE = 768  # longest side of a picture
# Where the message of an error names an option; the rest may be words of the user.
_OPTION = re.compile(r"\A--([a-z-]+)|(?<=\A--refer-above needs )--([a-z]+)")
disable_created_metrics()  # type: ignore[no-untyped-call]


class Measures:
    """Everything that a server counts, for Prometheus."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        gauge = partial(Gauge, registry=self._registry)
        seconds = partial(Histogram, buckets=SECONDS, registry=self._registry)
        sizes = partial(Histogram, buckets=(1, 2, 4, 8, 16, 32), registry=self._registry)
        self.requests = counter(
            "lmd_requests_total", "Requests by route and status.", ["route", "status"]
        )
        self.seconds = seconds("lmd_request_seconds", "Time of a request.", ["route"])
        self.images = counter("lmd_images_total", "Images answered by a model.", ["model"])
        self.refused = counter(
            "lmd_refused_images_total", "Images that could not be answered.", ["model", "problem"]
        )
        self.batches = sizes("lmd_batch_images", "Images in a batch of a model.", ["model"])
        self.model_seconds = seconds("lmd_batch_seconds", "Time of a batch.", ["model"])
        self.waiting = gauge(
            "lmd_images_on_their_way", "Images being decoded or queued.", ["model"]
        )
        self.open = gauge("lmd_requests_open", "Requests that are being answered.")

    def answered(self, model: str, images: int, seconds: float) -> None:
        """Count a batch of a model."""
        self.images.labels(model).inc(images)
        self.batches.labels(model).observe(images)
        self.model_seconds.labels(model).observe(seconds)

    def text(self) -> bytes:
        """Return the page for Prometheus."""
        return generate_latest(self._registry)


class _Job(NamedTuple):
    content: Any  # the pixels of an image, or a function that has the model to itself
    done: "Future[Any]"


class Batcher:
    """Answers images ``(S, S, 3)`` in batches, in a thread of its own.

    A request first takes places for its images (``places``), then decodes and submits them. So the
    thread knows how many images are on their way, and waits for them no longer than ``wait``
    seconds (``LOADED`` times as long under load); with nothing on its way it does not wait at all.
    """

    def __init__(
        self,
        answer: Callable[[Pixels], Answers],
        *,
        capacity: int = 256,
        batch: int = BATCH,
        wait: float = WAIT,
        observe: Callable[[int, float], None] = lambda images, seconds: None,
    ) -> None:
        self._answer, self._observe = answer, observe
        self._capacity, self._batch, self._wait = capacity, batch, wait
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.taken = 0  # images that are on their way: being decoded, queued, or with the model
        self._thread = threading.Thread(target=self._run, name="lmd-model", daemon=True)
        self._thread.start()

    @contextmanager
    def places(self, count: int) -> Iterator[None]:
        """Take places for ``count`` images; raise a ``Problem`` if there are fewer."""
        with self._lock:
            if self.taken + count > self._capacity:
                raise busy("The queue of the model is full")
            self.taken += count
        try:
            yield
        finally:
            with self._lock:
                self.taken -= count

    def submit(
        self, content: Pixels | Callable[[], Any], done: "Future[Any] | None" = None
    ) -> "Future[Any]":
        """Return the future ``Scores`` of an image, or the result of a function."""
        job = _Job(content, Future() if done is None else done)
        self._jobs.put(job)
        return job.done

    def close(self) -> None:
        """Finish what was submitted, then end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        job = self._jobs.get()
        while job is not None:
            if not callable(job.content):
                job = self._gather(job)
                continue
            if job.done.set_running_or_notify_cancel():
                try:
                    job.done.set_result(job.content())
                except Exception as error:
                    job.done.set_exception(error)
            job = self._jobs.get()

    def _gather(self, first: _Job) -> _Job | None:
        """Fill a batch and answer it; return the next job."""
        batch, rest = [first], None
        longer = LOADED if self.taken > self._batch else 1
        until = time.monotonic() + longer * self._wait
        while len(batch) < self._batch:
            late = len(batch) >= self.taken
            try:
                job = self._jobs.get(timeout=0 if late else max(until - time.monotonic(), 0))
            except queue.Empty:
                break
            if job is None or callable(job.content):
                rest = (job,)
                break
            batch.append(job)
        if batch := [job for job in batch if job.done.set_running_or_notify_cancel()]:
            self._compute(batch)
        return self._jobs.get() if rest is None else rest[0]

    def _compute(self, batch: list[_Job]) -> None:
        start = time.monotonic()
        try:
            probabilities, flags, _ = self._answer(np.stack([job.content for job in batch]))
        except Exception as error:
            for job in batch:
                job.done.set_exception(error)
            return
        self._observe(len(batch), time.monotonic() - start)
        for job, row, flag in zip(batch, probabilities, flags, strict=True):
            job.done.set_result((row, bool(flag)))


@dataclass(frozen=True)
class Served:
    """A loaded model with its name and its thread."""

    name: str
    predictor: Predictor
    batcher: Batcher
    card: str | None = None

    @property
    def explains(self) -> bool:
        """Whether the model has heat maps."""
        return isinstance(self.predictor.engine, TorchEngine)

    def policy(self, options: Options) -> Policy:
        """Return the policy of a request; raise a ``Problem`` if the model cannot follow it."""
        decide = Decide(options.prevalence, options.costs, options.coverage, options.refer_above)
        try:
            return policy_of(self.predictor.engine.spec, decide)
        except LmdError as error:
            text = _OPTION.sub(lambda m: (m[1] or m[2]).replace("-", "_"), str(error))
            raise Problem("bad-options", text) from None

    def answer(self, name: str, scores: Scores, policy: Policy) -> Answer:
        """Return the answer for one image from the scores of the model."""
        probabilities, unlike = scores
        decided, classes = policy.decide(probabilities[None]), self.predictor.classes
        chosen, shares = int(decided.chosen[0]), decided.probabilities[0].tolist()
        sets = decided.sets
        return Answer(
            image=name,
            predicted=classes[chosen],
            probability=shares[chosen],
            probabilities=dict(zip(classes, shares, strict=True)),
            set=None if sets is None else [classes[k] for k in np.flatnonzero(sets[0])],
            refer=bool(decided.refer[0]) if policy.refers else None,
            unlike_training=None if self.predictor.novelty is None else unlike,
        )

    def info(self) -> ModelInfo:
        """Return the description of the model."""
        predictor, engine = self.predictor, self.predictor.engine
        spec, by_onnx = engine.spec, isinstance(engine, OnnxEngine)
        images: list[int | None] = [None] * len(spec.classes)
        if spec.held_out is not None:
            images = [len(probabilities) for probabilities in spec.held_out.probabilities]
        shares = class_mix("training", spec.class_counts).tolist()
        fields = schemas.ClassInfo.model_fields
        rows = zip(spec.classes, spec.class_counts, shares, images, strict=True)
        return ModelInfo(
            name=self.name,
            method=spec.method,
            backbone=spec.backbone,
            engine="onnxruntime" if predictor.faster is not None or by_onnx else "torch",
            image_size=engine.image_size,
            temperature=spec.temperature,
            prior=None if spec.prior is None else spec.prior.kind,
            classes=[schemas.ClassInfo(**dict(zip(fields, row, strict=True))) for row in rows],
            coverage=any(images),
            explanations=self.explains,
            neighbours=predictor.index is not None,
            unlike_training=predictor.novelty is not None,
            lmd_version=spec.lmd_version,
            card=self.card,
        )


def load_models(
    paths: Sequence[Path],
    limits: Limits,
    measures: Measures,
    device: str = "cpu",
    engine: Engine = "torch",
) -> dict[str, Served]:
    """Load every model and give it a name of its own, from its folder or file.

    ``engine`` computes the predictions of run folders; heat maps always need torch. ``auto`` is
    onnxruntime on a CPU if it is installed and can compute the model, else torch.
    """
    predictors = [load(path, device) for path in paths]
    fast = engine == "onnx" or (engine == "auto" and device == "cpu" and onnx_is_there())
    models: dict[str, Served] = {}
    for path, predictor in zip(paths, predictors, strict=True):
        if fast and isinstance(predictor.engine, TorchEngine):
            try:
                predictor.faster = TracedEngine(predictor.engine)
            except LmdError as error:
                if engine == "onnx":
                    raise LmdError(f"--engine onnx: {path}: {error}; use --engine torch") from None
        nearest_index(predictor, None)  # read now, so that damage is found before the start
    for path, predictor in zip(paths, predictors, strict=True):
        name = _name(path, models)
        observe = partial(measures.answered, name)
        batcher = Batcher(predictor.answer, capacity=limits.queue, observe=observe)
        models[name] = Served(name, predictor, batcher, _card(predictor.folder))
    return models


def _card(folder: Path | None) -> str | None:
    """Return the model card beside a model, as Markdown; ``None`` if there is none."""
    path = folder / "model-card.md" if folder else None
    if path is None or not path.is_file():
        return None
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MOST_CARD)
    except OSError as error:
        raise LmdError(f"{path} cannot be read: {error.strerror}") from None


def _name(path: Path, taken: dict[str, Served]) -> str:
    """Return a name that fits into an address."""
    path = path.resolve()
    exported = path.suffix.lower() == ".onnx"
    name = path.stem if exported else path.parent.name if path.is_file() else path.name
    base = name = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"
    number = 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return name


class Service:
    """The models of a server and the threads that they share."""

    def __init__(self, models: dict[str, Served], limits: Limits, measures: Measures) -> None:
        self.models, self.limits, self.measures = models, limits, measures
        self._pool = ThreadPoolExecutor(min(os.cpu_count() or 1, 4), "lmd-decode")

    def model(self, name: str) -> Served:
        """Return the model of this name."""
        if name not in self.models:
            names = ", ".join(self.models)
            raise Problem("not-found", f"There is no such model; the models are: {names}.")
        return self.models[name]

    async def predict(self, served: Served, form: Form) -> Answer:
        """Return the answer for the one image of a form."""
        policy = served.policy(form.options)
        return await self._answer(served, form.images[0], policy, form.options.picture)

    async def predict_all(self, served: Served, form: Form) -> Rows:
        """Return one row for each image; one that cannot be read does not stop the others."""
        policy = served.policy(form.options)

        async def row(upload: Upload) -> schemas.Row:
            try:
                answer = await self._answer(served, upload, policy, form.options.picture)
            except Problem as problem:
                return schemas.Row(image=upload.name, problem=problem.details)
            return schemas.Row(image=upload.name, answer=answer)

        return Rows(model=served.name, rows=await asyncio.gather(*map(row, form.images)))

    async def explain(self, served: Served, form: Form) -> Explained:
        """Return heat maps and nearest cases of the one image of a form."""
        upload = form.images[0]
        decoded = await self._aside(lambda: self._decoded(served, upload, picture=True))
        picture = decoded.picture
        assert picture is not None
        work = served.batcher.submit(
            lambda: explain_pixels(served.predictor, decoded.pixels, picture)
        )
        explanation: Explanation = await asyncio.wrap_future(work)
        uris = await self._aside(lambda: [*map(_heat_uri, explanation.heat)])
        rows = zip(explanation.classes, explanation.probabilities, uris, strict=True)
        cases = [
            schemas.Case(label=case.label, distance=case.distance, number=case.row)
            for case in explanation.neighbours
        ]
        return Explained(
            model=served.name,
            image=upload.name,
            picture=await self._aside(lambda: data_uri(picture, SIDE, quality=90)),
            classes=[
                schemas.Heat(name=name, probability=float(p), heat=uri, peak=explanation.peak(i))
                for i, (name, p, uri) in enumerate(rows)
            ],
            neighbours=None if served.predictor.index is None else cases,
            unlike_training=explanation.unlike_training,
        )

    def counters(self) -> bytes:
        """Return the page for Prometheus."""
        for name, served in self.models.items():
            self.measures.waiting.labels(name).set(served.batcher.taken)
        return self.measures.text()

    def close(self) -> None:
        """Finish what was begun, and end all threads."""
        for served in self.models.values():
            served.batcher.close()
        self._pool.shutdown()

    async def _answer(
        self, served: Served, upload: Upload, policy: Policy, picture: bool
    ) -> Answer:
        shown: list[Pixels] = []

        def decoded() -> Pixels:
            image = self._decoded(served, upload, picture=picture)
            shown.extend([] if image.picture is None else [image.picture])
            return image.pixels

        answer = served.answer(upload.name, await self._scores(served, decoded), policy)
        if shown:
            answer.picture = await self._aside(lambda: data_uri(shown[0], SIDE, quality=90))
        return answer

    def _decoded(self, served: Served, upload: Upload, *, picture: bool) -> Decoded:
        try:
            size = served.predictor.engine.image_size
            return decode(upload.data, size, self.limits, picture=picture)
        except Problem as problem:
            self.measures.refused.labels(served.name, problem.kind).inc()
            raise

    async def _scores(self, served: Served, decoded: Callable[[], Pixels]) -> Scores:
        """Decode in a thread and score; the loop is woken once, and nothing is done for a request
        that was given up.
        """
        done: Future[Scores] = Future()

        def work() -> None:
            if done.cancelled():
                return
            try:
                served.batcher.submit(decoded(), done)
            except Exception as error:
                if done.set_running_or_notify_cancel():
                    done.set_exception(error)

        self._pool.submit(work)
        return await asyncio.wrap_future(done)

    async def _aside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def _heat_uri(heat: NDArray[np.float32]) -> str:
    """Return ``heat (H, W)`` from 0 to 1 as a transparent PNG that is laid over the picture."""
    level = (heat * 255).round().astype(np.uint8)
    cover = (OPACITY * 255 * heat.clip(0, 1)).round().astype(np.uint8)
    png = as_png(Image.fromarray(np.dstack([colour_map()[level], cover])))
    return "data:image/png;base64," + base64.b64encode(png).decode()
