"""The single-stage baselines as stages: they train, keep their state, and avoid known traps."""

import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmd.base.errors import LmdError
from lmd.contract.method import Method
from lmd.contract.stage import Batch, Stage, Task, prepare
from lmd.contract.supervised import Supervised
from lmd.methods import (
    balanced_mixup,
    balanced_softmax,
    cb_focal,
    focal,
    ldam,
    logit_adjustment,
    rs,
    seesaw,
    vs_loss,
)
from lmd.model import CosineClassifier, Model

MODULES = (
    rs,
    focal,
    cb_focal,
    ldam,
    seesaw,
    balanced_mixup,
    balanced_softmax,
    logit_adjustment,
    vs_loss,
)
METHODS: dict[str, Method] = {m.key: m for module in MODULES for m in module.METHODS}
WIDTH = 16


@dataclass
class Data:
    """Separable images ``(N, 3, 4, 4)``: each class has its own mean."""

    counts: list[int]
    images: Tensor = field(init=False)
    labels: Tensor = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        centres = 3 * torch.randn(len(self.counts), 3, 4, 4, generator=generator)
        self.labels = torch.repeat_interleave(
            torch.arange(len(self.counts)), torch.tensor(self.counts)
        )
        noise = torch.randn(len(self.labels), 3, 4, 4, generator=generator)
        self.images = centres[self.labels] + 0.3 * noise


@dataclass
class EpochRun:
    """What the loop would lend for one epoch, computed from the real model and images."""

    model: Model
    data: Data
    epoch: int = 0
    epochs: int = 1
    validation: bool = True
    steps: int = 1
    val_recall: Tensor | None = None

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.epoch)

    def features(
        self,
        drawn: Literal["natural", "balanced"] = "natural",
        part: Literal["train", "validation"] = "train",
    ) -> tuple[Tensor, Tensor]:
        if part == "validation" and not self.validation:
            return torch.empty(0, WIDTH), torch.empty(0, dtype=torch.long)
        with torch.no_grad():
            return self.model.features(self.data.images), self.data.labels


def build(classes: int, head: str = "linear") -> Model:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(48, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
    classifier = (
        CosineClassifier(WIDTH, classes, scale=1.0)
        if head == "cosine"
        else nn.Linear(WIDTH, classes)
    )
    return Model(encoder, classifier)


def setting(key: str, counts: list[int]) -> tuple[Model, Task, Data]:
    model = build(len(counts), METHODS[key].head)
    return model, Task(torch.tensor(counts), WIDTH), Data(counts)


def draw_batches(data: Data, stage: Stage, run: EpochRun, size: int) -> list[list[Batch]]:
    streams = []
    for weights in stage.class_weights(run):
        n = len(data.labels)
        if weights is None:
            order = torch.randperm(n, generator=run.generator)
        else:
            order = torch.multinomial(weights[data.labels], n, True, generator=run.generator)
        cuts = [c for c in order.split(size) if len(c) > 1]
        streams.append([Batch({"weak": data.images[c]}, data.labels[c]) for c in cuts])
    return [list(batches) for batches in zip(*streams, strict=True)]


def train(
    key: str, counts: list[int], *, epochs: int = 40, size: int = 8, **settings: Any
) -> tuple[Model, Data]:
    model, task, data = setting(key, counts)
    for stage in METHODS[key].make(model, task, **settings):
        groups = prepare(stage)
        optimizer = torch.optim.SGD(groups, lr=0.02, momentum=0.9) if groups else None
        length = stage.epochs or epochs
        for epoch in range(length):
            run = EpochRun(model, data, epoch, length)
            stage.start_epoch(run, optimizer)
            for batches in draw_batches(data, stage, run, size):
                assert optimizer is not None
                assert stage.step(optimizer, *batches)["loss"].isfinite()
    return model.eval(), data


def recalls(model: Model, data: Data) -> list[float]:
    with torch.no_grad():
        hits = (model(data.images).argmax(1) == data.labels).float()
    return [hits[data.labels == k].mean().item() for k in range(len(data.counts))]


@pytest.mark.parametrize("key", METHODS)
# Two classes, one image in a class, and batches with fewer images than classes.
@pytest.mark.parametrize(("counts", "size"), [([30, 1], 8), ([24, 8, 3, 2, 2, 1], 4)])
def test_every_method_learns_separable_classes(key: str, counts: list[int], size: int) -> None:
    model, data = train(key, counts, size=size)
    found = recalls(model, data)
    assert sum(found) / len(found) > 0.95
    with torch.no_grad():
        probabilities = model(data.images).softmax(1)
    assert probabilities.isfinite().all()


@pytest.mark.parametrize("key", METHODS)
def test_every_stage_is_one_subclass_and_gives_each_parameter_a_gradient(key: str) -> None:
    model, task, data = setting(key, [20, 6, 1])
    stage = next(iter(METHODS[key].make(model, task)))
    assert type(stage).__bases__ == (Stage,)
    groups = prepare(stage)
    params = [p for g in groups for p in (g["params"] if isinstance(g, dict) else [g])]
    assert sorted(map(id, params)) == sorted(map(id, model.parameters()))
    run = EpochRun(model, data)
    stage.start_epoch(run, None)
    stage.loss(*draw_batches(data, stage, run, 27)[0])["loss"].backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        if name != "encoder.1.bias":  # BatchNorm takes this one's effect away
            assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("key", METHODS)
def test_a_restored_stage_goes_on_with_the_same_numbers(key: str) -> None:
    def advance(stage: Stage, epoch: int) -> list[float]:
        run = EpochRun(stage.model, data, epoch, 4)  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(prepare(stage), lr=0.05)
        stage.start_epoch(run, optimizer)
        batches = draw_batches(data, stage, run, 9)
        return [stage.step(optimizer, *b)["loss"].item() for b in batches]

    model, task, data = setting(key, [20, 6, 1])
    first = next(iter(METHODS[key].make(model, task)))
    for epoch in range(3):
        advance(first, epoch)
    saved = copy.deepcopy(first.state_dict())
    again = next(iter(METHODS[key].make(build(3, METHODS[key].head), task)))
    again.load_state_dict(saved)
    assert advance(first, 3) == advance(again, 3)


@pytest.mark.parametrize("key", METHODS)
def test_unknown_settings_name_the_valid_ones(key: str) -> None:
    with pytest.raises(LmdError, match="has no setting 'nonsense'"):
        METHODS[key].settings({"nonsense": 1})
    assert METHODS[key].paper
    assert METHODS[key].stages


@pytest.mark.parametrize(
    ("key", "settings", "message"),
    [
        ("rs", {"q": 2.0}, "q must lie in"),
        ("focal", {"gamma": -1.0}, "gamma must be at least 0"),
        ("cb_focal", {"gamma": -1.0}, "gamma must be at least 0"),
        ("cb_focal", {"beta": 1.0}, "beta must lie in"),
        ("ldam_rs", {"rule": "both"}, "rule must be one of rs, drs, drw; it is 'both'"),
        ("ldam_rs", {"defer": 160}, "defer must be a fraction"),
        ("ldam_rs", {"scale": 0.0}, "scale must be positive"),
        ("seesaw", {"p": -0.8}, "p must be at least 0"),
        ("bal_mixup", {"alpha": 0.0}, "alpha must be positive"),
        ("logit_adjust", {"tau": -1.0}, "tau must be at least 0"),
        ("vs_loss", {"tau": -1.0}, "tau must be at least 0"),
        ("logit_adjust_posthoc", {"grid": ()}, "grid must name one or more"),
    ],
)
def test_values_outside_their_range_are_refused(
    key: str, settings: dict[str, Any], message: str
) -> None:
    model, task, _ = setting(key, [5, 1])
    with pytest.raises(LmdError, match=message):
        next(iter(METHODS[key].make(model, task, **settings)))


def test_rs_draws_every_class_alike_even_one_of_one_image() -> None:
    model, task, data = setting("rs", [97, 2, 1])
    (stage,) = METHODS["rs"].make(model, task)
    (weights,) = stage.class_weights(EpochRun(model, data))
    assert weights is not None
    drawn = torch.multinomial(
        weights[data.labels], 30000, True, generator=torch.Generator().manual_seed(1)
    )
    share = torch.bincount(data.labels[drawn]) / 30000
    torch.testing.assert_close(share, torch.full((3,), 1 / 3), atol=0.015, rtol=0)


@pytest.mark.parametrize(
    "key", ["focal", "cb_focal", "seesaw", "balanced_softmax", "logit_adjust", "vs_loss"]
)
def test_a_loss_that_balances_draws_images_as_they_come(key: str) -> None:
    model, task, data = setting(key, [9, 1])
    (stage,) = METHODS[key].make(model, task)
    assert stage.class_weights(EpochRun(model, data)) == [None]


@pytest.mark.parametrize("classes", [2, 5])
def test_cb_focal_starts_every_sigmoid_at_one_in_k_and_does_not_decay_it(classes: int) -> None:
    model, task, _ = setting("cb_focal", [3] * classes)
    (stage,) = METHODS["cb_focal"].make(model, task)
    bias = model.classifier.bias
    assert isinstance(bias, Tensor)
    torch.testing.assert_close(bias.detach().sigmoid(), torch.full((classes,), 1 / classes))
    optimizer = torch.optim.SGD(prepare(stage), lr=0.1, weight_decay=0.5)
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert decay[id(bias)] == 0
    assert {decay[id(p)] for p in model.parameters() if p is not bias} == {0.5}


def test_ldam_refuses_a_linear_head_whose_logits_would_overflow_it() -> None:
    with pytest.raises(LmdError, match="needs a cosine classifier; it has Linear"):
        next(iter(METHODS["ldam_rs"].make(build(2), Task(torch.tensor([5, 1]), WIDTH))))


def test_ldam_ships_its_scale_inside_the_classifier() -> None:
    model, data = train("ldam_rs", [20, 5, 1])
    assert isinstance(model.classifier, CosineClassifier)
    with torch.no_grad():
        cosine = model.classifier.cosine(model.features(data.images))
        logits = model(data.images)
    torch.testing.assert_close(logits, 30 * cosine)
    assert model.state_dict()["classifier.scale"] == 30
    # Bare cosines would leave the softmax nearly uniform: at most e² between two classes.
    assert logits.softmax(1).max(1).values.mean() > 0.95
    assert cosine.softmax(1).max(1).values.max() < 0.8


@pytest.mark.parametrize("rule", ["rs", "drs", "drw"])
def test_ldam_balances_by_sampler_or_by_weights_but_never_by_both(rule: str) -> None:
    model, task, data = setting("ldam_rs", [100, 10, 1])
    (stage,) = METHODS["ldam_rs"].make(model, task, rule=rule)
    assert isinstance(stage, ldam.LDAM)
    for epoch in range(10):
        run = EpochRun(model, data, epoch, 10)
        stage.start_epoch(run, None)
        (drawn,) = stage.class_weights(run)
        second = epoch >= 8
        resampled = drawn is not None and bool((drawn.std() > 0.5).item())
        weighted = bool((stage.weight.std() > 0.5).item())
        assert (resampled, weighted) == {
            "rs": (True, False),
            "drs": (second, False),
            "drw": (False, second),
        }[rule]
        if drawn is not None:
            share = drawn * task.class_counts
            torch.testing.assert_close(
                share / share.sum(), torch.full((3,), 1 / 3), rtol=0.02, atol=0
            )


def test_the_two_rows_of_ldam_differ_in_their_rule() -> None:
    assert METHODS["ldam_rs"].settings({})["rule"] == "rs"
    assert METHODS["ldam_drw"].settings({})["rule"] == "drw"


def test_seesaw_counts_a_batch_before_it_is_used() -> None:
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
    criterion = seesaw.Seesaw(4, 0.8, 2.0)
    # Recorded numbers: the counts start at 0, and twice the batch has the same ratios.
    assert criterion(logits, labels).item() == pytest.approx(1.8984209, rel=1e-5)
    assert criterion(logits, labels).item() == pytest.approx(1.8984209, rel=1e-5)
    assert criterion.counts.tolist() == [4, 2, 2, 2]
    criterion.eval()
    criterion(logits, labels)
    assert criterion.counts.tolist() == [4, 2, 2, 2]


def test_seesaw_counts_are_in_the_checkpoint_and_never_saturate() -> None:
    model, task, _ = setting("seesaw", [5, 1])
    (stage,) = METHODS["seesaw"].make(model, task)
    assert isinstance(stage, Supervised)
    assert isinstance(stage.criterion, seesaw.Seesaw)
    assert stage.state_dict()["criterion.counts"].tolist() == [0, 0]
    # Single precision cannot count beyond 2^24.
    stage.criterion.counts.fill_(2**24)
    stage.criterion(torch.zeros(1, 2), torch.tensor([1]))
    assert stage.state_dict()["criterion.counts"].tolist() == [2**24, 2**24 + 1]


def test_balanced_mixup_mixes_the_second_stream_by_the_share_and_cuts_to_the_shorter() -> None:
    model, task, data = setting("bal_mixup", [12, 3])
    (stage,) = METHODS["bal_mixup"].make(model, task, alpha=0.7)
    natural, balanced = stage.class_weights(EpochRun(model, data))
    assert natural is None
    assert balanced is not None
    torch.testing.assert_close(balanced * task.class_counts, torch.ones(2))
    prepare(stage)
    stage.start_epoch(EpochRun(model, data), None)
    share = balanced_mixup.draw_share(0.7, torch.Generator().manual_seed(0))
    assert 0.05 < share < 0.95
    first = data.images[:6].clone().requires_grad_()
    second = data.images[-4:].clone().requires_grad_()
    batches = (
        Batch({"weak": first}, data.labels[:6]),
        Batch({"weak": second}, data.labels[-4:]),
    )
    loss = stage.loss(*batches)["loss"]
    loss.backward()
    assert first.grad is not None
    assert second.grad is not None
    assert first.grad[4:].abs().sum() == 0
    assert second.grad.abs().sum() > 0
    # The gradient tells the two streams apart: it scales with their shares.
    torch.testing.assert_close(second.grad * (1 - share), first.grad[:4] * share)
    soft = (1 - share) * F.one_hot(data.labels[:4], 2) + share * F.one_hot(data.labels[-4:], 2)
    mixed = (1 - share) * first[:4] + share * second
    torch.testing.assert_close(loss, F.cross_entropy(model(mixed), soft))


def test_balanced_mixup_repeats_an_epoch_from_its_generator_alone() -> None:
    model, task, data = setting("bal_mixup", [12, 3])
    (stage,) = METHODS["bal_mixup"].make(model, task)
    prepare(stage)
    found = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        run = EpochRun(model, data, epoch=5)
        stage.start_epoch(run, None)
        batches = draw_batches(data, stage, run, 5)
        found.append([stage.loss(*b)["loss"].item() for b in batches])
    assert found[0] == found[1]


def posthoc(counts: list[int], **settings: Any) -> tuple[Model, Data, Stage]:
    model, task, data = setting("logit_adjust_posthoc", counts)
    _, stage = METHODS["logit_adjust_posthoc"].make(model, task, **settings)
    assert prepare(stage) == []
    return model, data, stage


def test_posthoc_adjustment_changes_the_bias_and_nothing_else() -> None:
    model, data, stage = posthoc([40, 4, 1], grid=(0.7,))
    before = copy.deepcopy(model.state_dict())
    run = EpochRun(model, data)
    assert stage.epochs == 1
    assert stage.class_weights(run) == []
    assert stage.start_epoch(run, None) == {"tau": 0.7}
    assert stage.chosen() == {"tau": 0.7}
    after = model.state_dict()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {"classifier.bias"}
    priors = torch.tensor([40, 4, 1]) / 45
    torch.testing.assert_close(
        after["classifier.bias"], before["classifier.bias"] - 0.7 * priors.log()
    )
    assert not any(p.requires_grad for p in model.parameters())


def test_posthoc_adjustment_twice_is_once() -> None:
    model, data, stage = posthoc([40, 4, 1], grid=(1.3,))
    stage.start_epoch(EpochRun(model, data), None)
    once = model.classifier.state_dict()["bias"].clone()
    resumed = logit_adjustment.PosthocAdjustment(model, torch.tensor([40, 4, 1]), (1.3,))
    resumed.load_state_dict(stage.state_dict())
    resumed.start_epoch(EpochRun(model, data), None)
    torch.testing.assert_close(model.classifier.state_dict()["bias"], once)


def test_posthoc_adjustment_without_validation_takes_tau_one() -> None:
    model, data, stage = posthoc([40, 4, 1], grid=(0.0, 2.0))
    run = EpochRun(model, data, validation=False)
    assert stage.start_epoch(run, None) == {"tau": 1.0}
    bias = model.classifier.bias
    assert isinstance(bias, Tensor)
    assert bias.isfinite().all()


def test_posthoc_adjustment_finds_the_tail_that_cross_entropy_missed() -> None:
    model, data, stage = posthoc([60, 3])
    # Nearest class means, then a bias under which every image is class 0: skewed data do that.
    assert isinstance(model.classifier, nn.Linear)
    with torch.no_grad():
        features = model.eval().features(data.images)
        means = torch.stack([features[data.labels == k].mean(0) for k in range(2)])
        model.classifier.weight.copy_(means)
        model.classifier.bias.copy_(-0.5 * means.square().sum(1))
        logits = model.classifier(features)
        model.classifier.bias[1] -= (logits[:, 1] - logits[:, 0]).max() + 0.5
    before = recalls(model, data)
    stage.start_epoch(EpochRun(model, data), None)
    after = recalls(model, data)
    assert before == [1.0, 0.0]
    assert sum(after) > 1.9
