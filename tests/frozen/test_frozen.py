"""Classifiers on frozen features: against scikit-learn, known limits, and the rule of choice."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from lmd.frozen.choose import (
    CLASSIFIERS,
    FINAL,
    Linear,
    Rows,
    Scaling,
    Selection,
    calibrate_features,
    fit,
    regressions,
    streamed_cross_entropy,
)
from lmd.frozen.features import feature_table
from lmd.methods.supervised import balanced_softmax_loss

COUNTS = (200, 60, 12)


def sample(counts: tuple[int, ...] = COUNTS, width: int = 6, seed: int = 0) -> Rows:
    """Gaussian classes of equal spread around fixed centres."""
    centres = 0.8 * torch.randn(len(counts), width, generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    noise = torch.randn(len(labels), width, generator=generator)
    return Rows(centres[labels] + noise, labels)


def solved(rows: Rows, penalty: float) -> tuple[Linear, float]:
    """The exact regression, and its penalty in absolute terms."""
    metric = (rows.features.T @ rows.features / len(rows.labels)).double()
    zero = Linear.of(torch.zeros(len(COUNTS), rows.features.shape[1]))
    found = regressions(rows, metric, {penalty: zero}, **FINAL)[penalty]
    return found, penalty * metric.diagonal().sum().item()


def test_the_streamed_loss_has_the_gradient_of_autograd() -> None:
    rows = sample()
    weight = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, dtype=torch.float64, requires_grad=True)
    ours = streamed_cross_entropy(rows.features, rows.labels)(weight, bias)
    plain = F.cross_entropy(rows.features.double() @ weight.T + bias, rows.labels)
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)
    for a, b in zip(
        torch.autograd.grad(ours, [weight, bias]),
        torch.autograd.grad(plain, [weight, bias]),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_the_regression_is_scikit_learns() -> None:
    rows = sample()
    ours, strength = solved(rows, 1e-3)
    theirs = LogisticRegression(C=1 / (strength * len(rows.labels)), tol=1e-8, max_iter=5000)
    theirs.fit(rows.features.double().numpy(), rows.labels.numpy())
    np.testing.assert_allclose(ours.weight, theirs.coef_, atol=2e-3)
    expected = theirs.predict_log_proba(rows.features.double().numpy())
    np.testing.assert_allclose(ours.logits(rows.features).log_softmax(1), expected, atol=5e-3)


def test_a_balanced_softmax_regression_is_the_plain_one_with_another_bias() -> None:
    rows = sample()
    plain, strength = solved(rows, 1e-3)
    counts = rows.labels.bincount()
    balanced = plain.adjusted(counts, 1)
    weight, bias = balanced.weight.requires_grad_(), balanced.bias.requires_grad_()
    logits = rows.features.double() @ weight.T + bias
    loss = balanced_softmax_loss(logits, rows.labels, counts)
    loss = loss + strength / 2 * weight.square().sum()
    for gradient in torch.autograd.grad(loss, [weight, bias]):
        assert gradient.abs().max() < 1e-4


@pytest.mark.parametrize("widths", [None, (4, 2)])
def test_scaling_can_be_undone(widths: tuple[int, int] | None) -> None:
    features = 1e-3 * sample().features + 5
    scaling = Scaling.of(features, widths)
    scaled = scaling.apply(features)
    assert scaled.mean(0).abs().max() < 1e-2
    assert scaled.var(0).mean() == pytest.approx(1, rel=1e-2)
    if widths:
        first, second = (part.var(0).sum().item() for part in scaled.split(widths, dim=1))
        assert first == pytest.approx(second, rel=1e-2)
    one = Linear.of(torch.randn(3, 6), torch.randn(3))
    there = scaling.fold(one)
    torch.testing.assert_close(there.logits(features.double()), one.logits(scaled.double()),
                               rtol=1e-3, atol=1e-3)  # fmt: skip
    back = scaling.unfold(there)
    torch.testing.assert_close(back.weight, one.weight)
    torch.testing.assert_close(back.bias, one.bias)


def selection(train: Rows, validation: Rows | None = None, **more: NDArray[Any]) -> Selection:
    rows = [("train", train), *([("validation", validation)] if validation else [])]
    arrays = {
        "features": torch.cat([part.features for _, part in rows]).numpy(),
        "labels": torch.cat([part.labels for _, part in rows]).numpy(),
        "split": np.repeat([name for name, _ in rows], [len(part.labels) for _, part in rows]),
    }
    return Selection(feature_table(arrays | more, "test"))


def test_all_candidates_find_the_rare_class_that_plain_regression_misses() -> None:
    train, validation = sample((400, 100, 12)), sample((40, 40, 40), seed=1)
    head = torch.randn(3, 6, generator=torch.Generator().manual_seed(3))
    tried, best, _ = calibrate_features(selection(train, validation, weight=head.numpy()))
    assert list(tried) == [key for key in CLASSIFIERS if key != "existing"]
    rare = (validation.labels == 2).numpy()
    recall = {key: (one.held_out.argmax(1) == 2)[rare].mean() for key, one in tried.items()}
    for key in ("balanced", "adjusted", "gaussians", "means"):
        assert recall[key] > recall["plain"] + 0.1, key
    assert best != "plain"
    # What is shipped is for features as they are, and is what was scored.
    logits = tried[best].classifier.logits(validation.features.double())
    np.testing.assert_allclose(logits, tried[best].held_out, atol=1e-3)


def test_cross_validation_never_scores_an_image_that_was_fitted() -> None:
    """Labels without information: training accuracy would be near 1, held-out accuracy is not."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(61, 80, generator=generator)
    labels = torch.arange(61) % 2
    labels[60] = 2  # the only image of its class is always for training
    tried, _, _ = calibrate_features(selection(Rows(features, labels)))
    for one in tried.values():
        assert one.held_out.shape == (60, 3)
        assert (one.held_out.argmax(1) == labels.numpy()[:60]).mean() < 0.8
    fitted = tried["plain"].classifier.logits(features).argmax(1)
    assert (fitted == labels).double().mean() > 0.9


def test_too_many_classes_leave_the_gaussians_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmd.frozen.choose.MOST_BYTES", 100)
    tried, _, notes = calibrate_features(selection(sample(), sample()))
    assert "gaussians" not in tried
    assert "left out" in notes[0]


def test_a_class_of_one_image_can_be_fitted() -> None:
    rows = sample((30, 10, 1))
    found = fit(rows, 3, (1e-3,), ((0.5, 3e-4),))
    assert all(torch.isfinite(one.weight).all() for one in found.gaussians.values())
    assert torch.isfinite(found.means.weight).all()
