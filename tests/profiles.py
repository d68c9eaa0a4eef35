"""LMD's rows started under a profile, for the tests of each row of the table of differences."""

import pytest
import torch
from toys import FakeEpoch, small_model

from lmd.methods.lmd.rows import METHODS
from lmd.methods.stage import Batch, Task, prepare

ROWS = {method.key: method for method in METHODS}
PROFILES = ("corrected", "paper", "official")
COUNTS = (30, 10, 4, 1)
# Raw Gram matrices make steep losses.
LR = {"corrected": 1e-2, "paper": 1e-4, "official": 1e-2}
every_profile = pytest.mark.parametrize("profile", PROFILES)


def data(counts=COUNTS, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    shift = torch.randn(len(counts), 3, 1, 1, generator=torch.Generator().manual_seed(9))
    weak = torch.randn(len(labels), 3, 8, 8, generator=g) + shift[labels]
    strong = 1.4 * weak + 0.5 * torch.randn(len(labels), 3, 8, 8, generator=g)
    return Batch({"weak": weak, "strong": strong, "label": weak}, labels)


def recipe(profile, key="lmd", counts=COUNTS, **given):
    model = small_model(len(counts))
    task = Task(torch.tensor(counts), 16)
    return model, ROWS[key].start(model, task, ROWS[key].settings(given, profile))


def stage_one(profile, steps=100, **given):
    """RRL with the length of its run known, before its first step."""
    _, stages = recipe(profile, **given)
    stage = next(stages)
    groups = prepare(stage)
    batch = data()
    epoch = FakeEpoch(stage.model, batch.views["weak"], batch.labels, total=steps)
    stage.start_epoch(epoch)
    return stage, batch, torch.optim.SGD(groups, lr=LR[profile])


def stage_two(profile, key="lmd", counts=COUNTS, **given):
    model, stages = recipe(profile, key, counts, **given)
    next(stages)
    stage = next(stages)
    groups = prepare(stage)
    batch = data(counts)
    return stage, groups, FakeEpoch(model, batch.views["weak"], batch.labels, total=3), batch


QUICK = {"virtual_features": 40, "m_step": "sgd"}
