"""The worked example of docs/adding-a-method.md."""

from typing import Any

import pytest
import torch
from documentation import run_python
from toys import MakeTrainer, weights_of

from lmd.model import Model


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return run_python("adding-a-method.md", {"__name__": "example"})


def test_the_formula_gives_the_reference_number(example: dict[str, Any]) -> None:
    logits = torch.tensor(
        [
            [2.0, 0.5, -1.0, 0.1],
            [0.3, 1.2, 0.0, -0.7],
            [1.5, 0.2, 0.4, -0.3],
            [0.8, -0.2, 0.1, 0.6],
            [-0.5, 0.9, 0.3, 0.2],
        ]
    )
    labels = torch.tensor([0, 1, 2, 3, 0])
    strengths = example["smoothing_strengths"](torch.tensor([100.0, 40.0, 10.0, 4.0]), 0.3)
    found = example["smoothed_loss"](logits, labels, strengths)
    assert float(found) == pytest.approx(1.2974108, abs=1e-5)
    plain = example["smoothed_loss"](logits, labels, torch.zeros(4))
    assert float(plain) == pytest.approx(1.2118708, abs=1e-6)


def test_balanced_counts_do_not_divide_by_zero(example: dict[str, Any]) -> None:
    assert (example["smoothing_strengths"](torch.tensor([5.0, 5.0]), 0.3) == 0).all()


def test_it_trains_in_two_stages_and_ships_a_plain_model(
    example: dict[str, Any], make_trainer: MakeTrainer
) -> None:
    (method,) = example["METHODS"]
    assert method.settings({})["most"] == 0.3
    assert method.mix({}) == "uniform"
    assert method.outline({"classifier_epochs": 3})[-1].epochs == 3
    trainer = make_trainer(method)
    trainer.fit()
    assert {row["stage"] for row in trainer.progress.history} == {1, 2}
    assert type(trainer.model) is Model
    assert all(torch.isfinite(v).all() for v in weights_of(trainer.model).values())
