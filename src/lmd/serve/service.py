"""The work behind the routes: decode in a few threads, answer in the thread of the model."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lmd.decisions.policy import Policy
from lmd.explain.explanation import Explanation, explain_pixels
from lmd.explain.pictures import OPACITY, as_png, colour_map
from lmd.report.charts import data_uri, png_uri
from lmd.serve.limits import Limits
from lmd.serve.models import Measures, Pixels, Scores, Served
from lmd.serve.schemas import Answer, Case, Explained, Heat, Problem, Row, Rows
from lmd.serve.uploads import Decoded, Form, Upload, decode

T = TypeVar("T")
SIDE = 768  # longest side of a picture


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

        async def row(upload: Upload) -> Row:
            try:
                answer = await self._answer(served, upload, policy, form.options.picture)
            except Problem as problem:
                return Row(image=upload.name, problem=problem.details)
            return Row(image=upload.name, answer=answer)

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
        uris = await self._aside(lambda: [_heat_uri(heat) for heat in explanation.heat])
        rows = zip(explanation.classes, explanation.probabilities, uris, strict=True)
        cases = [
            Case(label=case.label, distance=case.distance, number=case.row)
            for case in explanation.neighbours
        ]
        return Explained(
            model=served.name,
            image=upload.name,
            picture=await self._aside(lambda: data_uri(picture, SIDE, quality=90)),
            classes=[
                Heat(name=name, probability=float(p), heat=uri, peak=explanation.peak(i))
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
    return png_uri(as_png(Image.fromarray(np.dstack([colour_map()[level], cover]))))
