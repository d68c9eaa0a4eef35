"""The running average of weights: its decay, its values, and where it is shipped."""

import pytest
import torch
from torch import nn
from toys import MakeTrainer, assert_same, state, weights_of

from lmd.methods.method import Method
from lmd.methods.stage import Batch, Stage, Stages, Task, Terms
from lmd.methods.supervised import (
    RunningAverage,
    Supervised,
    follow,
    horizon_limit,
)
from lmd.model import Model


def test_the_decay_of_a_horizon() -> None:
    assert horizon_limit(0.1, 200) == pytest.approx(0.95)
    assert horizon_limit(0.0, 200) == horizon_limit(0.001, 200) == 0


def test_with_a_long_horizon_it_is_the_mean_of_all_weights_and_buffers_are_the_newest() -> None:
    torch.manual_seed(0)
    source = nn.BatchNorm1d(3)
    average = RunningAverage(source)
    seen = []
    for t in range(5):
        nn.init.normal_(source.weight)
        source(torch.randn(4, 3))
        seen.append(source.weight.detach().clone())
        follow(average.model, source, 1 - 1 / (t + 1))
    torch.testing.assert_close(average.model.weight, torch.stack(seen).mean(0))
    assert torch.equal(average.model.running_mean, source.running_mean)
    before = average.model.running_var.clone()
    source(torch.randn(4, 3))
    follow(average.model, source, 0.5, buffers=False)
    assert torch.equal(average.model.running_var, before)


def test_exchanging_and_restoring_are_inverse_and_restoring_is_done_once() -> None:
    source = nn.Linear(2, 2)
    average = RunningAverage(source)
    nn.init.normal_(source.weight)
    own, mean = state(source), state(average.model)
    average.exchange(source)
    assert_same(state(source), mean)
    assert_same(state(average.model), own)
    for _ in range(2):
        if average.inside:
            average.exchange(source)
        assert_same(state(source), own)


class Recorded(Stage):
    """A stage that notes the trained weights after each step of another."""

    def __init__(self, inner: Supervised, steps: list[torch.Tensor]) -> None:
        super().__init__(inner.part)
        self.inner, self.steps = inner, steps

    def class_weights(self, run: object) -> list[torch.Tensor | None]:
        return [None]

    def start_epoch(self, run: object) -> None:
        self.inner.start_epoch(run)

    def step(self, optimizer: torch.optim.Optimizer, *batches: Batch) -> Terms:
        model, average = self.inner.model, self.inner.average
        terms = self.inner.step(optimizer, *batches)
        trained = average.model if average.inside else model
        self.steps.append(trained.classifier.weight.detach().clone())
        return terms


def test_the_average_is_what_a_stage_ships_and_training_goes_on_without_it(
    make_trainer: MakeTrainer,
) -> None:
    averaged: list[torch.Tensor] = []

    def one(model: Model, task: Task) -> Stages:
        yield Recorded(Supervised(model, average=0.5), averaged)

    trainer = make_trainer(Method("probe", "Probe", one, "none", ("one",)), epochs=3)
    trainer.fit()
    total = len(averaged)
    assert total == 9
    expected = averaged[0].clone()
    for t, weight in enumerate(averaged):
        decay = min(1 - 1 / (t + 1), 1 - 1 / (0.5 * total))
        expected = decay * expected + (1 - decay) * weight
    torch.testing.assert_close(trainer.model.classifier.weight.detach(), expected)
    assert not torch.allclose(expected, averaged[-1])


def test_training_itself_does_not_feel_the_average(make_trainer: MakeTrainer) -> None:
    """With a horizon of nothing the average is the newest weight: as if there were none."""
    found = []
    for average in (None, 0.0):

        def one(model: Model, task: Task, average: float | None = average) -> Stages:
            yield Supervised(model, average=average)

        method = Method("probe", "Probe", one, "none", ("one",))
        trainer = make_trainer(method, folder=str(average), epochs=3, momentum=0.9)
        trainer.fit()
        found.append(weights_of(trainer.model))
    assert_same(*found)
