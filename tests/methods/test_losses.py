"""The losses of one-stage methods: naive loops, known limits, reference numbers, gradients."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from toys import COSINE, COUNTS, LOGITS, gradient, inputs

from lmd.methods.balanced_mixup import mixed_cross_entropy
from lmd.methods.cb_focal import sigmoid_focal_loss
from lmd.methods.focal import focal_loss
from lmd.methods.ldam import ldam_loss, ldam_margins
from lmd.methods.logit_adjustment import vs_loss
from lmd.methods.seesaw import seesaw_loss
from lmd.methods.supervised import balanced_softmax_loss, class_balanced_weights

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
Row = list[float]


def ldam(weighted: bool) -> Loss:
    def loss(cosine: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        weight = class_balanced_weights(counts.to(cosine), 0.9999) if weighted else None
        return ldam_loss(cosine, labels, ldam_margins(counts, 0.5).to(cosine), 30.0, weight)

    return loss


def softmax(row: Row) -> Row:
    total = sum(math.exp(z) for z in row)
    return [math.exp(z) / total for z in row]


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


# The loops below know one image at a time and nothing of tensors.
def loop_focal(gamma: float) -> Callable[[Row, int, Row], float]:
    def one(row: Row, y: int, counts: Row) -> float:
        p = softmax(row)[y]
        return -((1 - p) ** gamma) * math.log(p)

    return one


def loop_cb_focal(gamma: float) -> Callable[[Row, int, Row], float]:
    def one(row: Row, y: int, counts: Row) -> float:
        raw = [(1 - 0.9999) / (1 - 0.9999**n) for n in counts]
        total = 0.0
        for k, z in enumerate(row):
            p = sigmoid(z) if k == y else 1 - sigmoid(z)
            total += (1 - p) ** gamma * -math.log(p)
        return raw[y] * len(raw) / sum(raw) * total

    return one


def loop_ldam(row: Row, y: int, counts: Row) -> float:
    margin = 0.5 * (min(counts) / counts[y]) ** 0.25
    return -math.log(softmax([30 * (c - margin * (k == y)) for k, c in enumerate(row)])[y])


def loop_seesaw(p: float, q: float) -> Callable[[Row, int, Row], float]:
    def one(row: Row, y: int, counts: Row) -> float:
        scores = softmax(row)
        adjusted = []
        for k, z in enumerate(row):
            m = (counts[k] / counts[y]) ** p if counts[k] < counts[y] else 1.0
            ratio = scores[k] / max(scores[y], 0.01)
            c = ratio**q if ratio > 1 else 1.0
            adjusted.append(z if k == y else z + math.log(m * c))
        return -math.log(softmax(adjusted)[y])

    return one


def loop_prior(tau: float) -> Callable[[Row, int, Row], float]:
    def one(row: Row, y: int, counts: Row) -> float:
        shifted = [z + tau * math.log(n / sum(counts)) for z, n in zip(row, counts, strict=True)]
        return -math.log(softmax(shifted)[y])

    return one


def loop_vs(row: Row, y: int, counts: Row) -> float:
    shifted = [
        z * (n / max(counts)) ** 0.3 + math.log(n / sum(counts))
        for z, n in zip(row, counts, strict=True)
    ]
    return -math.log(softmax(shifted)[y])


# Loss, its loop, the recorded value at LOGITS or COSINE, and where the reference file has it.
CASES: dict[str, tuple[Loss, Callable[[Row, int, Row], float], float, str, str]] = {
    "focal 1": (
        lambda z, y, n: focal_loss(z, y, 1.0),
        loop_focal(1),
        0.9124011,
        "focal_softmax_gamma1",
        "mean",
    ),
    "focal 2": (
        lambda z, y, n: focal_loss(z, y, 2.0),
        loop_focal(2),
        0.7227370,
        "focal_softmax_gamma2",
        "mean",
    ),
    "cb_focal 0.5": (
        lambda z, y, n: sigmoid_focal_loss(z, y, class_balanced_weights(n, 0.9999), 0.5),
        loop_cb_focal(0.5),
        1.8874476,
        "cb_focal_sigmoid_beta0.9999_gamma0.5",
        "value",
    ),
    "cb_focal 1": (
        lambda z, y, n: sigmoid_focal_loss(z, y, class_balanced_weights(n, 0.9999), 1.0),
        loop_cb_focal(1),
        1.4419841,
        "cb_focal_sigmoid_beta0.9999_gamma1",
        "value",
    ),
    "cb_focal 2": (
        lambda z, y, n: sigmoid_focal_loss(z, y, class_balanced_weights(n, 0.9999), 2.0),
        loop_cb_focal(2),
        0.8833091,
        "cb_focal_sigmoid_beta0.9999_gamma2",
        "value",
    ),
    "ldam": (ldam(weighted=False), loop_ldam, 13.0277510, "ldam", "mean"),
    "seesaw": (
        lambda z, y, n: seesaw_loss(z, y, n, 0.8, 2.0),
        loop_seesaw(0.8, 2.0),
        1.7679052,
        "seesaw_fixed_counts",
        "mean",
    ),
    "seesaw p": (
        lambda z, y, n: seesaw_loss(z, y, n, 0.8, 0.0),
        loop_seesaw(0.8, 0.0),
        0.9184877,
        "seesaw_fixed_counts",
        "mean_p_only(q=0)",
    ),
    "seesaw q": (
        lambda z, y, n: seesaw_loss(z, y, n, 0.0, 2.0),
        loop_seesaw(0.0, 2.0),
        2.0346570,
        "seesaw_fixed_counts",
        "mean_q_only(p=0)",
    ),
    "balanced softmax": (
        balanced_softmax_loss,
        loop_prior(1),
        1.8161814,
        "balanced_softmax",
        "mean",
    ),
    "logit adjustment 0.5": (
        lambda z, y, n: balanced_softmax_loss(z, y, n, 0.5),
        loop_prior(0.5),
        1.4189193,
        "logit_adjusted_train_loss",
        "tau_0.5",
    ),
    "logit adjustment 1": (
        lambda z, y, n: balanced_softmax_loss(z, y, n, 1.0),
        loop_prior(1),
        1.8161812,
        "logit_adjusted_train_loss",
        "tau_1.0",
    ),
    "vs": (
        lambda z, y, n: vs_loss(z, y, n, 0.3, 1.0),
        loop_vs,
        1.9337871,
        "vs_loss",
        "mean",
    ),
}


def inputs_of(case: str) -> tuple[Tensor, Tensor, Tensor]:
    return inputs(COSINE if case == "ldam" else LOGITS)


@pytest.mark.parametrize("case", CASES)
def test_value_is_the_recorded_one(case: str) -> None:
    loss, _, expected, _, _ = CASES[case]
    assert loss(*inputs_of(case)).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradient_are_those_of_the_reference_file(
    case: str, vectors: dict[str, Any]
) -> None:
    loss, _, expected, key, name = CASES[case]
    vector = vectors[key]
    assert vector[name] == expected
    recorded = vector.get("grad_logits", vector.get("grad_cosine"))
    if recorded is not None and name in ("mean", "value"):
        scores, labels, counts = inputs_of(case)
        found = gradient(loss(scores, labels, counts), scores)
        torch.testing.assert_close(found, torch.tensor(recorded), rtol=1e-4, atol=2e-7)


# Two rows of recorded gradients, so that slopes are checked without the reference file as well.
@pytest.mark.parametrize(
    ("case", "first", "fourth"),
    [
        (
            "focal 2",
            [-0.0139813, 0.0073841, 0.0016476, 0.0049497],
            [0.073509, 0.0270425, 0.0365035, -0.137055],
        ),
        (
            "cb_focal 1",
            [-0.0005747, 0.0128651, 0.0027952, 0.0096272],
            [0.3773207, 0.1821229, 0.2395275, -0.1171832],
        ),
        ("ldam", [0.0, 2e-07, 0.0, 0.0], [5.9999599, 1.8e-06, 3.69e-05, -5.9999995]),
        (
            "seesaw",
            [-0.0224562, 0.0190332, 0.0014009, 0.0020221],
            [0.0939726, 0.0231734, 0.0312808, -0.1484267],
        ),
        (
            "balanced softmax",
            [-0.0182171, 0.0162245, 0.000905, 0.0010876],
            [0.1626599, 0.0239357, 0.0080774, -0.194673],
        ),
    ],
)
def test_gradient_is_the_recorded_one(case: str, first: Row, fourth: Row) -> None:
    scores, labels, counts = inputs_of(case)
    found = gradient(CASES[case][0](scores, labels, counts), scores)
    torch.testing.assert_close(found[[0, 3]], torch.tensor([first, fourth]), rtol=1e-4, atol=2e-7)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("counts", [[5, 1], [50, 20, 1], [9012, 900, 90, 9, 1, 1, 3]])
@pytest.mark.parametrize("size", [1, 4])
def test_loss_is_the_mean_of_a_loop(case: str, counts: list[int], size: int) -> None:
    loss, one, _, _, _ = CASES[case]
    generator = torch.Generator().manual_seed(size + len(counts))
    scores = torch.randn(size, len(counts), generator=generator, dtype=torch.float64)
    scores = scores.clamp(-1, 1) if case == "ldam" else 3 * scores
    labels = torch.randint(len(counts), (size,), generator=generator)
    n = [float(c) for c in counts]
    terms = [one(r, y, n) for r, y in zip(scores.tolist(), labels.tolist(), strict=True)]
    found = loss(scores, labels, torch.tensor(counts).double())
    assert found.item() == pytest.approx(sum(terms) / size, rel=1e-9)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("counts", [[20000, 1], [100, 0, 1]])
def test_extreme_scores_and_counts_stay_finite(case: str, size: float, counts: list[int]) -> None:
    # Sure and right, sure and wrong, and undecided; never an image of a class without images.
    k, last = len(counts), len(counts) - 1
    scores = torch.zeros(3, k)
    scores[0, 0] = scores[1, 0] = size
    scores.requires_grad_()
    loss = CASES[case][0](scores, torch.tensor([0, last, last]), torch.tensor(counts))
    assert loss.isfinite()
    assert gradient(loss, scores).isfinite().all()


@pytest.mark.parametrize("case", CASES)
def test_loss_under_bfloat16_autocast_keeps_its_value(case: str) -> None:
    scores, labels, counts = inputs_of(case)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = CASES[case][0](scores.detach().bfloat16(), labels, counts)
    assert loss.item() == pytest.approx(CASES[case][2], rel=0.02)


@pytest.mark.parametrize(
    "limit",
    [
        lambda z, y: focal_loss(z, y, 0.0),
        lambda z, y: ldam_loss(z / 30, y, torch.zeros(4), 30.0),
        lambda z, y: seesaw_loss(z, y, COUNTS, 0.0, 0.0),
        # Balanced counts, as a class-balanced sampler makes them: the mitigation vanishes.
        lambda z, y: seesaw_loss(z, y, torch.full((4,), 9), 0.8, 0.0),
        lambda z, y: balanced_softmax_loss(z, y, torch.full((4,), 9)),
        lambda z, y: balanced_softmax_loss(z, y, COUNTS, 0.0),
        lambda z, y: vs_loss(z, y, COUNTS, 0.0, 0.0),
        lambda z, y: vs_loss(z, y, torch.full((4,), 9), 0.3, 1.0),
        lambda z, y: mixed_cross_entropy(z, y, 3 - y, 0.0),
        lambda z, y: mixed_cross_entropy(z, 3 - y, y, 1.0),
        lambda z, y: mixed_cross_entropy(z, y, y, 0.3),
    ],
)
def test_limit_is_cross_entropy_with_its_gradient(limit: Callable[..., Tensor]) -> None:
    logits, labels, _ = inputs()
    expected = F.cross_entropy(logits, labels)
    assert expected.item() == pytest.approx(1.2118708, rel=1e-6)
    found = limit(logits, labels)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient(found, logits), gradient(expected, logits))
