"""``Method.mix`` against data of known mix, where the best possible probabilities are known.

The classes are Gaussians with one covariance, so their posterior for any mix is a softmax of linear
logits, which the toy model can represent. If probabilities are a posterior for a mix, their mean
over images in that mix is the mix itself.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from toys import FakeEpoch, World, quick

from lmd.methods import METHODS
from lmd.methods.stage import Stage, Task
from lmd.model import CosineClassifier, Model
from lmd.scoring.metrics import class_recalls
from lmd.scoring.proportions import class_mix, fit_temperature, mix_weights, reweighted

COUNTS = [1200, 400, 120]
APART = 1.6
# Losses and samplers whose optimum is the posterior itself.
EXACT = {"ce": 0.03, "rs": 0.04, "decoupling": 0.03, "cicl": 0.06, "lmd": 0.03}
EXACT["balanced_softmax"] = 0.03
# They correct for a part of the imbalance, so that neither mix is exactly theirs.
BETWEEN = {"lws", "seesaw", "seesaw_norm", "fcd", "fs"}
OTHERS = [k for k, m in METHODS.items() if not m.ablation and k not in {*EXACT, *BETWEEN}]


def draw(counts: list[int], seed: int) -> tuple[Tensor, Tensor]:
    """Points of each class in pairs that mirror each other, so that class means are exact."""
    halves = torch.tensor(counts) // 2
    labels = torch.arange(len(counts)).repeat_interleave(halves).repeat(2)
    noise = torch.randn(len(labels) // 2, 3, generator=torch.Generator().manual_seed(seed))
    noise = torch.cat([noise, -noise])
    return (noise + APART * nn.functional.one_hot(labels, 3))[:, :, None, None], labels


@dataclass
class Gaussians(World):
    """The loop of ``World`` on points instead of images."""

    def __post_init__(self) -> None:
        self.train, self.validation = draw(self.counts, 0), draw([200] * 3, 1)
        self.task = Task(torch.tensor(self.counts), 6)

    def start(self, key: str, **settings: object):
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(3, 6), nn.BatchNorm1d(6))
        head = CosineClassifier if METHODS[key].head == "cosine" else nn.Linear
        self.model = Model(encoder, head(6, 3))
        return METHODS[key].start(self.model, self.task, settings)

    def at(self, index: int = 0) -> FakeEpoch:
        found = super().at(index)
        images, labels = self.validation
        given = self.logits(images).argmax(1)
        found.val_recall = torch.tensor(class_recalls(labels.numpy(), given, 3)).float()
        return found

    @torch.no_grad()
    def logits(self, points: Tensor) -> NDArray[np.float64]:
        modes = [(module, module.training) for module in self.model.modules()]
        found = self.model.eval()(points).double().numpy()
        for module, mode in modes:
            module.training = mode
        return found

    def answers(self, kind: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Probabilities of new points as a run ships them, with the prior ``kind``."""
        images, labels = self.validation
        weights = mix_weights(labels.numpy(), class_mix(kind, COUNTS))
        temperature = fit_temperature(self.logits(images), labels.numpy(), weights)
        points, true = draw([3000] * 3, 2)
        z = torch.from_numpy(self.logits(points) / temperature)
        return z.softmax(1).numpy(), true.numpy()


def trained(key: str, **settings: object) -> Gaussians:
    world = Gaussians(COUNTS, batch_size=128, epochs=14)
    stage: Stage
    for stage in world.start(key, **quick(key), **settings):
        world.train_stage(stage)
    return world


def deviation(world: Gaussians, kind: str) -> float:
    """How far the mean probabilities of points in a mix are from that mix."""
    probabilities, labels = world.answers(kind)
    mix = class_mix(kind, COUNTS)
    return float(np.abs(mix_weights(labels, mix) @ probabilities - mix).max())


def other(kind: str) -> str:
    return "training" if kind == "uniform" else "uniform"


@pytest.mark.parametrize(("key", "tolerance"), EXACT.items())
def test_mean_probabilities_are_the_stated_mix(key: str, tolerance: float) -> None:
    world, kind = trained(key), METHODS[key].mix({})
    assert deviation(world, kind) < tolerance
    assert deviation(world, other(kind)) > 0.1
    # Exchanged for the other mix, they are the posterior for that one.
    probabilities, labels = world.answers(kind)
    old, new = class_mix(kind, COUNTS), class_mix(other(kind), COUNTS)
    weights = mix_weights(labels, new)
    moved = reweighted(probabilities, old, new)
    assert np.abs(weights @ moved - new).max() < 1.5 * tolerance
    points = APART * draw([3000] * 3, 2)[0].flatten(1).double().numpy()
    best = np.exp(points + np.log(new))
    best /= best.sum(1, keepdims=True)
    rows = np.arange(len(labels))
    losses = [-float(weights @ np.log(p[rows, labels])) for p in (best, moved, probabilities)]
    assert losses[1] - losses[0] < 0.03  # as good as the true posterior
    assert losses[2] - losses[0] > 0.1


@pytest.mark.parametrize("key", OTHERS)
def test_the_stated_mix_is_the_nearer_one(key: str) -> None:
    world, kind = trained(key), METHODS[key].mix({})
    assert deviation(world, kind) < 0.8 * deviation(world, other(kind))


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("ldam_rs", {"beta": 0.0}),
        ("ldam_drw", {"beta": 0.99}),
        ("ldam_drw", {"defer": 1.0}),
        ("cb_wd_max", {"beta": 0.0}),
        ("cb_wd_max", {"beta": 0.999}),
        ("cb_focal", {"beta": 0.9}),
        ("cb_focal", {"beta": 0.999}),
    ],
)
def test_the_mix_is_the_nearer_one_where_settings_decide(key: str, given: dict[str, float]) -> None:
    world, kind = trained(key, **given), METHODS[key].mix(METHODS[key].settings(given))
    assert kind == ("uniform" if given.get("beta") == 0.999 else "training")
    assert deviation(world, kind) < 0.8 * deviation(world, other(kind))


@pytest.mark.parametrize("key", sorted(BETWEEN))
def test_methods_that_correct_for_a_part_of_the_imbalance(key: str) -> None:
    """The mix that the probabilities answer for is the fixed point of their mean over it."""
    probabilities, labels = trained(key).answers(METHODS[key].mix({}))
    means = np.stack([probabilities[labels == k].mean(0) for k in range(3)])
    mix = np.linalg.matrix_power(means, 5000)[0]
    assert 0.36 < mix[0] < class_mix("training", COUNTS)[0] + 0.1


@pytest.mark.parametrize(
    ("key", "given", "mix"),
    [
        ("rs", {"q": 0.0}, "training"),
        ("balanced_softmax", {"tau": 0.0}, "training"),
        ("balanced_softmax", {"tau": 1.5}, "uniform"),
        ("cb_focal", {"beta": 0.0}, "training"),
        ("fs", {"combine_with_inverse_count": True}, "uniform"),
        ("lmd", {"vfc": False, "m_sampling": "natural"}, "training"),
        ("lmd", {"m_sampling": "natural"}, "uniform"),
    ],
)
def test_the_mix_follows_the_settings(key: str, given: dict[str, object], mix: str) -> None:
    method = METHODS[key]
    assert method.mix(method.settings(given)) == mix
