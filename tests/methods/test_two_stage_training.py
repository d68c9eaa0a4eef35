"""The stages of the two-stage baselines at work: who moves, who stays, what ships."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from lmd.base.errors import LmdError
from lmd.contract.method import Method
from lmd.contract.stage import Batch, Stage, Task, prepare
from lmd.methods import (
    cc_sam,
    cicl,
    decoupling,
    fcd,
    flexible_sampling,
    gcl,
    weight_balancing,
)
from lmd.model import CosineClassifier, Model
from lmd.scoring.confusion import mean_recall

FILES = (decoupling, cicl, weight_balancing, fcd, flexible_sampling, cc_sam, gcl)
METHODS: dict[str, Method] = {m.key: m for file in FILES for m in file.METHODS}
TWO_STAGE = [key for key in METHODS if key != "fs"]
TRAINED = [key for key in TWO_STAGE if key not in ("tau_norm", "ncm")]
COUNTS = [[9, 1], [14, 5, 3, 2, 1, 1], [4, 4, 4]]


@dataclass
class World:
    """A small loop over images whose colour tells their class."""

    counts: list[int]
    batch_size: int = 4
    epochs: int = 2
    model: Model = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        classes = len(self.counts)
        self.colours = torch.randn(classes, 3, 1, 1, generator=generator)
        self.train = self.draw(self.counts, generator)
        self.validation = self.draw([3] * classes, generator)
        self.task = Task(torch.tensor(self.counts), 6)

    def draw(self, counts: list[int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.tensor(counts).new_tensor(
            [k for k, n in enumerate(counts) for _ in range(n)]
        )
        noise = torch.randn(len(labels), 3, 6, 6, generator=generator)
        return self.colours[labels] + 0.5 * noise, labels

    def start(self, method: Method, **settings) -> Iterator[Stage]:
        torch.manual_seed(0)
        encoder = nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        head = CosineClassifier if method.head == "cosine" else nn.Linear
        self.model = Model(encoder, head(6, len(self.counts)))
        return method.make(self.model, self.task, **method.settings(settings))

    def run(self, epoch: int) -> "Lent":
        return Lent(self, epoch, self.epochs, -(-len(self.train[1]) // self.batch_size))

    def batches(self, stage: Stage, weights: list[Tensor | None]) -> Iterator[list[Batch]]:
        images, labels = self.train
        orders = []
        for w in weights:
            assert w is None or (w.isfinite().all() and (w >= 0).all())
            natural = torch.randperm(len(labels))
            orders.append(
                natural if w is None else w.float()[labels].multinomial(len(labels), True)
            )
        for i in range(0, len(labels) if orders else 0, self.batch_size):
            chosen = [order[i : i + self.batch_size] for order in orders]
            yield [
                Batch(
                    {v: images[c] + 0.1 * torch.randn_like(images[c]) for v in stage.views},
                    labels[c],
                )
                for c in chosen
            ]

    def epoch(self, stage: Stage, optimizer: SGD | None, epoch: int) -> list[dict[str, float]]:
        torch.manual_seed(100 + epoch)
        run = self.run(epoch)
        stage.start_epoch(run, optimizer)
        history = []
        for batches in self.batches(stage, stage.class_weights(run)):
            terms = stage.step(optimizer, *batches)
            history.append({k: v.item() for k, v in terms.items()})
        return history

    def train_stage(self, stage: Stage) -> list[dict[str, float]]:
        optimizer = optimise(stage)
        epochs = stage.epochs or self.epochs
        return [row for e in range(epochs) for row in self.epoch(stage, optimizer, e)]

    def to_stage(self, method: Method, index: int, **settings) -> Stage:
        for i, stage in enumerate(self.start(method, **settings)):
            if i == index:
                return stage
            self.train_stage(stage)
        raise AssertionError("no such stage")


@dataclass
class Lent:
    """What the loop lends for one epoch."""

    world: World
    epoch: int
    epochs: int
    steps: int
    val_recall: Tensor | None = None
    generator: torch.Generator = field(default_factory=torch.Generator)

    @torch.no_grad()
    def features(self, drawn="natural", part="train") -> tuple[Tensor, Tensor]:
        images, labels = getattr(self.world, part)
        mode = self.world.model.training
        features = self.world.model.eval().features(images)
        self.world.model.train(mode)
        return features, labels


def optimise(stage: Stage) -> SGD | None:
    groups = prepare(stage)
    return SGD(groups, lr=0.05, momentum=0.9) if groups else None


def state(module: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(module.state_dict())


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# --- All of them ------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("key", METHODS)
def test_trains_stays_finite_and_ships_a_plain_model(key, counts):
    """Two classes, a class of one image, batches smaller than the number of classes."""
    world = World(counts)
    method = METHODS[key]
    stages = world.start(method)
    keys = world.model.state_dict().keys()
    number = 0
    for stage in stages:
        number += 1
        for row in world.train_stage(stage):
            assert all(torch.tensor(v).isfinite() for v in row.values()), row
    assert number == len(method.stages)
    assert type(world.model.classifier) is (
        CosineClassifier if method.head == "cosine" else nn.Linear
    )
    assert world.model.state_dict().keys() == keys
    assert all(v.isfinite().all() for v in world.model.state_dict().values())
    assert world.model.eval()(world.validation[0]).shape == (3 * len(counts), len(counts))


@pytest.mark.parametrize("key", TWO_STAGE)
def test_stage_two_leaves_the_encoder_and_its_statistics_alone(key):
    world = World(COUNTS[1])
    stage = world.to_stage(METHODS[key], 1)
    encoder, classifier = state(world.model.encoder), state(world.model.classifier)
    world.model.zero_grad(set_to_none=True)
    world.train_stage(stage)
    assert same(state(world.model.encoder), encoder)
    assert not same(state(world.model.classifier), classifier)
    assert all(p.grad is None for p in world.model.encoder.parameters())


@pytest.mark.parametrize("key", METHODS)
def test_only_what_is_trainable_moves(key):
    world = World(COUNTS[1])
    for stage in world.start(METHODS[key]):
        optimizer = optimise(stage)
        stage.start_epoch(world.run(0), optimizer)
        before = {n: p.detach().clone() for n, p in stage.named_parameters()}
        trained = {
            id(p) for g in (optimizer.param_groups if optimizer else []) for p in g["params"]
        }
        for batches in world.batches(stage, stage.class_weights(world.run(0))):
            stage.step(optimizer, *batches)
        for name, p in stage.named_parameters():
            assert (id(p) in trained) != torch.equal(p, before[name]), name


@pytest.mark.parametrize("key", TRAINED)
def test_the_second_stage_goes_on_from_its_state(key):
    """Another process: the method starts anew, stage 1 is not trained, the state is loaded."""
    world = World(COUNTS[1])
    stage = world.to_stage(METHODS[key], 1)
    optimizer = optimise(stage)
    world.epoch(stage, optimizer, 0)
    saved, moments = state(stage), copy.deepcopy(optimizer.state_dict())
    first = world.epoch(stage, optimizer, 1)
    expected = state(world.model)

    again = World(COUNTS[1])
    stages = again.start(METHODS[key])
    next(stages)
    stage = next(stages)
    stage.load_state_dict(saved)
    optimizer = optimise(stage)
    optimizer.load_state_dict(moments)
    assert again.epoch(stage, optimizer, 1) == first
    assert same(state(again.model), expected)


@pytest.mark.parametrize("key", METHODS)
def test_every_stage_is_one_step_below_the_contract(key):
    for stage in World([4, 2]).start(METHODS[key]):
        assert type(stage).__bases__ == (Stage,)


# --- Decoupling -------------------------------------------------------------------------------


def test_crt_draws_the_classifier_anew_and_balances():
    world = World([12, 2])
    stages = world.start(METHODS["decoupling"])
    world.train_stage(next(stages))
    trained = state(world.model.classifier)
    stage = next(stages)
    assert not same(state(world.model.classifier), trained)
    (weights,) = stage.class_weights(world.run(0))
    assert (weights * world.task.class_counts).tolist() == [1, 1]


def test_tau_norm_writes_the_best_tau_and_drops_the_bias():
    world = World([14, 5, 3])
    stage = world.to_stage(METHODS["tau_norm"], 1)
    weight = world.model.classifier.weight.detach().clone()
    assert stage.trainable() == []
    assert stage.class_weights(world.run(0)) == []
    prepare(stage)
    report = stage.start_epoch(world.run(0), None)
    features, labels = world.run(0).features(part="validation")
    expected = decoupling.choose_tau(weight, features, labels, decoupling.TAUS)
    assert (report["tau"], report["tau_recall"]) == expected
    assert stage.chosen() == {"tau": expected[0]}
    shipped = world.model.classifier
    torch.testing.assert_close(
        shipped.weight.detach(), decoupling.tau_normalise(weight, report["tau"])
    )
    assert torch.equal(shipped.bias, torch.zeros(3))
    predictions = shipped(features).argmax(1)
    recall = mean_recall(labels.numpy(), predictions.numpy())
    assert recall == pytest.approx(report["tau_recall"])
    # Doing it twice is doing it once.
    once = state(shipped)
    stage.start_epoch(world.run(0), None)
    assert same(state(shipped), once)


def test_tau_can_be_given_and_is_asked_for_without_validation():
    world = World([14, 5, 3])
    world.validation = (world.validation[0][:0], world.validation[1][:0])
    stage = world.to_stage(METHODS["tau_norm"], 1)
    with pytest.raises(LmdError, match=r"'tau'.*0 of them.*set tau"):
        stage.start_epoch(world.run(0), None)
    stage = world.to_stage(METHODS["tau_norm"], 1, tau=1.0)
    assert stage.start_epoch(world.run(0), None) == {"tau": 1.0}
    assert stage.chosen() == {}
    lengths = world.model.classifier.weight.norm(dim=1)
    torch.testing.assert_close(lengths.detach(), torch.ones(3))


def test_lws_scales_the_whole_logit_while_it_trains_and_afterwards():
    world = World([14, 5, 3])
    stages = world.start(METHODS["lws"])
    world.train_stage(next(stages))
    before = state(world.model.classifier)
    stage = next(stages)
    assert torch.equal(world.model.classifier.weight, before["weight"])  # factors start at 1
    world.train_stage(stage)
    (factor,) = stage.trainable()
    assert (factor != 1).all()
    features = torch.randn(5, 6)
    expected = factor.detach() * F.linear(features, before["weight"], before["bias"])
    torch.testing.assert_close(world.model.classifier(features).detach(), expected)
    assert next(stages, None) is None
    torch.testing.assert_close(world.model.classifier(features).detach(), expected)
    assert set(world.model.classifier.state_dict()) == {"weight", "bias"}
    assert type(world.model.classifier) is nn.Linear


def test_ncm_ships_probabilities_whose_scale_changes_no_prediction():
    found = []
    for scale in (1.0, 10.0):
        world = World([14, 5, 1])
        world.train_stage(world.to_stage(METHODS["ncm"], 1, scale=scale))
        found.append(world.model.eval()(world.validation[0]).detach())
    torch.testing.assert_close(found[1], 10 * found[0], rtol=1e-4, atol=1e-4)
    assert torch.equal(found[0].argmax(1), found[1].argmax(1))


# --- CICL -------------------------------------------------------------------------------------


def test_cicl_sees_two_views_and_its_probe_does_not_reach_the_encoder():
    world = World([9, 3, 1])
    stage = world.to_stage(METHODS["cicl"], 0)
    assert stage.views == ("strong", "strong2")
    prepare(stage)
    images, labels = world.train
    views = {name: images[:6].clone().requires_grad_() for name in stage.views}
    terms = stage.loss(Batch(views, labels[:6]))
    encoder = list(world.model.encoder.parameters())
    grads = torch.autograd.grad(
        terms["contrastive"], [*views.values(), *encoder], retain_graph=True
    )
    assert all(g.abs().sum() > 0 for g in grads[:2])
    unused = torch.autograd.grad(terms["probe"], encoder, retain_graph=True, allow_unused=True)
    assert all(g is None for g in unused)
    none = torch.autograd.grad(
        terms["contrastive"], list(world.model.classifier.parameters()), allow_unused=True
    )
    assert all(g is None for g in none)
    # Both stages draw the classes alike.
    for one in world.start(METHODS["cicl"]):
        (weights,) = one.class_weights(world.run(0))
        torch.testing.assert_close(weights * world.task.class_counts, torch.ones(3))


def test_cicl_probes_with_a_fresh_classifier():
    world = World([9, 3, 1])
    stages = world.start(METHODS["cicl"])
    world.train_stage(next(stages))
    beside = state(world.model.classifier)
    next(stages)
    assert not same(state(world.model.classifier), beside)


# --- CB+WD+Max --------------------------------------------------------------------------------


def test_weight_decay_is_the_method_s_own():
    world = World([9, 3])
    decays = []
    for stage in world.start(METHODS["cb_wd_max"]):
        (group,) = optimise(stage).param_groups
        decays.append((group["weight_decay"], len(group["params"])))
    assert decays == [(5e-3, 6), (0.1, 2)]


def test_rows_are_projected_at_the_end_of_an_epoch_onto_a_radius_that_stays():
    world = World([14, 5, 3])
    stage = world.to_stage(METHODS["cb_wd_max"], 1)
    classifier = world.model.classifier
    expected = weight_balancing.max_norm_radius(classifier.weight.detach(), 0.1)
    optimizer = optimise(stage)
    run = world.run(0)
    assert stage.start_epoch(run, optimizer) == {"radius": pytest.approx(expected.item())}
    with torch.no_grad():
        classifier.bias.mul_(0).add_(50)
    longest = []
    for batches in world.batches(stage, stage.class_weights(run)):
        stage.step(optimizer, *batches)
        longest.append(classifier.weight.norm(dim=1).max().item())
    assert len(longest) == run.steps
    assert all(norm > expected for norm in longest[:-1])
    assert longest[-1] == pytest.approx(expected.item(), rel=1e-5)
    assert classifier.bias.min() > 40
    world.epoch(stage, optimizer, 1)
    assert stage.radius == expected


def test_the_class_balanced_loss_can_be_the_one_of_cui_and_nothing_else():
    world = World([9, 3, 1])
    stage = world.to_stage(METHODS["cb_wd_max"], 1, cb_loss="cross_entropy")
    images, labels = world.train
    weight = weight_balancing.class_balanced_weights(world.task.class_counts, 0.9999)
    stage.eval()
    loss = stage.loss(Batch({"weak": images}, labels))["loss"]
    torch.testing.assert_close(loss, F.cross_entropy(world.model(images), labels, weight))
    with pytest.raises(LmdError, match=r"'cb_loss'.*softmax_bce or cross_entropy.*'focal'"):
        next(world.start(METHODS["cb_wd_max"], cb_loss="focal"))


# --- FCD --------------------------------------------------------------------------------------


def test_fcd_says_that_it_is_a_reconstruction():
    assert "reconstruction" in METHODS["fcd"].title
    assert METHODS["fcd"].note.startswith("FCD-style (reconstruction)")


def test_the_flat_step_descends_by_the_gradient_of_the_perturbed_weights():
    world = World([9, 3])
    images, labels = world.train
    batch = Batch({"weak": images}, labels)
    stage = world.to_stage(METHODS["fcd"], 0, rho=0.2)
    prepare(stage)
    naive = copy.deepcopy(world.model)
    start = [p.detach().clone() for p in naive.parameters()]
    grads = torch.autograd.grad(F.cross_entropy(naive(images), labels), list(naive.parameters()))
    length = torch.cat([g.flatten() for g in grads]).norm()
    statistics = {k: v.clone() for k, v in naive.named_buffers()}
    with torch.no_grad():
        for p, g in zip(naive.parameters(), grads, strict=True):
            p.add_(0.2 * g / length)
    flat = F.cross_entropy(naive(images), labels)
    grads = torch.autograd.grad(flat, list(naive.parameters()))

    terms = stage.step(SGD(stage.parameters(), lr=0.1), batch)
    torch.testing.assert_close(terms["flat"].detach(), flat.detach())
    assert terms["flat"] > terms["loss"]
    for p, s, g in zip(world.model.parameters(), start, grads, strict=True):
        torch.testing.assert_close(p.detach(), s - 0.1 * g)
    # The perturbed pass leaves no trace in BatchNorm: one batch was counted, not two.
    for name, buffer in world.model.named_buffers():
        torch.testing.assert_close(buffer, statistics[name])


def test_fcd_teacher_is_the_stage_one_classifier_and_stays():
    world = World([9, 3])
    stage = world.to_stage(METHODS["fcd"], 1)
    first = state(world.model.classifier)
    assert same(state(stage.teacher), first)
    assert world.train_stage(stage)[0]["distillation"] == pytest.approx(0, abs=1e-6)
    assert same(state(stage.teacher), first)
    assert any(name.startswith("teacher.") for name in stage.state_dict())


def test_fcd_stays_nearer_to_its_teacher_the_more_it_is_distilled():
    distances = []
    for distill in (0.0, 20.0):
        world = World([9, 3], epochs=4)
        stage = world.to_stage(METHODS["fcd"], 1, distill=distill)
        world.train_stage(stage)
        distances.append((world.model.classifier.weight - stage.teacher.weight).norm().item())
    assert distances[1] < 0.5 * distances[0]


# --- FS ---------------------------------------------------------------------------------------


def test_fs_follows_validation_recall_once_there_is_one():
    world = World([12, 3])
    run = world.run(0)
    stage = world.to_stage(METHODS["fs"], 0)
    assert stage.class_weights(run) == [None]
    run.val_recall = torch.tensor([1.0, 0.0], dtype=torch.float64)
    (weights,) = stage.class_weights(run)
    assert weights.tolist() == pytest.approx([1 / 22, 21 / 22])
    # The weights are per image: a class that is hard alike is drawn by its number …
    run.val_recall = torch.tensor([0.5, 0.5])
    (weights,) = stage.class_weights(run)
    drawn = weights * world.task.class_counts
    assert (drawn[0] / drawn[1]).item() == pytest.approx(4)
    # … unless it is divided by it.
    stage = world.to_stage(METHODS["fs"], 0, combine_with_inverse_count=True)
    (weights,) = stage.class_weights(run)
    drawn = weights * world.task.class_counts
    assert (drawn[0] / drawn[1]).item() == pytest.approx(1)
    assert "unverified" in METHODS["fs"].note


# --- CC-SAM -----------------------------------------------------------------------------------


def test_cc_sam_terms_and_reach_of_stage_one():
    world = World([9, 3, 1])
    stage = world.to_stage(METHODS["cc_sam"], 0, rho=0.05)
    prepare(stage)
    images, labels = world.train
    terms = stage.loss(Batch({"weak": images}, labels))
    assert terms["flat"] > terms["ce"]
    torch.testing.assert_close(terms["loss"], 0.7 * terms["ce"] + 0.3 * terms["flat"])
    grads = torch.autograd.grad(terms["flat"], list(world.model.parameters()))
    # All but the bias of the convolution, which BatchNorm cancels.
    assert all(g.abs().sum() > 0 for i, g in enumerate(grads) if i != 1)


def test_cc_sam_alpha_grows_to_its_limit():
    world = World([9, 3], epochs=4)
    stage = world.to_stage(METHODS["cc_sam"], 1, limit=0.6)
    alphas = [stage.start_epoch(world.run(e), None)["alpha"] for e in range(4)]
    assert alphas == pytest.approx([0.25, 0.5, 0.6, 0.6])
    images, labels = world.train
    terms = stage.loss(Batch({"weak": images}, labels))
    torch.testing.assert_close(terms["loss"], 0.6 * terms["shifted"] + 0.4 * terms["ce"])


def test_cc_sam_mixup_has_mixed_labels_in_ce_and_own_labels_in_the_flat_term():
    world = World([9, 3, 1])
    stage = world.to_stage(METHODS["cc_sam"], 0, mixup=1.0, rho=0.0)
    prepare(stage)
    images, labels = world.train
    torch.manual_seed(5)
    share, order = cc_sam.draw_mixup(1.0, len(labels))
    torch.manual_seed(5)
    terms = stage.loss(Batch({"weak": images}, labels))
    logits = world.model(share * images + (1 - share) * images[order])
    own, other = F.cross_entropy(logits, labels), F.cross_entropy(logits, labels[order])
    torch.testing.assert_close(terms["ce"], share * own + (1 - share) * other)
    torch.testing.assert_close(terms["flat"], own)


# --- GCL --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["angular", "cosine"])
def test_gcl_noise_is_seeded_and_only_in_training_and_its_scale_ships(form):
    world = World([9, 3, 1])
    scales = []
    for stage in world.start(METHODS["gcl"], form=form):
        prepare(stage)
        images, labels = world.train
        losses = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            losses.append(stage.loss(Batch({"weak": images}, labels))["loss"].item())
        assert losses[0] == losses[1] != losses[2]
        world.train_stage(stage)
        scales.append(world.model.classifier.scale.item())
    assert scales == [30, 20]
    world.model.eval()
    assert torch.equal(world.model(images), world.model(images))
    cosine = world.model.classifier.cosine(world.model.features(images))
    torch.testing.assert_close(world.model(images), 20 * cosine)


def test_gcl_balances_stage_two_and_keeps_the_classifier():
    world = World([9, 3, 1])
    stages = world.start(METHODS["gcl"])
    first = next(stages)
    assert first.class_weights(world.run(0)) == [None]
    world.train_stage(first)
    weight = world.model.classifier.weight.detach().clone()
    second = next(stages)
    assert torch.equal(world.model.classifier.weight, weight)
    (weights,) = second.class_weights(world.run(0))
    torch.testing.assert_close(weights * world.task.class_counts, torch.ones(3))


def test_gcl_with_mixup_trains_and_refuses_what_it_cannot_use():
    world = World([9, 3, 1])
    settings = METHODS["gcl"].settings({}, profile="authors")
    assert settings["mixup"] == 1
    for row in world.train_stage(world.to_stage(METHODS["gcl"], 0, mixup=1.0)):
        assert torch.tensor(row["loss"]).isfinite()
    with pytest.raises(LmdError, match=r"'form'.*angular or cosine.*'sine'"):
        next(world.start(METHODS["gcl"], form="sine"))
    linear = Model(nn.Flatten(), nn.Linear(6, 3))
    with pytest.raises(LmdError, match=r"cosine classifier.*Linear"):
        next(gcl.gcl(linear, world.task))
