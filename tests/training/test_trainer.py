"""The loop itself: selection, schedule, failures, what it lends to a stage."""

import csv

import numpy as np
import pytest
import torch
from toys import MakeTrainer, assert_same, weights_of

from lmd.base.errors import LmdError
from lmd.methods import METHODS
from lmd.methods.method import Method
from lmd.methods.stage import Epoch, Stage, Stages, Task
from lmd.methods.supervised import Supervised
from lmd.model import Model
from lmd.training.loop import StageEpoch, StageTraining


def method_of(make: object) -> Method:
    return Method("probe", "Probe", make, "none", ("one",))  # type: ignore[arg-type]


def test_row_22_last_ships_the_last_epoch_and_best_the_best(make_trainer: MakeTrainer) -> None:
    """A second stage that ruins the model: ``last`` ships the ruin, ``best`` what came before."""

    class Ruin(Stage):
        def __init__(self, model: Model) -> None:
            super().__init__()
            self.model, self.epochs = model, 2

        def trainable(self) -> list[torch.nn.Parameter]:
            return []

        def class_weights(self, epoch: Epoch) -> list[torch.Tensor | None]:
            return []

        def start_epoch(self, epoch: Epoch) -> None:
            if epoch.index == 1:
                torch.nn.init.zeros_(self.model.classifier.weight)
                self.model.classifier.bias.data[:] = torch.tensor([0.0, 0.0, 0.0, 9.0])

    def probe(model: Model, task: Task) -> Stages:
        yield Supervised(model)
        yield Ruin(model)

    shipped = {}
    for select in ("last", "best"):
        trainer = make_trainer(method_of(probe), folder=select, select=select, epochs=6)
        trainer.fit()
        assert trainer.validation is not None
        shipped[select] = trainer.predict(trainer.validation).argmax(1)
        scores = [row["val_bacc"] for row in trainer.progress.history if row["stage"] == 2]
        assert scores[1] == 0.25 < scores[0]
    assert (shipped["last"] == 3).all()
    assert not (shipped["best"] == 3).all()


def test_history_has_a_row_per_epoch_and_a_column_per_term(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(METHODS["lmd_with_icc"], settings={"virtual_features": 100})
    trainer.fit()
    rows = list(csv.DictReader((trainer.folder / "history.csv").read_text().splitlines()))
    assert [(r["stage"], r["epoch"]) for r in rows] == [
        ("1", "1"),
        ("1", "2"),
        ("2", "1"),
        ("2", "2"),
    ]
    assert {"stage_name", "lr", "seconds", "val_bacc", "loss", "ce", "m_loss"} <= set(rows[0])
    assert rows[0]["m_loss"] == ""
    assert float(rows[2]["m_loss"]) > 0


def test_a_resumed_run_knows_what_its_stages_saw_and_chose(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(METHODS["logit_adjust_posthoc"])
    trainer.fit()
    first, second = trainer.progress.stages
    assert first["views"] == ["weak"]
    assert (first["name"], first["epochs"], first["chosen"]) == ("Supervised", 2, {})
    assert (second["name"], second["epochs"], second["views"]) == ("PosthocAdjustment", 1, [])
    assert second["chosen"] == {"tau": trainer.progress.history[-1]["tau"]}
    resumed = make_trainer(METHODS["logit_adjust_posthoc"])
    resumed.fit(resume=True)
    assert resumed.progress.stages == trainer.progress.stages


def test_features_are_those_of_the_evaluation_view(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(METHODS["ce"], counts=(20, 3))
    epoch = StageEpoch(StageTraining(trainer, Supervised(trainer.model), 0, trainer.folder), 0)
    trainer.model.encoder.eval()
    natural, labels = epoch.features("natural")
    assert torch.equal(labels, torch.from_numpy(trainer.train.labels))
    images = trainer.normalise(torch.from_numpy(trainer.train.pixels))
    with torch.no_grad():
        expected = trainer.model.features(images)
    assert torch.allclose(natural, expected, atol=1e-5)
    balanced, labels = epoch.features("balanced")
    assert len(balanced) == 23
    assert 4 <= int((labels == 1).sum()) <= 19
    for row, label in zip(balanced, labels, strict=True):
        same = natural[torch.from_numpy(trainer.train.labels) == label]
        assert (same == row).all(1).any()
    assert trainer.model.training
    assert not trainer.model.encoder.training


def test_the_same_seed_gives_the_same_model_and_another_does_not(
    make_trainer: MakeTrainer,
) -> None:
    found = []
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        trainer = make_trainer(METHODS["ce"], folder=folder, seed=seed)
        trainer.fit()
        found.append(weights_of(trainer.model))
    assert_same(found[0], found[1])
    assert any(not torch.equal(found[0][k], found[2][k]) for k in found[0])


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("method", ["lmd", "logit_adjust_posthoc"])
def test_without_validation_nothing_is_validated_or_chosen(
    make_trainer: MakeTrainer, method: str, empty: bool
) -> None:
    settings = {"virtual_features": 100} if method == "lmd" else {}
    trainer = make_trainer(METHODS[method], settings=settings)
    assert trainer.validation is not None
    none = trainer.validation.take(np.arange(0))
    trainer.validation = none if empty else None
    trainer.fit()
    assert all(row["val_bacc"] is None for row in trainer.progress.history)
    assert all(stage["chosen"] == {} for stage in trainer.progress.stages)
    # The values that are used instead are in the history.
    assert trainer.progress.history[-1]["weight_penalty" if method == "lmd" else "tau"] > 0


def test_a_resumed_stage_sees_the_same_recalls_to_the_last_bit(make_trainer: MakeTrainer) -> None:
    seen = []

    class Noting(Supervised):
        def start_epoch(self, epoch: Epoch) -> None:
            seen.append(epoch.val_recall)

    def probe(model: Model, task: Task) -> Stages:
        yield Noting(model)

    make_trainer(method_of(probe), folder="whole", epochs=2).fit()
    make_trainer(method_of(probe), folder="halves", epochs=1).fit()
    make_trainer(method_of(probe), folder="halves", epochs=2).fit(resume=True)
    assert seen[0] is None
    assert seen[1].dtype == torch.float64
    assert torch.equal(seen[1], seen[3])
    assert not torch.equal(seen[1], seen[1].float().double())


def test_weights_that_break_in_the_last_step_are_noticed(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(METHODS["ce"], epochs=1, batch_size=64, lr=1e30)
    with pytest.raises(LmdError, match="no longer finite"):
        trainer.fit()


def test_processor_time_is_kept_over_interruptions(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(METHODS["ce"], epochs=2)
    trainer.fit()
    first = trainer.progress.timings["stage 1 processor time"]
    # Views may be made by a process of its own, whose time counts as well.
    assert 0 < first < 60
    again = make_trainer(METHODS["ce"], epochs=3)
    again.fit(resume=True)
    assert again.progress.timings["stage 1 processor time"] > first
