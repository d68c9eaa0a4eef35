"""Sharpness-aware perturbation: direction, length, and the way back."""

import copy

import pytest
import torch
from torch import nn

from lmd.methods.supervised import ascent, perturbed, still_statistics


@pytest.fixture
def parameters() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, 4, generator=generator), torch.randn(5, generator=generator)]


def test_ascent_has_the_radius_as_its_length_over_all_tensors(parameters):
    offsets = ascent(parameters, 0.3)
    squares = 0.0
    for g in parameters:
        for value in g.flatten().tolist():
            squares += value**2
    for offset, g in zip(offsets, parameters, strict=True):
        torch.testing.assert_close(offset, 0.3 * g / squares**0.5)
    assert torch.cat([o.flatten() for o in offsets]).norm().item() == pytest.approx(0.3)


def test_a_zero_gradient_has_no_direction():
    offsets = ascent([torch.zeros(2), torch.zeros(3)], 0.3)
    assert all(torch.equal(o, torch.zeros_like(o)) for o in offsets)


def test_ascent_raises_a_linear_function_as_much_as_possible():
    slope = torch.tensor([3.0, -4.0])
    (offset,) = ascent([slope], 2.0)
    assert (slope @ offset).item() == pytest.approx(2.0 * 5.0)


def test_after_a_perturbation_every_bit_is_as_before(parameters):
    before = copy.deepcopy(parameters)
    with perturbed(parameters, [torch.full_like(p, 0.1) for p in parameters]):
        for p, b in zip(parameters, before, strict=True):
            torch.testing.assert_close(p, b + 0.1)
    assert all(torch.equal(p, b) for p, b in zip(parameters, before, strict=True))


def test_a_perturbation_leaves_no_trace_in_the_graph():
    parameter = nn.Parameter(torch.ones(3))
    with perturbed([parameter], [torch.ones(3)]):
        pass
    parameter.sum().backward()
    assert torch.equal(parameter.grad, torch.ones(3))


def test_lists_of_different_lengths_are_refused(parameters):
    with pytest.raises(ValueError, match="shorter"), perturbed(parameters, parameters[:1]):
        pass


def test_statistics_stand_still_only_within():
    layer = nn.Sequential(nn.BatchNorm2d(3))
    images = torch.randn(4, 3, 5, 5) * 2 + 1
    layer(images)
    before = copy.deepcopy(layer.state_dict())
    with still_statistics(layer):
        # The batch's own statistics still normalise it.
        assert layer(images * 5).mean().abs() < 1e-5
    assert layer.state_dict().keys() == before.keys()
    assert all(torch.equal(value, layer.state_dict()[name]) for name, value in before.items())
    layer(images * 5)
    assert not torch.equal(layer[0].running_mean, before["0.running_mean"])


def test_statistics_come_back_after_an_error_and_layers_in_eval_mode_keep_theirs():
    layer = nn.BatchNorm1d(3).eval()
    features = torch.randn(8, 3) + 4
    expected = layer(features)
    with still_statistics(layer):
        torch.testing.assert_close(layer(features), expected)
    layer.train()
    with pytest.raises(RuntimeError, match="on purpose"), still_statistics(layer):
        raise RuntimeError("on purpose")
    assert torch.equal(layer.running_mean, torch.zeros(3))


def test_half_precision_sees_the_perturbed_weights():
    # Autocast keeps copies of the weights in half precision.
    layer, inputs = nn.Linear(4, 1, bias=False), torch.ones(1, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = layer(inputs).item()
        with perturbed([layer.weight], [torch.ones(1, 4)]):
            assert layer(inputs).item() == pytest.approx(before + 4, abs=0.1)
        assert layer(inputs).item() == pytest.approx(before)
