"""The optimiser and the schedule of the learning rate."""

from typing import Any

import numpy as np
import pytest
from torch.nn import functional as F
from torch.optim import Optimizer
from toys import MakeTrainer

from lmd.methods import METHODS
from lmd.methods.method import Method
from lmd.methods.stage import Batch, Rate, Stage, Stages, Task, Terms
from lmd.model import Model
from lmd.runs.protocol import Protocol


def test_row_08_optimiser_of_stage_1_is_the_released_codes() -> None:
    protocol = Protocol()
    assert (protocol.lr, protocol.momentum, protocol.weight_decay) == (0.01, 0.9, 0.0)
    assert (protocol.schedule, protocol.epochs, protocol.batch_size) == ("constant", 100, 128)


def test_cosine_schedule_reaches_zero_and_constant_stays(make_trainer: MakeTrainer) -> None:
    for schedule, last in (
        ("constant", 0.01),
        ("cosine", 0.01 * 0.5 * (1 + np.cos(np.pi * 2 / 3))),
    ):
        trainer = make_trainer(METHODS["ce"], folder=schedule, epochs=3, schedule=schedule)
        trainer.fit()
        assert trainer.progress.history[-1]["lr"] == pytest.approx(last)


class Counting(Stage):
    """Trains the classifier alone and remembers the rates of its steps."""

    def __init__(self, model: Model, **budget: Any) -> None:
        super().__init__(model.classifier, **budget)
        self.model, self.seen = model, []

    def loss(self, *batches: Batch) -> Terms:
        (batch,) = batches
        features = self.model.features(batch.views["label"])
        assert not features.requires_grad, "a frozen encoder has no graph"
        return {"loss": F.cross_entropy(self.model.classifier(features), batch.labels)}

    def step(self, optimizer: Optimizer, *batches: Batch) -> Terms:
        self.seen.append(optimizer.param_groups[0]["lr"])
        return super().step(optimizer, *batches)


def fit(make_trainer: MakeTrainer, budget: dict[str, Any], **protocol: Any) -> Any:
    stages: list[Counting] = []

    def two(model: Model, task: Task) -> Stages:
        yield Counting(model)
        stages.append(Counting(model, **budget))
        yield stages[0]

    method = Method("probe", "Probe", two, "none", ("one", "two"))
    trainer = make_trainer(method, folder="-".join(budget), stage2_lr=0.3, **protocol)
    trainer.fit()
    trainer.rates = stages[0].seen
    return trainer


def test_a_stage_has_the_budget_of_the_protocol_unless_it_has_its_own(
    make_trainer: MakeTrainer,
) -> None:
    plain = fit(make_trainer, {}, schedule="cosine").progress.stages[1]
    assert (plain["epochs"], plain["lr"], plain["schedule"]) == (2, 0.3, "cosine")
    # Batches of 8; the rate is for 64. It also wins over the protocol's rate of second stages.
    budget = {"epochs": 4, "lr": Rate(0.2, 64), "schedule": "cosine", "weight_decay": 0.5}
    trainer = fit(make_trainer, budget)
    own = trainer.progress.stages[1]
    assert (own["epochs"], own["lr"], own["schedule"]) == (4, pytest.approx(0.025), "cosine")
    steps = len(trainer.rates)
    expected = [0.025 * 0.5 * (1 + np.cos(np.pi * i / steps)) for i in range(steps)]
    assert trainer.rates == pytest.approx(expected)
    constant = fit(make_trainer, {"schedule": "constant"}, schedule="cosine")
    assert set(constant.rates) == {0.3}


def test_a_stage_that_updates_no_weights_has_no_learning_rate(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(METHODS["cicl"], settings={"classifier_epochs": 1}, epochs=1)
    trainer.fit()
    first, statistics, probe = trainer.progress.stages
    assert (first["lr"], probe["schedule"]) == (0.01, "cosine")
    assert (statistics["lr"], statistics["schedule"]) == (None, None)
    assert statistics["views"] == ["eval"]
    rates = {row["stage_name"]: row["lr"] for row in trainer.progress.history}
    assert rates["Statistics"] is None
    assert rates["Contrastive"] == 0.01


def test_a_class_s_own_budget_is_kept_unless_one_is_given() -> None:
    class Once(Stage):
        epochs = 1

    assert Once().epochs == 1
    assert Once(epochs=3).epochs == 3
    assert Once().lr is None
