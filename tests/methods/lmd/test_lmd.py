"""LMD's rows in the table of methods: profiles and ablations."""

import pytest
import torch
from profiles import COUNTS, LR, QUICK, ROWS, data, every_profile, recipe, stage_two
from torch import nn
from torch.nn import functional as F
from toys import FakeEpoch, small_model

from lmd.base.errors import LmdError
from lmd.methods import find_method
from lmd.methods.lmd.rows import METHODS as LMD
from lmd.methods.stage import Task, prepare
from lmd.model import CosineClassifier, Model, build_model


def test_keys_titles_and_presets():
    assert {m.key: (m.title, m.family, dict(m.preset)) for m in LMD} == {
        "lmd": ("LMD", "lmd", {}),
        "lmd_wo_rrl": ("LMD w/o RRL", "lmd", {"rrl": False}),
        "lmd_wo_icc": ("LMD w/o ICC", "lmd", {"icc": False}),
        "lmd_wo_vfc": ("LMD w/o VFC", "lmd", {"vfc": False}),
        "lmd_wo_fdc": ("LMD w/o FDC", "lmd", {"fdc": False}),
        "lmd_wo_levels": ("LMD w/o inner levels", "lmd", {"levels": 0}),
        "lmd_wo_views": ("LMD w/o views in moments", "lmd", {"m_views": "eval"}),
        "lmd_wo_shrunk_means": ("LMD w/o shrunk means", "lmd", {"mean_images": 0.0}),
        "lmd_wo_strong": (
            "LMD w/o balanced strong views",
            "lmd",
            {"ce_sampling": "natural", "ce_view": "label"},
        ),
        "lmd_with_rrl": ("LMD with RRL", "lmd", {"rrl": True}),
        "lmd_with_icc": ("LMD with ICC", "lmd", {"icc": True, "fdc": True}),
    }


def test_every_profile_sets_all_that_is_ours():
    corrected = ROWS["lmd"].profiles["corrected"]
    assert all(corrected.keys() <= values.keys() for values in ROWS["lmd"].profiles.values())
    assert {"ce_view", "ce_sampling", "average"} <= corrected.keys()
    assert {"tau", "levels", "classifier", "m_views", "mean_images", "e_tau"} <= corrected.keys()


def test_a_cosine_classifier_is_refused_before_any_training():
    model = Model(small_model(4).encoder, CosineClassifier(16, 4))
    with pytest.raises(LmdError, match="needs a linear classifier"):
        next(ROWS["lmd"].start(model, Task(torch.tensor(COUNTS), 16), {}))


@every_profile
@pytest.mark.parametrize("key", list(ROWS))
def test_every_row_trains_with_a_class_of_one_image(key, profile):
    given = {"virtual_features": 40, "weight_penalty": 0.01, "shrinkage": 0.5, "ema_decay": 0.9}
    model, stages = recipe(profile, key, **given)
    batch = data()
    for stage in stages:
        groups = prepare(stage)
        epoch = FakeEpoch(model, batch.views["weak"], batch.labels)
        epoch.total = stage.epochs or 3
        optimizer = torch.optim.SGD(groups, lr=LR[profile]) if groups else None
        for index in range(epoch.total):
            epoch.index = index
            stage.start_epoch(epoch)
            for _ in stage.class_weights(epoch):
                terms = stage.step(optimizer, batch)
                assert all(torch.isfinite(term) for term in terms.values())
    assert type(model.classifier) is nn.Linear
    assert all(torch.isfinite(v).all() for v in model.state_dict().values())


def test_the_classifier_is_reset_before_stage_2():
    model, stages = recipe("corrected")
    next(stages)
    with torch.no_grad():
        model.classifier.weight.fill_(5)
    next(stages)
    assert model.classifier.weight.abs().max() <= 16**-0.5


def test_the_classifier_of_stage_1_is_averaged_with_that_of_virtual_features():
    alone, _, epoch, _ = stage_two("corrected")
    with torch.no_grad():
        kept = alone.model.classifier.weight.clone()
    alone.start_epoch(epoch)
    stage, _, epoch, _ = stage_two("corrected", classifier="averaged")
    with torch.no_grad():
        stage.model.classifier.weight.copy_(kept)
        stage.anchor.copy_(kept)
        stage.anchor_bias.fill_(3.0)
        stage.model.classifier.bias.copy_(alone.anchor_bias)
    stage.start_epoch(epoch)
    found, virtual = stage.model.classifier, alone.model.classifier
    torch.testing.assert_close(found.weight, (virtual.weight + kept) / 2)
    torch.testing.assert_close(found.bias, (virtual.bias + 3) / 2)


def test_a_classifier_that_is_kept_stays_under_a_large_penalty():
    stage, _, epoch, _ = stage_two(
        "corrected", classifier="kept", weight_penalty=1e6, shrinkage=0.5
    )
    before = stage.model.classifier.weight.detach().clone()
    stage.start_epoch(epoch)
    torch.testing.assert_close(stage.model.classifier.weight.detach(), before, rtol=0, atol=1e-4)
    stage, _, epoch, _ = stage_two("corrected", weight_penalty=1e6, shrinkage=0.5)
    stage.start_epoch(epoch)
    assert stage.model.classifier.weight.abs().max() < 1e-4


def test_the_teacher_may_go_on_to_stage_2():
    for keep in ("student", "teacher"):
        model, stages = recipe("corrected", keep=keep, classifier="kept")
        first = next(stages)
        with torch.no_grad():
            first.teacher.classifier.bias.fill_(7.0)
        next(stages)
        assert (model.classifier.bias == 7).all() == (keep == "teacher")


def test_levels_widen_the_features_and_leave_the_logits_alone():
    model, _ = build_model("resnet8", "none", 4, image_size=16)
    settings = ROWS["lmd"].settings({"levels": 2, "classifier": "kept"})
    stages = ROWS["lmd"].start(model, Task(torch.tensor(COUNTS), 128), settings)
    next(stages)
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        before = model.eval()(images)
        next(stages)
        after = model.eval()(images)
    assert model.levels == ("layer1", "layer2")
    assert model.classifier.in_features == 128 + 32 + 64
    torch.testing.assert_close(before, after)


def test_stage_1_without_rrl_has_its_label_loss_and_sharp_steps():
    batch = data()
    _, stages = recipe("corrected", "lmd_wo_rrl", tau=1.0, sam=0.05)
    stage = next(stages)
    assert stage.name == "Flat"
    assert stage.rho == 0.05
    prior = torch.tensor(COUNTS) / sum(COUNTS)
    logits = small_model(4)(batch.views["weak"]) + prior.log()
    expected = F.cross_entropy(logits, batch.labels)
    torch.testing.assert_close(stage.loss(batch)["loss"], expected)


def test_stage_1_without_rrl_is_that_of_the_controls():
    """RS on strong views, and Balanced Softmax on two views with averaged weights."""
    rows = {"rs_strong": {"ce_sampling": "balanced", "ce_view": "strong"}}
    rows["balanced_softmax_two_views_ema"] = {"tau": 1.0, "ce_view": "both", "average": 0.1}
    batch, task = data(), Task(torch.tensor(COUNTS), 16)
    epoch = FakeEpoch(small_model(4), batch.views["weak"], batch.labels)
    for key, given in rows.items():
        ours = next(recipe("corrected", "lmd_wo_rrl", **given)[1])
        control = find_method(key)
        theirs = next(control.start(small_model(4), task, control.settings({})))
        assert ours.views == theirs.views
        assert ours.horizon == theirs.horizon
        torch.testing.assert_close(ours.class_weights(epoch), theirs.class_weights(epoch))
        torch.testing.assert_close(ours.loss(batch)["loss"], theirs.loss(batch)["loss"])


@pytest.mark.parametrize("given", [{"ce_view": "both"}, {"average": 0.1}])
def test_sharp_steps_without_rrl_go_with_two_views_and_with_an_average(given):
    batch = data()
    _, stages = recipe("corrected", "lmd_wo_rrl", sam=0.05, **given)
    stage = next(stages)
    optimizer = torch.optim.SGD(prepare(stage), lr=0.01)
    stage.start_epoch(FakeEpoch(stage.model, batch.views["weak"], batch.labels))
    terms = stage.step(optimizer, batch)
    assert terms["flat"] > terms["loss"]


def test_ablations():
    _, stages = recipe("corrected", "lmd_wo_rrl")
    stage = next(stages)
    batch = data()
    plain = F.cross_entropy(small_model(4)(batch.views["weak"]), batch.labels)
    torch.testing.assert_close(stage.loss(batch)["loss"], plain)

    stage, groups, epoch, _ = stage_two("corrected", "lmd_wo_icc", **QUICK)
    assert (list(groups), stage.epochs, stage.class_weights(epoch)) == ([], 1, [])

    stage, _, epoch, batch = stage_two("corrected", "lmd_wo_fdc", **QUICK)
    stage.start_epoch(epoch)
    assert set(stage.loss(batch)) == {"loss", "ce"}

    stage, _, epoch, batch = stage_two("corrected", "lmd_wo_vfc", weight_penalty=0.05)
    stage.start_epoch(epoch)
    features, labels = epoch.drawn[0]
    layer = stage.model.classifier
    weight = layer.weight.detach().clone().requires_grad_()
    loss = F.cross_entropy(F.linear(features, weight, layer.bias), labels)
    unit = (features - features.mean(0)).square().sum(1).mean()
    (grad,) = torch.autograd.grad(loss + 0.025 * unit * weight.square().sum(), weight)
    assert grad.norm() < 1e-3  # the argmin on the real features as they were drawn
    assert "psi" in stage.loss(batch)  # FDC keeps its moments
