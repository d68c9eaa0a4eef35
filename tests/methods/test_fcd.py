"""FCD: the flat step, and distillation from the classifier of stage 1."""

import copy

import pytest
import torch
from torch.nn import functional as F
from torch.optim import SGD
from toys import LOGITS, World, close, gradient, same, state

from lmd.methods import METHODS
from lmd.methods.fcd import distillation_loss
from lmd.methods.stage import Batch, prepare


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


def test_fcd_says_that_it_is_a_reconstruction():
    assert "reconstruction" in METHODS["fcd"].title
    assert METHODS["fcd"].note.startswith("FCD-style (reconstruction)")


def test_the_flat_step_descends_by_the_gradient_of_the_perturbed_weights():
    world = World([9, 3])
    images, labels = world.train
    batch = Batch({"label": images}, labels)
    stage = world.to_stage("fcd", 0, rho=0.2)
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
    stage = world.to_stage("fcd", 1)
    first = state(world.model.classifier)
    assert same(state(stage.teacher), first)
    assert world.train_stage(stage)[0]["distillation"] == pytest.approx(0, abs=1e-6)
    assert same(state(stage.teacher), first)
    assert any(name.startswith("teacher.") for name in stage.state_dict())


def test_fcd_stays_nearer_to_its_teacher_the_more_it_is_distilled():
    distances = []
    for distill in (0.0, 20.0):
        world = World([9, 3], epochs=4)
        stage = world.to_stage("fcd", 1, distill=distill)
        world.train_stage(stage)
        distances.append((world.model.classifier.weight - stage.teacher.weight).norm().item())
    assert distances[1] < 0.5 * distances[0]
