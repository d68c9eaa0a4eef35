"""One thread for a model, which answers the images of several requests in one batch."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.predict.predictor import Answers

Pixels = NDArray[np.uint8]
Answer = Callable[[Pixels], Answers]

BATCH = 32
WAIT = 0.005  # seconds that a batch waits for images that are being decoded
LOADED = 4  # times as long if more than a batch is on its way: then larger batches save time


class Full(Exception):
    """There is no place in the queue."""


@dataclass
class _Image:
    pixels: Pixels
    done: "Future[tuple[NDArray[np.float32], bool]]" = field(default_factory=Future)


@dataclass
class _Call:
    work: Callable[[], Any]
    done: "Future[Any]" = field(default_factory=Future)


class Batcher:
    """Answers images ``(S, S, 3)`` in batches, in a thread of its own.

    A request first takes places for its images (``places``), then decodes and submits them. So the
    thread knows how many images are on their way, and waits for them no longer than ``wait``
    seconds (``LOADED`` times as long under load); with nothing on its way it does not wait at all.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        capacity: int = 256,
        batch: int = BATCH,
        wait: float = WAIT,
        observe: Callable[[int, float], None] = lambda images, seconds: None,
    ) -> None:
        self._answer, self._observe = answer, observe
        self._capacity, self._batch, self._wait = capacity, batch, wait
        self._jobs: queue.SimpleQueue[_Image | _Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._taken = 0
        self._thread = threading.Thread(target=self._run, name="lmd-model", daemon=True)
        self._thread.start()

    @property
    def taken(self) -> int:
        """Images that are on their way: being decoded, in the queue, or with the model."""
        return self._taken

    @contextmanager
    def places(self, count: int) -> Iterator[None]:
        """Places for ``count`` images, or ``Full``."""
        with self._lock:
            if self._taken + count > self._capacity:
                raise Full
            self._taken += count
        try:
            yield
        finally:
            with self._lock:
                self._taken -= count

    def submit(self, pixels: Pixels) -> "Future[tuple[NDArray[np.float32], bool]]":
        """Probabilities ``(K,)`` and the flag of one image."""
        job = _Image(pixels)
        self._jobs.put(job)
        return job.done

    def call(self, work: Callable[[], Any]) -> "Future[Any]":
        """The result of ``work()``, which has the model to itself."""
        job = _Call(work)
        self._jobs.put(job)
        return job.done

    def close(self) -> None:
        """Finish what was submitted, then end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        job = self._jobs.get()
        while job is not None:
            if isinstance(job, _Image):
                job = self._gather(job)
            else:
                _settle(job)
                job = self._jobs.get()

    def _gather(self, first: _Image) -> _Image | _Call | None:
        """Fill a batch and answer it; returns the next job."""
        batch, rest = [first], None
        longer = LOADED if self._taken > self._batch else 1
        until = time.monotonic() + longer * self._wait
        while len(batch) < self._batch:
            late = len(batch) >= self._taken
            try:
                job = self._jobs.get(timeout=0 if late else max(until - time.monotonic(), 0))
            except queue.Empty:
                break
            if not isinstance(job, _Image):
                rest = (job,)
                break
            batch.append(job)
        self._compute([one for one in batch if one.done.set_running_or_notify_cancel()])
        return self._jobs.get() if rest is None else rest[0]

    def _compute(self, batch: list[_Image]) -> None:
        if not batch:
            return
        start = time.monotonic()
        try:
            probabilities, flags, _ = self._answer(np.stack([one.pixels for one in batch]))
        except Exception as error:
            for one in batch:
                one.done.set_exception(error)
            return
        self._observe(len(batch), time.monotonic() - start)
        for one, row, flag in zip(batch, probabilities, flags, strict=True):
            one.done.set_result((row, bool(flag)))


def _settle(job: _Call) -> None:
    if not job.done.set_running_or_notify_cancel():
        return
    try:
        job.done.set_result(job.work())
    except Exception as error:
        job.done.set_exception(error)
