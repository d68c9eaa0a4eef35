"""LMD's rows in the table of methods: profiles and ablations."""

import pytest
import torch
from profiles import COUNTS, LR, QUICK, ROWS, data, every_profile, recipe, stage_two
from torch import nn
from torch.nn import functional as F
from toys import FakeRun, small_model

from lmd.base.errors import LmdError
from lmd.contract.stage import Task, prepare
from lmd.methods.lmd import METHODS as LMD
from lmd.model import CosineClassifier, Model


def test_keys_titles_and_presets():
    assert {m.key: (m.title, m.family, dict(m.preset)) for m in LMD} == {
        "lmd": ("LMD", "lmd", {}),
        "lmd_wo_rrl": ("LMD w/o RRL", "lmd", {"rrl": False}),
        "lmd_wo_icc": ("LMD w/o ICC", "lmd", {"icc": False}),
        "lmd_wo_vfc": ("LMD w/o VFC", "lmd", {"vfc": False}),
        "lmd_wo_fdc": ("LMD w/o FDC", "lmd", {"fdc": False}),
    }


def test_profiles_change_what_they_name():
    known = ROWS["lmd"].defaults()
    for profile, values in ROWS["lmd"].profiles.items():
        assert all(known[name] != value for name, value in values.items()), profile


def test_a_cosine_classifier_is_refused_before_any_training():
    model = Model(small_model(4).encoder, CosineClassifier(16, 4))
    with pytest.raises(LmdError, match="needs a linear classifier"):
        next(ROWS["lmd"].stages_for(model, Task(torch.tensor(COUNTS), 16), {}))


@every_profile
@pytest.mark.parametrize("key", list(ROWS))
def test_every_row_trains_with_a_class_of_one_image(key, profile):
    given = {"virtual_features": 40, "weight_penalty": 0.01, "shrinkage": 0.5, "ema_decay": 0.9}
    model, stages = recipe(profile, key, **given)
    batch = data()
    for stage in stages:
        groups = prepare(stage)
        run = FakeRun(model, batch.views["weak"], batch.labels)
        run.epochs = stage.epochs or 3
        optimizer = torch.optim.SGD(groups, lr=LR[profile]) if groups else None
        for epoch in range(run.epochs):
            run.epoch = epoch
            stage.start_epoch(run, optimizer)
            for _ in stage.class_weights(run):
                terms = stage.step(optimizer, batch)
                assert all(torch.isfinite(term) for term in terms.values())
    assert type(model.classifier) is nn.Linear
    assert all(torch.isfinite(v).all() for v in model.state_dict().values())


def test_the_classifier_is_reset_before_stage_2():
    model, stages = recipe("default")
    next(stages)
    with torch.no_grad():
        model.classifier.weight.fill_(5)
    next(stages)
    assert model.classifier.weight.abs().max() <= 16**-0.5


def test_ablations():
    _, stages = recipe("default", "lmd_wo_rrl")
    stage = next(stages)
    batch = data()
    plain = F.cross_entropy(small_model(4)(batch.views["weak"]), batch.labels)
    torch.testing.assert_close(stage.loss(batch)["loss"], plain)

    stage, groups, run, _ = stage_two("default", "lmd_wo_icc", **QUICK)
    assert (list(groups), stage.epochs, stage.class_weights(run)) == ([], 1, [])

    stage, _, run, batch = stage_two("default", "lmd_wo_fdc", **QUICK)
    stage.start_epoch(run, None)
    assert set(stage.loss(batch)) == {"loss", "ce"}

    stage, _, run, batch = stage_two("default", "lmd_wo_vfc", weight_penalty=0.05)
    stage.start_epoch(run, None)
    features, labels = run.drawn[0]
    layer = stage.model.classifier
    weight = layer.weight.detach().clone().requires_grad_()
    loss = F.cross_entropy(F.linear(features, weight, layer.bias), labels)
    (grad,) = torch.autograd.grad(loss + 0.025 * weight.square().sum(), weight)
    assert grad.norm() < 1e-3  # the argmin on the real features as they were drawn
    assert "psi" in stage.loss(batch)  # FDC keeps its moments
