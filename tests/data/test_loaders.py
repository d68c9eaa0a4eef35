import os
import socket
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.resource_sharer import DupFd

import numpy as np
import pytest
import torch
from toys import toy_images

from lmd.base.distributed import derive_seed
from lmd.data.loaders import _start_worker, batches_of, draw, training_batches
from lmd.model import Normalise


def test_an_epoch_as_it_comes_has_every_image_once() -> None:
    labels = np.repeat([0, 1], [30, 3])
    order = draw(labels, None, seed=1)
    assert sorted(order) == list(range(33))
    assert list(order) != list(range(33))
    assert np.array_equal(order, draw(labels, None, seed=1))
    assert not np.array_equal(order, draw(labels, None, seed=2))


def test_inverse_counts_balance_the_classes() -> None:
    labels = np.repeat([0, 1, 2], [900, 90, 10])
    counts = np.bincount(labels)
    drawn = np.concatenate([labels[draw(labels, 1 / counts, seed)] for seed in range(20)])
    shares = np.bincount(drawn) / len(drawn)
    assert np.allclose(shares, 1 / 3, atol=0.015)


def test_a_weight_of_zero_is_never_drawn() -> None:
    labels = np.repeat([0, 1], [5, 5])
    assert set(labels[draw(labels, np.array([0.0, 2.0]), 3)]) == {1}


@pytest.mark.parametrize("weights", [[-1.0, 1.0], [0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_impossible_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="class weights"):
        draw(np.array([0, 1]), np.array(weights), 0)


def test_a_last_batch_of_one_joins_its_neighbour() -> None:
    assert [len(b) for b in batches_of(np.arange(9), 4)] == [4, 5]
    assert [len(b) for b in batches_of(np.arange(10), 4)] == [4, 4, 2]
    assert [len(b) for b in batches_of(np.arange(1), 4)] == [1]


def test_workers_give_the_same_batches() -> None:
    images = toy_images((20, 10))

    def epoch(workers: int) -> list[torch.Tensor]:
        loader = training_batches(
            images, [None], views=("strong", "strong2"), batch_size=8, seed=5, workers=workers
        )
        return [
            t for streams in loader for raw in streams for t in (*raw.views.values(), raw.labels)
        ]

    for a, b in zip(epoch(0), epoch(2), strict=True):
        assert torch.equal(a, b)


def _share_a_file(main: Connection) -> None:
    _start_worker(0)
    main.send(DupFd(os.open(os.devnull, os.O_RDONLY)))  # as tensors of a batch are shared
    main.recv()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked on Linux only")
def test_a_worker_is_silent_if_the_main_process_stops(capfd: pytest.CaptureFixture[str]) -> None:
    context = get_context("fork")
    main, there = context.Pipe()
    worker = context.Process(target=_share_a_file, args=(there,))
    worker.start()
    shared = main.recv()
    with socket.socket(socket.AF_UNIX) as begun:  # a fetch that ends in its middle
        begun.connect(shared._id[0])
    os.close(shared.detach())  # one after the other, so the worker has noticed
    main.send("end")
    worker.join()
    assert capfd.readouterr().err == ""


def test_two_draws_of_a_view_differ() -> None:
    loader = training_batches(
        toy_images((20, 10)), [None], views=("strong", "strong2"), batch_size=8, seed=5, workers=0
    )
    views = next(iter(loader))[0].views
    assert not torch.equal(views["strong"], views["strong2"])


def test_streams_are_independent_and_equally_long() -> None:
    images = toy_images((20, 4))
    loader = training_batches(
        images, [None, np.array([1 / 20, 1 / 4])], views=("eval",), batch_size=6, seed=0, workers=0
    )
    batches = list(loader)
    assert len(batches) == 4
    first = torch.cat([streams[0][1] for streams in batches])
    second = torch.cat([streams[1][1] for streams in batches])
    assert sorted(first.tolist()) == [0] * 20 + [1] * 4
    assert (second == 1).sum() > 6


def test_normalise_is_channels_last_and_exact() -> None:
    normalise = Normalise((0.5, 0.4, 0.3), (0.2, 0.25, 0.5), torch.device("cpu"))
    images = torch.randint(0, 256, (2, 5, 5, 3), dtype=torch.uint8)
    found = normalise(images)
    expected = (images.double() / 255 - torch.tensor([0.5, 0.4, 0.3])) / torch.tensor(
        [0.2, 0.25, 0.5]
    )
    assert torch.allclose(found.double(), expected.permute(0, 3, 1, 2), atol=1e-5)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_seeds_are_pinned_across_machines() -> None:
    assert derive_seed(0, "epoch", 1) == 123735704575244949
