"""The formulas of the two-stage baselines: naive loops, known limits, reference numbers."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmd.methods.cc_sam import class_radius, draw_mixup, flat_loss, shift_strengths, shifted_loss
from lmd.methods.cicl import supervised_contrastive_loss
from lmd.methods.decoupling import (
    choose_tau,
    mean_recall,
    nearest_mean_classifier,
    tau_normalise,
)
from lmd.methods.fcd import distillation_loss
from lmd.methods.flexible_sampling import difficulty_weights
from lmd.methods.gcl import cloud_sizes, draw_noise, gcl_angular_loss, gcl_loss
from lmd.methods.weight_balancing import max_norm, max_norm_radius, softmax_bce_loss
from lmd.weighting import class_balanced_weights

VECTORS = Path(__file__).parents[1].parent / "shared" / "spec" / "reference_vectors.json"

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
COSINE = torch.tensor(
    [
        [0.9, 0.1, -0.3, 0.05],
        [0.2, 0.7, 0.1, -0.4],
        [0.5, 0.1, 0.3, -0.2],
        [0.4, -0.1, 0.0, 0.35],
        [-0.2, 0.6, 0.15, 0.1],
    ]
)
NOISE = torch.tensor(
    [
        [0.3, -0.1, 0.5, -0.2],
        [-0.6, 0.2, 0.1, 0.4],
        [0.0, -0.3, 0.25, 0.7],
        [0.15, 0.45, -0.35, -0.05],
        [0.9, -0.8, 0.05, 0.6],
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


@pytest.fixture(scope="module")
def vectors() -> dict:
    if not VECTORS.exists():
        pytest.skip("the reference vectors are not beside this checkout")
    return json.loads(VECTORS.read_text(encoding="utf-8"))["vectors"]


def gradient(loss: Tensor, of: Tensor) -> Tensor:
    return torch.autograd.grad(loss, of)[0]


def close(a: Tensor, b, **options) -> None:
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), **options)


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
    assert mean_recall(torch.tensor([0, 0, 1]), torch.tensor([0, 0, 2])) == 0.5


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
    teacher = (LOGITS + COSINE).requires_grad_()
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


# --- CC-SAM -----------------------------------------------------------------------------------

FEATURES = torch.tensor([[1.0, 0.2], [0.4, 0.9], [-0.3, 0.7], [0.5, -0.6], [0.8, 0.1]])


@pytest.fixture
def classifier() -> nn.Linear:
    linear = nn.Linear(2, 4)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[0.5, 0.1], [0.2, 0.4], [-0.1, 0.3], [0.0, -0.2]]))
        linear.bias.copy_(torch.tensor([0.1, 0.0, -0.1, 0.05]))
    return linear


def of_parameters(loss: Tensor, classifier: nn.Linear) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(classifier.parameters())))


def test_flat_loss_of_the_authors(classifier, vectors):
    ce = F.cross_entropy(classifier(FEATURES), LABELS)
    loss = 0.5 * ce + 0.5 * flat_loss(classifier, FEATURES, LABELS, COUNTS, 0.05)
    reference = vectors["ccsam_step"]["result"]["stage1"]
    assert loss.item() == pytest.approx(reference["loss"], abs=1e-6)
    weight, bias = of_parameters(loss, classifier)
    close(weight, reference["gradW"])
    close(bias, reference["gradb"])


def test_shifted_loss_of_the_authors(classifier, vectors):
    ce = F.cross_entropy(classifier(FEATURES), LABELS)
    loss = 0.5 * ce + 0.5 * shifted_loss(classifier, FEATURES, LABELS, shift_strengths(COUNTS))
    reference = vectors["ccsam_step"]["result"]["stage2"]
    assert loss.item() == pytest.approx(reference["loss"], abs=1e-6)
    weight, bias = of_parameters(loss, classifier)
    close(weight, reference["gradW"])
    close(bias, reference["gradb"])
    close(shift_strengths(COUNTS), vectors["ccsam_class_weights"]["value"])


def test_cc_sam_reference_numbers(classifier):
    ce = F.cross_entropy(classifier(FEATURES), LABELS)
    flat = flat_loss(classifier, FEATURES, LABELS, COUNTS, 0.05)
    shifted = shifted_loss(classifier, FEATURES, LABELS, shift_strengths(COUNTS))
    assert (0.5 * ce + 0.5 * flat).item() == pytest.approx(1.1848347, abs=1e-6)
    assert (0.5 * ce + 0.5 * shifted).item() == pytest.approx(1.1394680, abs=1e-6)
    close(shift_strengths(COUNTS), [0.0049752, 0.4601414, 1.1517923, 1.6096379])


def test_flat_loss_is_the_loss_at_weights_moved_in_place(classifier):
    features = FEATURES.clone().requires_grad_()
    loss = flat_loss(classifier, features, LABELS, COUNTS, 0.05)
    ours = [
        *of_parameters(loss, classifier),
        gradient(flat_loss(classifier, features, LABELS, COUNTS, 0.05), features),
    ]

    size, total = 12, 0.0
    norm = torch.cat([p.flatten() for p in classifier.parameters()]).norm().item()
    sums = [torch.zeros_like(p) for p in (*classifier.parameters(), features)]
    for k in range(4):
        rows = [i for i, y in enumerate(LABELS.tolist()) if y == k]
        moved = copy.deepcopy(classifier)
        grads = of_parameters(F.cross_entropy(moved(FEATURES[rows]), LABELS[rows]), moved)
        with torch.no_grad():
            for p, g in zip(moved.parameters(), grads, strict=True):
                rho = 0.05 * math.sqrt(norm / g.norm().item() / 2) * (COUNTS[k].item() - 1) ** -0.25
                p.add_(rho / size**0.25 * size**0.5 * g / g.norm())
        part = F.cross_entropy(moved(features[rows]), LABELS[rows], reduction="sum") / 5
        total += part.item()
        for s, g in zip(
            sums, torch.autograd.grad(part, [*moved.parameters(), features]), strict=True
        ):
            s.add_(g)
    assert loss.item() == pytest.approx(total, abs=1e-6)
    for a, b in zip(ours, sums, strict=True):
        close(a, b)


def test_flat_loss_without_a_radius_is_cross_entropy_gradients_included(classifier):
    features = FEATURES.clone().requires_grad_()
    flat = flat_loss(classifier, features, LABELS, COUNTS, 0.0)
    ce = F.cross_entropy(classifier(features), LABELS)
    close(flat, ce)
    for p in (*classifier.parameters(), features):
        close(
            torch.autograd.grad(flat, p, retain_graph=True)[0],
            torch.autograd.grad(ce, p, retain_graph=True)[0],
        )


def test_flat_loss_is_above_cross_entropy_and_leaves_the_classifier_alone(classifier):
    before = copy.deepcopy(classifier.state_dict())
    ce = F.cross_entropy(classifier(FEATURES), LABELS)
    assert flat_loss(classifier, FEATURES, LABELS, COUNTS, 0.05) > ce
    assert all(torch.equal(v, classifier.state_dict()[k]) for k, v in before.items())
    assert all(p.grad is None for p in classifier.parameters())


def test_a_class_of_one_image_moves_like_one_of_two_and_rarer_ones_further():
    g, norm = torch.tensor([0.3, 0.4]), torch.tensor(2.0)
    radii = [class_radius(g, norm, 12, torch.tensor(n), 0.05).item() for n in (1, 2, 3, 100)]
    assert radii[0] == radii[1] > radii[2] > radii[3] > 0
    assert radii[3] == pytest.approx(0.05 * math.sqrt(2 / 0.5 / 2) * 99**-0.25 * 12**0.25)


def test_gradients_below_rounding_do_not_throw_the_classifier_away(classifier):
    features = 60 * F.one_hot(torch.tensor([0, 1])).float()
    with torch.no_grad():
        classifier.weight.copy_(torch.tensor([[1.0, 0], [0, 1.0], [-1, -1], [-2, -2]]))
    loss = flat_loss(classifier, features, torch.tensor([0, 1]), torch.tensor([9, 1, 1, 1]), 1e-6)
    assert loss.item() < 1e-3
    assert all(g.isfinite().all() for g in of_parameters(loss, classifier))
    shifted = shifted_loss(classifier, features, torch.tensor([0, 1]), torch.ones(4))
    assert all(g.isfinite().all() for g in of_parameters(shifted, classifier))


def test_shifted_loss_naively_and_the_head_nearly_vanishes(classifier):
    strengths = shift_strengths(COUNTS)
    total = 0.0
    for k in range(4):
        rows = [i for i, y in enumerate(LABELS.tolist()) if y == k]
        f = FEATURES[rows].clone().requires_grad_()
        g = gradient(F.cross_entropy(classifier(f), LABELS[rows]), f)
        for i, row in enumerate(rows):
            moved = FEATURES[row] + strengths[k] * g[i] / g.square().sum().sqrt()
            total += (strengths[k] * F.cross_entropy(classifier(moved), LABELS[row])).item()
    loss = shifted_loss(classifier, FEATURES, LABELS, strengths)
    assert loss.item() == pytest.approx(total / 5, abs=1e-6)
    assert strengths[0] < 0.005 < strengths[1]
    # Balanced counts: everyone is a head class; a class of one image is finite.
    close(shift_strengths(torch.tensor([5, 5])), torch.full((2,), math.log(1.01) / 2))
    assert shift_strengths(torch.tensor([1000, 1])).isfinite().all()


def test_mixup_keeps_the_larger_share_of_the_image_whose_label_it_bears():
    torch.manual_seed(0)
    draws = [draw_mixup(1.0, 6) for _ in range(400)]
    shares = torch.tensor([share for share, _ in draws])
    assert shares.min() >= 0.5
    # Folded at ½, a uniform share is uniform on [½, 1].
    assert shares.mean().item() == pytest.approx(0.75, abs=0.03)
    assert all(sorted(order.tolist()) == list(range(6)) for _, order in draws)


# --- GCL --------------------------------------------------------------------------------------


def test_cloud_sizes():
    close(cloud_sizes(COUNTS), [0.0, 0.2846617, 0.7153383, 1.0])
    assert torch.equal(cloud_sizes(torch.tensor([7, 7, 7])), torch.zeros(3))
    close(cloud_sizes(torch.tensor([9, 1])), [0.0, 1.0])


def test_noise_is_clamped_and_has_the_deviation_of_a_third():
    torch.manual_seed(0)
    noise = draw_noise(torch.empty(1000, 40))
    assert noise.abs().max() == 1
    assert noise.abs().mean().item() == pytest.approx(0.2659615, abs=0.003)


@pytest.mark.parametrize(
    ("margin", "scale", "gamma", "expected"), [(0.0, 30, 0, 6.3233962), (0.1, 20, 1, 5.3871098)]
)
def test_gcl_cosine_form(margin, scale, gamma, expected):
    loss = gcl_loss(COSINE, LABELS, COUNTS, NOISE, margin, scale, 0.5, gamma)
    assert loss.item() == pytest.approx(expected, abs=1e-5)
    sizes = [math.log(100 / n) / math.log(25) for n in COUNTS.tolist()]
    naive = 0.0
    for c, e, y in zip(COSINE.tolist(), NOISE.tolist(), LABELS.tolist(), strict=True):
        z = [scale * (c[k] - 0.5 * abs(e[k]) * sizes[k] - margin * (k == y)) for k in range(4)]
        ce = math.log(sum(math.exp(v) for v in z)) - z[y]
        naive += (1 - math.exp(-ce)) ** gamma * ce / 5
    assert loss.item() == pytest.approx(naive, abs=1e-5)


def test_gcl_angular_form():
    options = {"margin": 0.1, "scale": 30.0, "epsilon": 0.1, "gamma": 0.0}
    loss = gcl_angular_loss(COSINE, LABELS, COUNTS, NOISE, **options)
    assert loss.item() == pytest.approx(8.0720873, abs=1e-5)
    sizes = [math.log(100 / n) / math.log(25) for n in COUNTS.tolist()]
    naive = 0.0
    for c, e, y in zip(COSINE.tolist(), NOISE.tolist(), LABELS.tolist(), strict=True):
        z = []
        for k in range(4):
            wide = abs(math.pi / 2 * 0.1 * sizes[k] * e[k]) + 0.1 * (k == y)
            z.append(30 * math.cos(math.acos(c[k]) + wide))
        naive += (math.log(sum(math.exp(v) for v in z)) - z[y]) / 5
    assert loss.item() == pytest.approx(naive, abs=1e-5)


def test_gcl_of_the_authors(vectors):
    cosine = COSINE.clone().requires_grad_()
    losses = {
        "gcl_stage1": gcl_loss(cosine, LABELS, COUNTS, NOISE, 0.0, 30, 0.5, 0),
        "gcl_stage2": gcl_loss(cosine, LABELS, COUNTS, NOISE, 0.1, 20, 0.5, 1),
        "gcl_angular": gcl_angular_loss(
            cosine, LABELS, COUNTS, NOISE, margin=0.1, scale=30, epsilon=0.1, gamma=0
        ),
    }
    for key, loss in losses.items():
        assert loss.item() == pytest.approx(vectors[key]["mean"], abs=1e-5)
        close(gradient(loss, cosine), vectors[key]["grad_cosine"], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("counts", [COUNTS, torch.tensor([7, 7, 7, 7])])
def test_gcl_without_clouds_is_scaled_cross_entropy_gradients_included(counts):
    # No noise, or balanced classes: both forms are plain.
    noise = NOISE if counts[0] == 7 else torch.zeros_like(NOISE)
    cosine = COSINE.clone().requires_grad_()
    plain = F.cross_entropy(30 * cosine, LABELS)
    expected = gradient(plain, cosine)
    form = gcl_loss(cosine, LABELS, counts, noise, 0.0, 30, 0.5, 0)
    angular = gcl_angular_loss(
        cosine, LABELS, counts, noise, margin=0, scale=30, epsilon=0.1, gamma=0
    )
    for loss in (form, angular):
        close(loss, plain)
        close(gradient(loss, cosine), expected)


def test_angular_form_beyond_pi_keeps_falling_and_is_smooth_at_the_poles():
    # A widening of ½: the angle passes π where the cosine is below cos(π − ½).
    line = torch.linspace(-1, 1, 401)[:, None].expand(-1, 2).clone().requires_grad_()
    labels = torch.zeros(401, dtype=torch.long)
    noise, counts = torch.zeros(401, 2), torch.tensor([5, 5])
    losses = []
    for c in line.detach():
        pair = torch.stack([c[0], torch.tensor(0.0)])[None]
        losses.append(
            gcl_angular_loss(
                pair, labels[:1], counts, noise[:1], margin=0.5, scale=5, epsilon=0.1, gamma=0
            )
        )
    steps = torch.stack(losses).diff()
    assert (steps <= 1e-6).sum() >= 399  # one upward jump at most, where the fallback begins
    total = gcl_angular_loss(
        line, labels, counts, noise, margin=0.5, scale=30, epsilon=0.1, gamma=0
    )
    assert gradient(total, line).isfinite().all()
    below = torch.tensor([[-0.99, 0.3]])
    expected = F.cross_entropy(
        5 * torch.tensor([[-0.99 - math.sin(math.pi - 0.5), 0.3]]), labels[:1]
    )
    loss = gcl_angular_loss(
        below, labels[:1], counts, noise[:1], margin=0.5, scale=5, epsilon=0.1, gamma=0
    )
    close(loss, expected)
