"""Building a network, and what its classifier learns."""

import pytest
import torch
from torch.nn import functional as F

from lmd.model import CosineClassifier, Preprocessing, build_model


def test_seed_decides_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, preprocessing = build_model("resnet8", "none", 3, image_size=32, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(10)
    second, _ = build_model("resnet8", "none", 3, image_size=32, seed=1)
    other, _ = build_model("resnet8", "none", 3, image_size=32, seed=2)
    states = [m.state_dict() for m in (first, second, other)]
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert not torch.equal(states[0]["encoder.conv1.weight"], states[2]["encoder.conv1.weight"])
    assert not torch.equal(states[0]["classifier.weight"], states[2]["classifier.weight"])
    assert preprocessing == Preprocessing(32, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "v2")
    assert first.training


@pytest.mark.parametrize("width", [16, 1024])
def test_a_cosine_classifier_learns_at_the_rate_of_its_protocol(width: int) -> None:
    torch.manual_seed(0)
    classifier = CosineClassifier(width, 4)
    torch.testing.assert_close(classifier.weight.norm(dim=1), torch.ones(4))
    # Every feature lies where the weight of another class is: some steps must turn them round.
    features = F.normalize(classifier.weight.detach()).roll(1, 0)
    optimizer = torch.optim.SGD(classifier.parameters(), lr=0.01, momentum=0.9)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(classifier(features), torch.arange(4)).backward()
        optimizer.step()
    assert classifier(features).argmax(1).tolist() == [0, 1, 2, 3]
