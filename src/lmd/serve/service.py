"""The work behind the routes: decode in a few threads, answer in the thread of the model."""

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lmd.decisions.policy import Policy
from lmd.explain.explanation import Explanation
from lmd.explain.pictures import OPACITY, as_png, colour_map
from lmd.report.charts import data_uri, png_uri
from lmd.serve.batching import Full
from lmd.serve.limits import Limits
from lmd.serve.measures import Measures
from lmd.serve.models import Served
from lmd.serve.problems import Problem, busy
from lmd.serve.schemas import Answer, Case, Explained, Heat, ProblemDetails, Row, Rows
from lmd.serve.uploads import Decoded, Form, Upload, decode

T = TypeVar("T")
SIDE = 768  # longest side of a picture


class Service:
    """The models of a server and the threads that they share."""

    def __init__(self, models: dict[str, Served], limits: Limits, measures: Measures) -> None:
        self.models, self.limits, self.measures = models, limits, measures
        self._pool = ThreadPoolExecutor(min(os.cpu_count() or 1, 4), "lmd-decode")

    def model(self, name: str) -> Served:
        """The model of this name."""
        if name not in self.models:
            known = ", ".join(self.models)
            raise Problem("not-found", f"There is no such model; the models are: {known}.")
        return self.models[name]

    @contextmanager
    def places(self, served: Served, count: int) -> Iterator[None]:
        """Places in the queue of a model for ``count`` images; a ``Problem`` if it is full."""
        try:
            with served.batcher.places(count):
                yield
        except Full:
            raise busy("The queue of the model is full") from None

    async def predict(self, served: Served, form: Form) -> Answer:
        """The answer for the one image of a form."""
        return await self._answer(
            served, form.images[0], served.policy(form.options), form.options.picture
        )

    async def predict_all(self, served: Served, form: Form) -> Rows:
        """One row for each image; an image that cannot be read does not stop the others."""
        policy = served.policy(form.options)

        async def one(upload: Upload) -> Row:
            try:
                answer = await self._answer(served, upload, policy, form.options.picture)
            except Problem as problem:
                details = ProblemDetails.model_validate(problem.details())
                return Row(image=upload.name, problem=details)
            return Row(image=upload.name, answer=answer)

        rows = await asyncio.gather(*map(one, form.images))
        return Rows(model=served.name, rows=rows)

    async def explain(self, served: Served, form: Form) -> Explained:
        """Heat maps and nearest cases of the one image of a form."""
        upload = form.images[0]
        decoded = await self._aside(lambda: self._decoded(served, upload.data, picture=True))
        picture = decoded.picture
        assert picture is not None
        found: Explanation = await asyncio.wrap_future(
            served.batcher.call(lambda: served.explain(decoded.pixels, picture))
        )
        uris = await self._aside(lambda: [heat_uri(heat) for heat in found.heat])
        known = served.predictor.index is not None
        return Explained(
            model=served.name,
            image=upload.name,
            picture=await self._aside(lambda: data_uri(picture, SIDE, quality=90)),
            classes=[
                Heat(name=name, probability=float(p), heat=uri, peak=found.peak(i))
                for i, (name, p, uri) in enumerate(
                    zip(found.classes, found.probabilities, uris, strict=True)
                )
            ],
            neighbours=[
                Case(label=case.label, distance=case.distance, number=case.row)
                for case in found.neighbours
            ]
            if known
            else None,
            unlike_training=found.unlike_training,
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
        shown: list[NDArray[np.uint8]] = []

        def begin() -> "Future[tuple[NDArray[np.float32], bool]]":
            decoded = self._decoded(served, upload.data, picture=picture)
            if decoded.picture is not None:
                shown.append(decoded.picture)
            return served.batcher.submit(decoded.pixels)

        row, unlike = await self._chained(begin)
        answer = served.answer(upload.name, row, unlike, policy)
        if shown:
            answer.picture = await self._aside(lambda: data_uri(shown[0], SIDE, quality=90))
        return answer

    def _decoded(self, served: Served, data: bytes, *, picture: bool) -> Decoded:
        engine = served.predictor.engine
        try:
            return decode(data, engine.image_size, self.limits, picture=picture)
        except Problem as problem:
            self.measures.refused.labels(served.name, problem.kind).inc()
            raise

    async def _chained(self, begin: "Callable[[], Future[T]]") -> T:
        """The result of a future that is made aside; the loop is woken once, at its end."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(error: BaseException | None, found: "Future[T] | None" = None) -> None:
            if done.done():  # the request has been given up
                return
            if error is not None:
                done.set_exception(error)
            elif found is not None:
                done.set_result(found.result())

        pending: list[Future[T]] = []

        def ended(found: "Future[T]") -> None:
            if not found.cancelled():
                loop.call_soon_threadsafe(settle, found.exception(), found)

        def work() -> None:
            if done.done():
                return
            try:
                pending.append(begin())
                if done.done():
                    pending[0].cancel()
                pending[0].add_done_callback(ended)
            except Exception as error:
                loop.call_soon_threadsafe(settle, error)

        self._pool.submit(work)
        try:
            return await done
        finally:
            for future in pending:  # a request that was given up needs no answer
                future.cancel()

    async def _aside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def heat_uri(heat: NDArray[np.float32]) -> str:
    """``heat (H, W)`` from 0 to 1 as a transparent PNG that is laid over the picture."""
    level = (heat * 255).round().astype(np.uint8)
    cover = (OPACITY * 255 * heat.clip(0, 1)).round().astype(np.uint8)
    return png_uri(as_png(Image.fromarray(np.dstack([colour_map()[level], cover]))))
