"""Batches of an epoch: the view that label losses see is the protocol's choice."""

import pytest
import torch
from toys import MakeTrainer, assert_same, weights_of

from lmd.methods import METHODS
from lmd.methods.method import Method
from lmd.methods.stage import Batch, Stage, Stages, Task, Terms
from lmd.model import Model

NAMES = ("label", "weak", "strong")


class Watching(Stage):
    """Remembers the views of its batches."""

    views = NAMES

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.seen = model, []

    def loss(self, *batches: Batch) -> Terms:
        (batch,) = batches
        assert set(batch.views) == set(NAMES)
        self.seen.append(batch.views)
        return {"loss": self.model(batch.views["label"]).sum() * 0}


def watch(model: Model, task: Task) -> Stages:
    yield Watching(model)


@pytest.mark.parametrize("views", ["weak", "strong"])
def test_the_label_view_is_the_protocol_s_and_is_made_once(
    views: str, make_trainer: MakeTrainer
) -> None:
    seen: list[dict[str, torch.Tensor]] = []

    def keep(stages: Stages) -> Stages:
        for stage in stages:
            yield stage
            assert isinstance(stage, Watching)
            seen.extend(stage.seen)

    method = Method("probe", "Probe", watch, "none", ("one",))
    trainer = make_trainer(method, views=views, epochs=1, wrap=keep)
    trainer.fit()
    assert len(seen) == 3
    for batch in seen:
        assert batch["label"] is batch[views]
        assert not torch.equal(batch["weak"], batch["strong"])
    made = ["weak", "strong"] if views == "weak" else ["strong", "weak"]
    assert trainer.progress.stages[0]["views"] == made


def test_other_views_are_other_images(make_trainer: MakeTrainer) -> None:
    found = {}
    for views in ("weak", "strong"):
        trainer = make_trainer(METHODS["focal"], folder=views, views=views, epochs=1)
        trainer.fit()
        assert trainer.progress.stages[0]["views"] == [views]
        found[views] = weights_of(trainer.model)
    again = make_trainer(METHODS["focal"], folder="again", epochs=1)
    again.fit()
    assert_same(weights_of(again.model), found["weak"])
    assert any(not torch.equal(found["weak"][k], found["strong"][k]) for k in found["weak"])
