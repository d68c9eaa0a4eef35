"""A rehearsal for GPUs: every stage takes its steps on torch's ``meta`` device.

There, a tensor that was made on another device is an error, and so is a value that is read back,
which on a GPU would wait for all work in its queue.
"""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import World, optimise, quick

from lmd.methods import METHODS
from lmd.methods.lmd import gaussians
from lmd.methods.stage import Batch, Stage

PROFILES = [("lmd", name, {}) for name in METHODS["lmd"].profiles]
cholesky = gaussians.cholesky
CHANGED = [
    *[("lmd_with_icc", "corrected", {"sam": 0.1, "last_e_step": True}), ("cc_sam", "authors", {})],
    *[("gcl", "cifar", {}), ("lmd", "official", {"last_e_step": True, "sam": 0.1})],
    *[("rs", "default", {"view": "both", "average": 0.1}), ("lmd", "paper", {"average": 0.1})],
]
ROWS = [(key, "default", {}) for key in METHODS]


def on_meta(batch: Batch) -> Batch:
    views = {name: view.to("meta") for name, view in batch.views.items()}
    return Batch(views, batch.labels.to("meta"), batch.labels)


def factor(matrix: Tensor) -> Tensor:
    return torch.linalg.cholesky(matrix) if matrix.is_meta else cholesky(matrix)


def take_steps(world: World, stage: Stage) -> int:
    """Start an epoch on the CPU, as a stage may read numbers there, then go on without any."""
    optimizer, epoch = optimise(stage), world.at()
    stage.start_epoch(epoch)
    weights = stage.class_weights(epoch)
    batches = list(world.batches(stage, weights))
    stage.to("meta")
    optimizer = optimise(stage)
    for streams in batches:
        assert optimizer is not None
        terms = stage.step(optimizer, *map(on_meta, streams))
        assert all(term.is_meta for term in terms.values())
    return len(batches)


@pytest.mark.parametrize(("key", "profile", "settings"), ROWS + PROFILES + CHANGED, ids=str)
def test_no_step_waits_for_the_device(
    key: str, profile: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The meta device has no autocast.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    # What was derived from moments at the start of the epoch does not move with them.
    monkeypatch.setattr(gaussians, "cholesky", factor)
    settings = METHODS[key].settings({**quick(key), **settings}, profile)
    steps = []
    for index in range(len(METHODS[key].stages)):
        world = World([6, 3, 1])
        stages = world.start(key, **settings)
        for _ in range(index):
            next(stages)
        steps.append(take_steps(world, next(stages)))
    assert steps[0] > 0


def test_the_first_step_factorises_no_covariances(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World([6, 3, 1])
    settings = {**quick("lmd"), "last_e_step": True, "fdc_form": "difference"}
    stage = world.to_stage("lmd_with_icc", 1, **settings)
    optimizer, epoch = optimise(stage), world.at()
    stage.start_epoch(epoch)
    monkeypatch.setattr(gaussians, "cholesky", None)
    assert optimizer is not None
    terms = stage.step(optimizer, *next(world.batches(stage, stage.class_weights(epoch))))
    assert {"psi", "phi"} <= terms.keys()
