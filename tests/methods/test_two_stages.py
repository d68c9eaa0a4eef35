"""The formulas of the two-stage baselines: naive loops, known limits, reference numbers."""

import math

import pytest
import torch
from torch.nn import functional as F
from toys import close, gradient

from lmd.contract.weighting import class_balanced_weights
from lmd.methods.cicl import supervised_contrastive_loss
from lmd.methods.decoupling import (
    choose_tau,
    nearest_mean_classifier,
    tau_normalise,
)
from lmd.methods.fcd import distillation_loss
from lmd.methods.flexible_sampling import difficulty_weights
from lmd.methods.weight_balancing import max_norm, max_norm_radius, softmax_bce_loss

COUNTS = torch.tensor([100, 40, 10, 4])
LABELS = torch.tensor([0, 1, 2, 3, 0])
LOGITS = torch.tensor(
    [
        [2.0, 0.5, -1.0, 0.1],
        [0.3, 1.2, 0.0, -0.7],
        [1.5, 0.2, 0.4, -0.3],
        [0.8, -0.2, 0.1, 0.6],
        [-0.5, 0.9, 0.3, 0.2],
    ]
)
WEIGHT = torch.tensor([[3.0, 4.0], [1.0, 1.0], [0.5, 0.0], [0.2, 0.1]])
VIEWS = torch.tensor(
    [
        [[1.0, 0.2, 0.0], [0.9, 0.1, 0.3]],
        [[0.8, 0.5, 0.1], [1.0, 0.0, 0.2]],
        [[-0.2, 1.0, 0.4], [0.1, 0.9, -0.3]],
        [[0.0, -0.4, 1.0], [0.3, 0.2, 0.8]],
    ]
)
VIEW_LABELS = torch.tensor([0, 0, 1, 2])


# --- Decoupling ---------------------------------------------------------------------------------


def test_tau_normalisation_naively_and_at_its_limits():
    for tau in (0.0, 0.3, 1.0, 2.0):
        naive = [[w / math.hypot(*row) ** tau for w in row] for row in WEIGHT.tolist()]
        close(tau_normalise(WEIGHT, tau), naive)
    close(tau_normalise(WEIGHT, 0.0), WEIGHT)
    close(tau_normalise(WEIGHT, 1.0).norm(dim=1), torch.ones(4))
    close(tau_normalise(WEIGHT, 0.5)[0], [1.3416407, 1.7888544])
    assert torch.equal(tau_normalise(torch.zeros(2, 3), 1.0), torch.zeros(2, 3))


def test_tau_normalisation_of_the_authors(vectors):
    reference = vectors["tau_norm"]
    close(tau_normalise(WEIGHT, 0.5), reference["tau_0.5"])
    close(tau_normalise(WEIGHT, 1.0), reference["tau_1"])


def test_tau_is_the_one_with_the_best_mean_recall_not_accuracy():
    # The long row wins everything (accuracy 4/5) until it is normalised (3/5, mean recall 3/4).
    weight = torch.tensor([[100.0, 0.0], [0.6, 0.8]])
    features = torch.tensor([[1.0, 0.1], [0.9, 0.0], [0.5, 0.6], [0.5, 0.7], [0.1, 1.0]])
    labels = torch.tensor([0, 0, 0, 0, 1])
    assert choose_tau(weight, features, labels, (0.0, 0.5, 1.0)) == (1.0, 0.75)
    # Equals: the smallest, whatever the order.
    assert choose_tau(weight, features[:2], labels[:2], (1.0, 0.5, 0.0)) == (0.0, 1.0)
    # A class of which there is no image does not count.
    assert choose_tau(torch.eye(3), torch.eye(3)[[0, 0, 1]], torch.tensor([0, 0, 2]), (0.0,)) == (
        *(0.0, 0.5),
    )


def test_the_linear_nearest_mean_predicts_what_distances_predict():
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(60, 6, generator=generator).abs() * 3
    labels = torch.arange(60) % 4
    labels[labels == 3] = torch.tensor([3] + [0] * 14)  # one image of the last class
    weight, bias = nearest_mean_classifier(features, labels, 4)

    centre = features.mean(0)
    unit = [(f - centre) / (f - centre).norm() for f in features]
    means = []
    for k in range(4):
        mean = torch.stack([u for u, y in zip(unit, labels, strict=True) if y == k]).mean(0)
        means.append(mean / mean.norm())
    queries = torch.randn(200, 6, generator=generator) * 4
    naive = []
    for q in queries:
        u = (q - centre) / (q - centre).norm()
        naive.append(min(range(4), key=lambda k: (u - means[k]).norm()))
    assert (queries @ weight.T + bias).argmax(1).tolist() == naive
    assert len(set(naive)) == 4
    # Logits are the cosine for a feature of mean length.
    length = (features - centre).norm(dim=1).mean()
    query = centre + length * unit[0]
    close(query @ weight.T + bias, torch.stack([unit[0] @ m for m in means]))


# --- CICL -----------------------------------------------------------------------------------------


def naive_supervised_contrastive_loss(features, labels, temperature, base) -> float:
    points = [(v / v.norm(), int(y)) for f, y in zip(features, labels, strict=True) for v in f]
    losses = []
    for i, (a, y) in enumerate(points):
        others = [(b, z) for j, (b, z) in enumerate(points) if j != i]
        positives = [b for b, z in others if z == y]
        if not positives:
            continue
        denominator = sum(math.exp(float(a @ b) / temperature) for b, _ in others)
        terms = [float(a @ b) / temperature - math.log(denominator) for b in positives]
        losses.append(-sum(terms) / len(terms))
    return temperature / base * sum(losses) / len(losses)


@pytest.mark.parametrize(
    ("temperature", "base", "expected"),
    [(0.1, 0.07, 0.9728632), (0.07, 0.07, 0.6650541), (0.1, 0.1, 0.6810042)],
)
def test_supervised_contrastive_loss(temperature, base, expected):
    loss = supervised_contrastive_loss(VIEWS, VIEW_LABELS, temperature, base)
    assert loss.item() == pytest.approx(expected, abs=1e-5)
    naive = naive_supervised_contrastive_loss(VIEWS, VIEW_LABELS, temperature, base)
    assert loss.item() == pytest.approx(naive, abs=1e-5)


def test_supervised_contrastive_loss_of_the_authors(vectors):
    reference = vectors["supcon"]
    features = torch.tensor(reference["features_before_l2norm[B=4,V=2,D=3]"])
    labels = torch.tensor(reference["labels"])
    loss = supervised_contrastive_loss(features, labels, 0.1, 0.07)
    assert loss.item() == pytest.approx(reference["temp0.1_base0.07(CICL default)"], abs=1e-5)
    # Without labels every image is a class of its own.
    loss = supervised_contrastive_loss(features, torch.arange(4), 0.1, 0.1)
    expected = reference["simclr_temp0.1_base0.1(no labels)"]
    assert loss.item() == pytest.approx(expected, abs=1e-5)


def test_contrastive_limits_and_gradients():
    # One image, two views: the only other point is the positive.
    pair = VIEWS[:1].clone().requires_grad_()
    loss = supervised_contrastive_loss(pair, torch.tensor([0]), 0.1, 0.07)
    assert loss.item() == pytest.approx(0, abs=1e-6)
    close(gradient(loss, pair), torch.zeros_like(pair), atol=1e-5, rtol=0)
    # A batch of one class only: finite, and the gradient too.
    views = VIEWS.clone().requires_grad_()
    loss = supervised_contrastive_loss(views, torch.zeros(4, dtype=torch.long), 0.1, 0.07)
    naive = naive_supervised_contrastive_loss(VIEWS, torch.zeros(4), 0.1, 0.07)
    assert loss.item() == pytest.approx(naive, abs=1e-5)
    assert gradient(loss, views).isfinite().all()
    # The length of a projection does not count: the gradient is orthogonal to it.
    loss = supervised_contrastive_loss(views, VIEW_LABELS, 0.1, 0.07)
    close((gradient(loss, views) * views).sum(2), torch.zeros(4, 2), atol=1e-5, rtol=0)


def test_anchors_without_a_positive_are_left_out():
    single = VIEWS[:, :1].clone().requires_grad_()
    loss = supervised_contrastive_loss(single, VIEW_LABELS, 0.1, 0.07)
    naive = naive_supervised_contrastive_loss(single.detach(), VIEW_LABELS, 0.1, 0.07)
    assert loss.item() == pytest.approx(naive, abs=1e-5)
    for chosen, labels in ((single, torch.arange(4)), (single[:1], torch.tensor([2]))):
        loss = supervised_contrastive_loss(chosen, labels, 0.1, 0.07)
        assert loss.item() == 0
        assert torch.equal(gradient(loss, single), torch.zeros_like(single))


# --- CB+WD+Max --------------------------------------------------------------------------------


def test_max_norm_naively_and_at_its_limits():
    radius = max_norm_radius(WEIGHT, 0.1)
    norms = [math.hypot(*row) for row in WEIGHT.tolist()]
    assert radius.item() == pytest.approx(min(norms) + 0.1 * (max(norms) - min(norms)))
    assert radius.item() == pytest.approx(0.7012461, abs=1e-6)
    naive = [
        [w * min(1, radius.item() / norm) for w in row]
        for row, norm in zip(WEIGHT.tolist(), norms, strict=True)
    ]
    close(max_norm(WEIGHT, radius), naive)
    close(max_norm(WEIGHT, radius)[0], [0.4207477, 0.5609969])
    # Threshold 1 is the longest row: nothing moves; nor do rows of one length, nor zeros.
    assert torch.equal(max_norm(WEIGHT, max_norm_radius(WEIGHT, 1.0)), WEIGHT)
    equal = F.normalize(WEIGHT)
    close(max_norm(equal, max_norm_radius(equal, 0.1)), equal)
    assert torch.equal(max_norm(torch.zeros(2, 3), torch.tensor(0.0)), torch.zeros(2, 3))


def test_max_norm_of_the_authors(vectors):
    reference = vectors["maxnorm_pgd"]
    close(max_norm(WEIGHT, max_norm_radius(WEIGHT, 0.1)), reference["W_after"])


def test_the_class_balanced_loss_of_the_authors_is_not_weighted_cross_entropy():
    weight = class_balanced_weights(COUNTS, 0.9999)
    loss = softmax_bce_loss(LOGITS, LABELS, weight)
    assert loss.item() == pytest.approx(0.4396516, abs=1e-5)
    assert F.cross_entropy(LOGITS, LABELS, weight).item() != pytest.approx(loss.item(), abs=0.1)

    naive = 0.0
    for z, y in zip(LOGITS, LABELS, strict=True):
        p = z.softmax(0)
        for k in range(4):
            naive -= float(weight[y] * torch.log(p[k] if k == y else 1 - p[k]))
    assert loss.item() == pytest.approx(naive / LOGITS.numel(), abs=1e-5)


def test_softmax_bce_with_two_classes_is_cross_entropy_gradients_included():
    logits = LOGITS[:, :2].clone().requires_grad_()
    labels = LABELS % 2
    ours = softmax_bce_loss(logits, labels, torch.ones(2))
    theirs = F.cross_entropy(logits, labels)
    close(ours, theirs)
    close(gradient(ours, logits), gradient(theirs, logits))


def test_softmax_bce_stays_finite_where_probabilities_round_to_one():
    logits = torch.tensor([[200.0, 0.0, -50.0], [200.0, 0.0, 0.0]], requires_grad=True)
    loss = softmax_bce_loss(logits, torch.tensor([0, 1]), torch.ones(3))
    assert loss.isfinite()
    assert gradient(loss, logits).isfinite().all()


# --- FCD and FS -------------------------------------------------------------------------------


def test_distillation_naively_and_at_its_limit():
    teacher = (LOGITS + LOGITS.roll(1, 0) / 2).requires_grad_()
    student = LOGITS.clone().requires_grad_()
    for temperature in (1.0, 2.0):
        naive = 0.0
        for s, t in zip(LOGITS / temperature, teacher.detach() / temperature, strict=True):
            p, q = t.softmax(0), s.softmax(0)
            naive += float(sum(p[k] * (p[k] / q[k]).log() for k in range(4)))
        loss = distillation_loss(student, teacher, temperature)
        assert loss.item() == pytest.approx(temperature**2 * naive / len(LOGITS), abs=1e-5)
    with pytest.raises(RuntimeError, match="not have been used"):
        gradient(loss, teacher)
    # At T = 1 the gradient is the difference of the probabilities.
    ours = gradient(distillation_loss(student, teacher, 1.0), student)
    close(ours, (LOGITS.softmax(1) - teacher.detach().softmax(1)) / len(LOGITS))
    same = distillation_loss(student, LOGITS, 3.0)
    assert same.item() == pytest.approx(0, abs=1e-6)
    close(gradient(same, student), torch.zeros_like(LOGITS), atol=1e-6, rtol=0)


def test_difficulty_weights():
    recall = torch.tensor([0.9, 0.5, 0.1])
    inverse = [1 / (r + 0.05) for r in recall.tolist()]
    close(difficulty_weights(recall, 0.05), [i / sum(inverse) for i in inverse])
    # Equal recalls: equal weights.
    close(difficulty_weights(torch.full((4,), 0.3), 0.05), torch.full((4,), 0.25))
    # A recall of zero is finite, and of NaN is average.
    hard = difficulty_weights(torch.tensor([0.0, 1.0]), 0.05)
    close(hard, [21 / 22, 1 / 22])
    missing = difficulty_weights(torch.tensor([0.8, torch.nan, 0.4]), 0.05)
    assert missing.isfinite().all()
    assert missing[0] < missing[1] < missing[2]
    close(difficulty_weights(torch.full((3,), torch.nan), 0.05), torch.full((3,), 1 / 3))
