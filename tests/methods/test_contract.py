"""The contract, for every row of METHODS: what the loop and the user may rely on."""

import pytest
import torch
from rich.console import Console
from toys import MakeTrainer, assert_same, quick, weights_of

from lmd.base.progress import Display
from lmd.methods import METHODS
from lmd.methods.stage import Stage, Stages
from lmd.model import CosineClassifier, Model
from lmd.runs.protocol import Protocol

every_method = pytest.mark.parametrize("key", list(METHODS))


class Interrupting(Display):
    """Stops training after the n-th epoch's checkpoint, as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        super().__init__(Console(quiet=True), quiet=True)
        self.left = after

    def say(self, text: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_paper_rows_are_all_there() -> None:
    rows = (
        "ce rs focal ldam_rs cb_focal decoupling seesaw cicl bal_mixup cb_wd_max fcd fs cc_sam gcl "
        "lmd lmd_wo_rrl lmd_wo_icc lmd_wo_vfc lmd_wo_fdc"
    )
    assert set(rows.split()) <= set(METHODS)
    assert all(key == method.key for key, method in METHODS.items())
    assert all(m.paper and m.title and m.stages for m in METHODS.values())


@every_method
def test_no_setting_has_the_name_of_one_of_the_protocols(key: str) -> None:
    """``--set NAME=VALUE`` must mean one thing."""
    assert not set(METHODS[key].settings()) & set(Protocol.model_fields)


@every_method
def test_trains_stays_finite_and_ships_a_plain_model(key: str, make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(METHODS[key], settings=quick(key))
    before = weights_of(trainer.model)
    trainer.fit()
    after = weights_of(trainer.model)
    assert type(trainer.model) is Model
    assert type(trainer.model.classifier) in {torch.nn.Linear, CosineClassifier}
    assert after.keys() == before.keys()
    assert all(torch.isfinite(v).all() for v in after.values() if v.is_floating_point())
    assert any(not torch.equal(before[k], after[k]) for k in after)
    logits = trainer.predict(trainer.train)
    assert logits.shape == (22, 4)
    assert torch.isfinite(logits).all()
    stages = [row["stage"] for row in trainer.progress.history]
    assert len(set(stages)) == len(METHODS[key].stages)
    if len(set(stages)) > 1:
        told = METHODS[key].outline(quick(key))[-1].epochs
        assert stages.count(stages[-1]) == (told or trainer.protocol.stage2_epochs)


@every_method
def test_moves_only_what_it_may(key: str, make_trainer: MakeTrainer) -> None:
    """Nothing of the encoder, BatchNorm included, moves unless the stage trains it."""

    def watch(stages: Stages) -> Stages:
        for stage in stages:
            assert Stage in type(stage).__bases__, "subclass once; compose instead"
            encoder = trainer.model.encoder
            groups = stage.trainable()
            trained = {id(p) for g in groups for p in (g["params"] if isinstance(g, dict) else [g])}
            before = {k: v.clone() for k, v in encoder.state_dict().items()}
            yield stage
            if not any(id(p) in trained for p in encoder.parameters()):
                assert_same(before, encoder.state_dict())

    trainer = make_trainer(METHODS[key], settings=quick(key), wrap=watch)
    trainer.fit()


@every_method
def test_resumes_bit_exactly(key: str, make_trainer: MakeTrainer) -> None:
    whole = make_trainer(METHODS[key], folder="whole", settings=quick(key))
    whole.fit()
    epochs = len(whole.progress.history)
    for stop in range(1, epochs + 1):
        folder = f"stop{stop}"
        broken = make_trainer(
            METHODS[key], folder=folder, settings=quick(key), display=Interrupting(stop)
        )
        with pytest.raises(KeyboardInterrupt):
            broken.fit()
        resumed = make_trainer(METHODS[key], folder=folder, settings=quick(key))
        resumed.fit(resume=True)
        assert_same(weights_of(resumed.model), weights_of(whole.model))
        rows = [[row["epoch"] for row in t.progress.history] for t in (resumed, whole)]
        assert rows[0] == rows[1]


@every_method
@pytest.mark.parametrize(
    ("counts", "batch"), [((9, 1), 4), ((6, 3, 2, 1), 2), ((5, 5, 5), 8)], ids=str
)
def test_odd_shapes(
    key: str, counts: tuple[int, ...], batch: int, make_trainer: MakeTrainer
) -> None:
    """Two classes, a class of one image, batches smaller than K, and balanced counts."""
    trainer = make_trainer(
        METHODS[key], counts, settings=quick(key), epochs=1, stage2_epochs=1, batch_size=batch
    )
    trainer.fit()
    assert torch.isfinite(trainer.predict(trainer.train)).all()


@every_method
def test_several_workers_change_nothing(key: str, make_trainer: MakeTrainer) -> None:
    family = METHODS[key].family
    if family and next(m.key for m in METHODS.values() if m.family == family) != key:
        pytest.skip("the family's first row is enough")
    alone = make_trainer(METHODS[key], folder="alone", settings=quick(key), epochs=1)
    alone.fit()
    helped = make_trainer(METHODS[key], folder="helped", settings=quick(key), epochs=1, workers=2)
    helped.fit()
    assert_same(weights_of(alone.model), weights_of(helped.model))
