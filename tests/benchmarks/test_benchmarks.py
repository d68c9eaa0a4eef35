"""The straightforward way and ours give the same numbers; the benchmarks' own arithmetic."""

import pytest
import torch
from scripts import common, script
from torch import nn
from torch.nn import functional as F
from toys import fdc_loss, virtual_sample

from lmd.methods.lmd.descent import SGD, pays, sgd_pass, virtual_pass
from lmd.methods.lmd.gaussians import ClassGaussians, mixed_counts
from lmd.methods.lmd.vfc import expected_cross_entropy, normal_draws

K, C, N = 4, 12, 240


naive, breakdown, growth = script("naive"), script("breakdown"), script("growth")


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor]:
    features, labels = common.long_tailed_features(N, K, C)
    return features.double(), labels


def test_moments_and_their_average_are_equal(data):
    features, labels = data
    gaussians = ClassGaussians(K, C).double().update(features, labels)
    other = features.flip(0).sqrt()
    gaussians.update(other, labels, 1)
    first = naive.moments(features.numpy(), labels.numpy(), K, 1e-2)
    second = naive.moments(other.numpy(), labels.numpy(), K, 1e-2)
    mean, covariance = (naive.average(a, b, 1) for a, b in zip(first, second, strict=True))
    torch.testing.assert_close(gaussians.mean, torch.from_numpy(mean))
    torch.testing.assert_close(gaussians.covariance, torch.from_numpy(covariance))


def test_fdc_and_its_gradient_are_equal(data):
    features, labels = data
    gaussians = ClassGaussians(K, C).double().update(features, labels)
    ours, theirs = (features[:32].clone().requires_grad_() for _ in range(2))
    loss = fdc_loss(ours, labels[:32], gaussians)
    plain = naive.fdc(theirs, labels[:32], gaussians.mean, gaussians.covariance)
    torch.testing.assert_close(loss, plain)
    loss.backward()
    plain.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_virtual_features_have_the_same_moments(data):
    gaussians = ClassGaussians(K, C).double().update(*data)
    count = 20_000
    moments = gaussians.mean.numpy(), gaussians.covariance.numpy()
    drawn, labels = naive.virtual_features(*moments, count, 0)
    ours, our_labels = virtual_sample(gaussians, count, torch.Generator().manual_seed(0))
    assert torch.equal(labels, our_labels)
    for k in range(K):
        a, b = drawn[labels == k].double(), ours[labels == k]
        scale = gaussians.covariance[k].diagonal().sqrt()
        assert ((a.mean(0) - b.mean(0)) / scale).abs().max() < 5 * (2 / count) ** 0.5
        difference = (a.T.cov() - b.T.cov()) / scale[:, None] / scale
        assert difference.abs().max() < 5 * (4 / count) ** 0.5


def test_the_loss_in_logits_is_the_loss_on_virtual_features(data):
    gaussians = ClassGaussians(K, C).double().update(*data)
    layer = nn.Linear(C, K).double()
    drawn, labels = naive.virtual_features(
        gaussians.mean.numpy(), gaussians.covariance.numpy(), 50_000, 0
    )
    each = F.cross_entropy(layer(drawn.double()), labels, reduction="none")
    draws = normal_draws(4096, K - 1, torch.Generator().manual_seed(0))
    objective = expected_cross_entropy(gaussians.mean, gaussians.covariance, draws)
    error = 5 * each.std().item() / len(labels) ** 0.5 + 1e-4
    assert abs(objective(layer.weight, layer.bias).item() - each.mean().item()) < error


def passes(way, gaussians, layer, seeds, *, per_class, lr=1.0):
    """What one pass from the same start adds to the weight and bias: ``(seeds, K (C + 1))``."""
    found = []
    for seed in range(seeds):
        weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
        velocity = torch.zeros_like(weight), torch.zeros_like(bias)
        generator = torch.Generator().manual_seed(seed)
        loss = way(gaussians, per_class, generator, weight, bias, velocity, lr)
        moved = [(weight - layer.weight).flatten(), bias - layer.bias]
        found.append(torch.cat([*moved, torch.tensor([loss])]).detach())
    return torch.stack(found).double()


def on_features(gaussians, per_class, generator, *state_lr):
    batches = gaussians.batches(per_class, 40, generator)
    return sgd_pass(batches, SGD(*state_lr, 0.5, 0.1))


def in_logits(gaussians, per_class, generator, *state_lr):
    return virtual_pass(gaussians, per_class, 40, generator, SGD(*state_lr, 0.5, 0.1))


@pytest.mark.parametrize("per_class", [10, 25])  # one batch; several, the last one partial
def test_a_pass_in_logits_has_the_distribution_of_one_on_features(data, per_class):
    # Mean and covariance of all K (C + 1) numbers that a pass moves, and of its loss: with a step
    # large enough that what the first batches did matters for the later ones.
    features, labels = data
    gaussians = ClassGaussians(K, C).update(features.float(), labels)
    torch.manual_seed(0)
    layer, seeds = nn.Linear(C, K), 800
    a = passes(on_features, gaussians, layer, seeds, per_class=per_class)
    b = passes(in_logits, gaussians, layer, seeds, per_class=per_class)
    deviation = a.std(0)
    assert ((a.mean(0) - b.mean(0)) / deviation).abs().max() < 4.5 * (2 / seeds) ** 0.5
    assert (a.std(0) / b.std(0)).log().abs().max() < 0.16
    # The weights' rows sum to a constant: the correlations of all but the last row say the rest.
    free = a.shape[1] - 1 - K - C
    assert (a[:, :free].T.corrcoef() - b[:, :free].T.corrcoef()).abs().max() < 0.23


def test_a_pass_in_logits_learns_what_the_straightforward_one_learns(data):
    features, labels = data
    gaussians = ClassGaussians(K, C).update(features.float(), labels)
    torch.manual_seed(0)
    start = nn.Linear(C, K)
    ours = passes(in_logits, gaussians, start, 8, per_class=2000, lr=0.02)
    plain = []
    for seed in range(8):
        torch.manual_seed(seed)
        layer = nn.Linear(C, K)
        layer.load_state_dict(start.state_dict())
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.02, momentum=0.5, weight_decay=0.1)
        moments = gaussians.mean.double().numpy(), gaussians.covariance.double().numpy()
        drawn = naive.virtual_features(*moments, 2000, seed)
        loss = naive.sgd_epoch(*drawn, layer, optimizer, 40)
        moved = [(layer.weight - start.weight).flatten(), layer.bias - start.bias]
        plain.append(torch.cat([*moved, torch.tensor([loss])]).detach().double())
    theirs = torch.stack(plain)
    error = (ours.var(0) / 8 + theirs.var(0) / 8).sqrt() + 1e-6
    z = (ours.mean(0) - theirs.mean(0)) / error
    assert z.abs().max() < 7  # Student's t with 14 degrees of freedom, 53 of them
    assert z.square().mean() < 2.5


def test_a_pass_leaves_moments_alone_and_a_seed_repeats_it(data):
    features, labels = data
    gaussians = ClassGaussians(K, C).update(features.float(), labels)
    before = gaussians.covariance.clone()
    layer = nn.Linear(C, K)
    first, second = (passes(in_logits, gaussians, layer, 1, per_class=30) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(gaussians.covariance, before)
    assert gaussians.covariance.grad is None


def test_which_way_pays():
    assert pays(8, 512, 352)
    assert not pays(8, 64, 352)  # few channels
    assert not pays(23, 512, 352)  # more rows to colour than features in the batch


def test_batches_are_those_of_a_shuffle():
    counts = torch.tensor(list(mixed_counts(3, 50, 40, torch.Generator().manual_seed(0))))
    assert counts.sum(1).tolist() == [40, 40, 40, 30]
    assert counts.sum(0).tolist() == [50, 50, 50]
    first = torch.tensor(
        [next(mixed_counts(3, 50, 40, torch.Generator().manual_seed(s))) for s in range(2000)]
    ).double()
    # Hypergeometric: variance n p (1 - p) (150 - n) / 149.
    assert abs(first[:, 0].mean() - 40 / 3) < 0.3
    assert first[:, 0].var().item() == pytest.approx(40 * 2 / 9 * 110 / 149, rel=0.15)


def test_results_know_whether_they_are_met():
    assert common.Result("x", 61, 60, True).met
    assert not common.Result("x", 59, 60, True).met
    assert common.Result("x", 1.1, 1.15, False).met
    assert "NOT MET" in common.Result("x", 1.2, 1.15, False).line()
    assert common.median_ratio([4.0, 9.0, 100.0], [2.0, 3.0, 1.0]) == 3.0


def test_no_second_of_a_run_is_counted_twice():
    record = {
        "name": "r",
        "method": {"title": "LMD"},
        "timings": {
            "decode": 1.0,
            "stage 1 student": 3.0,
            "stage 1 backward and update": 4.0,
            "stage 1 steps": 10.0,
            "stage 2 features": 4.0,
            "stage 2 start of epoch": 5.0,
            "checkpoint": 1.0,
            "views": 7.0,
        },
        "stages": [{"name": "RRL", "epochs": 2, "seconds": 18.0}],
    }
    found = dict(breakdown.breakdown(record))
    assert found == {
        "decode": 1.0,
        "stage 1 student": 3.0,
        "stage 1 backward and update": 4.0,
        "stage 1 rest of a step": 3.0,
        "stage 2 features": 4.0,
        "stage 2 M step": 1.0,
        "checkpoint": 1.0,
        "other": 3.0,
    }
    assert "20.0 s" in breakdown.table(record)
    assert "views, meanwhile" in breakdown.table(record)


def test_the_cost_model_finds_the_constants_that_made_its_points():
    def made(point):
        # As if the first term of every kind took all the time, and the second a little.
        return {kind: 3e-9 * t[0] + 1e-9 * t[1] for kind, t in growth.terms(*point).items()}

    constants = growth.fit({point: made(point) for point in growth.FITTED})
    for point in growth.CHECKED + growth.EXTENDED:
        for kind, expected in made(point).items():
            found = sum(
                c * t for c, t in zip(constants[kind], growth.terms(*point)[kind], strict=True)
            )
            assert found == pytest.approx(expected, rel=0.02)
