"""Images of several requests share a batch, and the queue has an end."""

import threading
import time

import numpy as np
import pytest

from lmd.predict.predictor import Answers
from lmd.serve.models import Batcher
from lmd.serve.schemas import Problem


class Model:
    """Answers with the first byte of each image, and can be held."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.go = threading.Event()
        self.go.set()

    def __call__(self, pixels):
        self.go.wait(10)
        self.sizes.append(len(pixels))
        if (pixels == 99).any():
            raise ValueError("99")
        return Answers(pixels[:, 0, 0, :1].astype(np.float32), pixels[:, 0, 0, 0] > 5, None)


def image(value: int):
    return np.full((2, 2, 3), value, np.uint8)


def test_waiting_images_share_a_batch_and_get_their_own_answers() -> None:
    model = Model()
    batcher = Batcher(model, batch=4)
    model.go.clear()
    with batcher.places(10):
        found = [batcher.submit(image(i)) for i in range(10)]
        model.go.set()
        answers = [each.result(10) for each in found]
    assert [row[0] for row, _ in answers] == list(range(10))
    assert [flag for _, flag in answers] == [i > 5 for i in range(10)]
    assert sum(model.sizes) == 10
    assert max(model.sizes) == 4
    batcher.close()


def test_a_batch_waits_for_images_that_are_being_decoded() -> None:
    model = Model()
    batcher = Batcher(model, wait=5)
    with batcher.places(2):
        first = batcher.submit(image(1))
        threading.Timer(0.05, lambda: batcher.submit(image(2))).start()
        first.result(10)
    assert model.sizes == [2]
    with batcher.places(1):  # nobody else is coming, so it does not wait for 5 s
        batcher.submit(image(1)).result(2)
    batcher.close()


def test_a_batch_waits_longer_if_more_than_one_batch_is_on_its_way() -> None:
    for places, sizes in ((2, [1, 1]), (3, [2])):
        model = Model()
        batcher = Batcher(model, batch=2, wait=0.2)
        with batcher.places(places):
            first = batcher.submit(image(1))
            time.sleep(0.4)  # longer than the wait, shorter than that under load
            second = batcher.submit(image(2))
            first.result(10)
            second.result(10)
        assert model.sizes == sizes
        batcher.close()


def test_the_queue_has_an_end() -> None:
    batcher = Batcher(Model(), capacity=3)
    with batcher.places(2):
        with pytest.raises(Problem, match="is full"), batcher.places(2):
            pass
        with batcher.places(1):
            assert batcher.taken == 3
    assert batcher.taken == 0
    batcher.close()


def test_an_error_reaches_its_batch_and_the_thread_goes_on() -> None:
    batcher = Batcher(Model())
    with pytest.raises(ValueError, match="99"):
        batcher.submit(image(99)).result(10)
    assert batcher.submit(lambda: 7).result(10) == 7
    assert batcher.submit(image(3)).result(10)[0] == 3
    batcher.close()


def test_closing_finishes_what_was_submitted() -> None:
    model = Model()
    batcher = Batcher(model, batch=2)
    model.go.clear()
    found = [batcher.submit(image(i)) for i in range(5)] + [batcher.submit(lambda: None)]
    cancelled = batcher.submit(image(1))
    assert cancelled.cancel()
    threading.Timer(0.05, model.go.set).start()
    batcher.close()
    assert all(each.done() for each in found)
    assert sum(model.sizes) == 5
