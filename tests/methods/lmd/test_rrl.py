"""RRL's losses against loops, limits and numbers; its teacher, warm-up and gradients."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from toys import LOGITS, FakeEpoch, small_model

from lmd.methods.lmd.rrl import (
    RRL,
    RRLSettings,
    channel_relation_loss,
    probability_loss,
    sample_relation_loss,
)
from lmd.methods.stage import Batch, Task, prepare

STUDENT = torch.tensor([[1.0, 0.5, 0.2], [0.3, 0.8, 0.1], [0.9, 0.1, 0.7], [0.2, 0.4, 1.1]])
TEACHER = torch.tensor([[0.9, 0.6, 0.1], [0.2, 1.0, 0.0], [0.8, 0.2, 0.9], [0.3, 0.3, 1.0]])
TEACHER_LOGITS = torch.tensor(
    [
        [2.1, 0.3, -0.95, 0.4],
        [0.4, 1.0, 0.05, -0.4],
        [1.6, 0.0, 0.45, 0.0],
        [0.9, -0.4, 0.15, 0.9],
        [-0.4, 0.7, 0.35, 0.5],
    ]
)


TASK = Task(torch.tensor([40, 12, 5]), 16)


def batch(seed=0, n=6):
    g = torch.Generator().manual_seed(seed)
    weak = torch.randn(n, 3, 8, 8, generator=g)
    strong = 1.5 * weak + torch.randn(n, 3, 8, 8, generator=g)
    return Batch({"weak": weak, "strong": strong, "label": weak}, torch.arange(n) % 3)


def lend(stage, **length):
    images = batch()
    epoch = FakeEpoch(stage.model, images.views["weak"], images.labels, **length)
    stage.start_epoch(epoch)


def started(epochs=1, steps=10, **settings):
    plain = {"ce_view": "label", "ce_sampling": "natural"}
    settings = {"tau": 0.0, "centre": False} | plain | settings
    stage = RRL(small_model(), TASK, RRLSettings(**settings))
    groups = prepare(stage)
    optimizer = torch.optim.SGD(groups, lr=0.05)
    lend(stage, total=epochs, steps=steps)
    return stage, optimizer


def test_numbers_of_the_released_code():
    close = {"rtol": 1e-5, "atol": 1e-6}
    sample = sample_relation_loss(STUDENT, TEACHER, "normalised")
    torch.testing.assert_close(sample.item(), 0.0266462, **close)
    channel = channel_relation_loss(STUDENT, TEACHER, "normalised", "samples")
    torch.testing.assert_close(channel.item(), 0.015556, **close)
    prob = probability_loss(LOGITS, TEACHER_LOGITS)
    torch.testing.assert_close(prob.item(), 0.0125534, **close)


def test_numbers_of_the_printed_equations():
    sample = sample_relation_loss(STUDENT, TEACHER, "raw")
    torch.testing.assert_close(sample.item(), 0.0962, rtol=1e-5, atol=1e-6)
    channel = channel_relation_loss(STUDENT, TEACHER, "raw")
    torch.testing.assert_close(channel.item(), 0.1263333, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gram", ["normalised", "raw"])
def test_relations_against_a_naive_loop_with_gradients(gram):
    def gram_loop(rows):
        matrix = [[sum(a * b for a, b in zip(r, s, strict=True)) for s in rows] for r in rows]
        if gram == "raw":
            return matrix
        return [[e / sum(x * x for x in row) ** 0.5 for e in row] for row in matrix]

    def loop(student, teacher):
        pairs = zip(gram_loop(student), gram_loop(teacher), strict=True)
        return sum((a - b) ** 2 for r, s in pairs for a, b in zip(r, s, strict=True))

    z = STUDENT.double().requires_grad_()
    goal = TEACHER.double()
    for loss, naive in (
        (sample_relation_loss(z, goal, gram), loop(list(z), list(goal)) / 4),
        (channel_relation_loss(z, goal, gram), loop(list(z.T), list(goal.T)) / 3),
        (channel_relation_loss(z, goal, gram, "samples"), loop(list(z.T), list(goal.T)) / 4),
    ):
        torch.testing.assert_close(loss, naive)
        (fast,) = torch.autograd.grad(loss, z, retain_graph=True)
        (slow,) = torch.autograd.grad(naive, z, retain_graph=True)
        torch.testing.assert_close(fast, slow)


def test_probability_loss_both_ways_against_a_naive_loop():
    p, q = TEACHER_LOGITS.double().softmax(1), LOGITS.double().softmax(1)
    forward = sum(p[i, k] * (p[i, k] / q[i, k]).log() for i in range(5) for k in range(4)) / 5
    backward = sum(q[i, k] * (q[i, k] / p[i, k]).log() for i in range(5) for k in range(4)) / 5
    logits = LOGITS.double(), TEACHER_LOGITS.double()
    torch.testing.assert_close(probability_loss(*logits), forward)
    torch.testing.assert_close(probability_loss(*logits, "student_teacher"), backward)
    assert abs(forward - backward) > 1e-5


def test_equal_inputs_cost_nothing_and_do_not_pull():
    z = STUDENT.clone().requires_grad_()
    logits = LOGITS.clone().requires_grad_()
    loss = (
        sample_relation_loss(z, STUDENT)
        + channel_relation_loss(z, STUDENT)
        + probability_loss(logits, LOGITS)
    )
    loss.backward()
    assert loss.abs() < 1e-6
    assert z.grad.abs().max() < 1e-6
    assert logits.grad.abs().max() < 1e-6


def test_normalised_relations_do_not_depend_on_scale_and_dead_channels_stay_finite():
    torch.testing.assert_close(
        channel_relation_loss(7 * STUDENT, TEACHER), channel_relation_loss(STUDENT, TEACHER)
    )
    dead = torch.cat([STUDENT, torch.zeros(4, 2)], 1).requires_grad_()
    alive = torch.cat([TEACHER, torch.ones(4, 2)], 1)
    (sample_relation_loss(dead, alive) + channel_relation_loss(dead, alive)).backward()
    assert torch.isfinite(dead.grad).all()


def test_the_warm_up_is_plain_cross_entropy_on_the_weak_view():
    stage, optimizer = started(warmup=0.2)
    twin = small_model()
    twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.05)
    for seed in range(2):
        terms = stage.step(optimizer, batch(seed))
        assert [terms[t].item() for t in ("sample", "channel", "prob")] == [0, 0, 0]
        twin_optimizer.zero_grad()
        F.cross_entropy(twin(batch(seed).views["weak"]), batch(seed).labels).backward()
        twin_optimizer.step()
    for ours, plain in zip(
        stage.model.state_dict().values(), twin.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, plain)
    terms = stage.step(optimizer, batch(2))
    assert all(terms[t].item() > 0 for t in ("ce", "sample", "channel", "prob"))


def test_only_one_view_is_forwarded_in_the_warm_up():
    stage, _ = started(warmup=0.5)
    weak_only = Batch({"label": batch().views["weak"]}, batch().labels)
    assert torch.isfinite(stage.loss(weak_only)["loss"])
    stage.done = 5
    with pytest.raises(KeyError):
        stage.loss(weak_only)


def test_the_teacher_becomes_a_copy_when_consistency_starts_and_then_averages():
    stage, optimizer = started(warmup=0.3, ema_horizon=0.4)
    at_first = [p.clone() for p in stage.teacher.parameters()]
    for seed in range(3):
        stage.step(optimizer, batch(seed))
    assert all(map(torch.equal, stage.teacher.parameters(), at_first))
    students = []
    for seed in range(3, 10):
        stage.step(optimizer, batch(seed))
        students.append([p.detach().clone() for p in stage.model.parameters()])
    # Decays 0, 1/2, 2/3, 3/4 and then the limit 1 - 1 / (0.4 x 10 steps) = 3/4.
    for i, goal in enumerate(stage.teacher.parameters()):
        expected = students[0][i]
        for t, decay in enumerate((1 / 2, 2 / 3, 3 / 4, 3 / 4, 3 / 4, 3 / 4), start=1):
            expected = decay * expected + (1 - decay) * students[t][i]
        torch.testing.assert_close(goal, expected)


def test_the_teacher_gets_no_gradient_and_has_the_students_statistics():
    stage, optimizer = started(warmup=0.0)
    for seed in range(3):
        stage.step(optimizer, batch(seed))
    assert all(p.grad is None and not p.requires_grad for p in stage.teacher.parameters())
    assert all(map(torch.equal, stage.teacher.buffers(), stage.model.buffers()))
    assert not any(m.training for m in stage.teacher.modules())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in stage.model.parameters())


def test_consistency_reaches_encoder_and_classifier_of_the_student():
    stage, _ = started(warmup=0.0)
    terms = stage.loss(batch())
    encoder, classifier = stage.model.encoder[0].weight, stage.model.classifier.weight
    for name in ("sample", "channel", "prob"):
        (grad,) = torch.autograd.grad(terms[name], encoder, retain_graph=True)
        assert grad.abs().sum() > 0, name
    (grad,) = torch.autograd.grad(terms["prob"], classifier, retain_graph=True)
    assert grad.abs().sum() > 0


def test_running_statistics_come_from_the_weak_view_alone():
    stage, _ = started(warmup=0.0)
    twin = small_model()
    twin.train()
    twin(batch().views["weak"])
    stage.loss(batch())
    for ours, plain in zip(stage.model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(ours, plain)
    assert all(
        m.track_running_stats for m in stage.model.modules() if isinstance(m, nn.BatchNorm2d)
    )


def test_the_loss_is_the_weighted_sum_of_its_terms():
    stage, _ = started(warmup=0.0, lambda_1=3.0)
    t = stage.loss(batch())
    expected = t["ce"] + 3 * (t["sample"] + t["channel"] + t["prob"] / 2)
    torch.testing.assert_close(t["loss"], expected)


def test_the_label_loss_sees_the_prior_and_the_consistency_does_not():
    stage, _ = started(warmup=0.0, tau=1.0)
    plain, _ = started(warmup=0.0)
    found, usual = stage.loss(batch()), plain.loss(batch())
    twin = small_model()
    logits = twin(batch().views["weak"]) + (TASK.class_counts / 57).log()
    torch.testing.assert_close(found["ce"], F.cross_entropy(logits, batch().labels))
    for name in ("sample", "channel", "prob"):
        torch.testing.assert_close(found[name], usual[name])


def test_centred_relations_do_not_see_a_shift_of_all_features():
    def shifted(stage):
        with torch.no_grad():
            before = stage.loss(batch())["sample"]
            features = stage.model.features
            stage.model.features = lambda images: features(images) + 5.0
            return before, stage.loss(batch())["sample"]

    before, after = shifted(started(warmup=0.0, centre=True)[0])
    torch.testing.assert_close(before, after, rtol=1e-3, atol=1e-5)
    before, after = shifted(started(warmup=0.0)[0])
    assert (before - after).abs() > 1e-3


def test_relations_and_probabilities_have_weights_of_their_own():
    t = started(warmup=0.0, lambda_1=2.0, relations=0.3, probabilities=0.7)[0].loss(batch())
    expected = t["ce"] + 2 * (0.3 * (t["sample"] + t["channel"]) + 0.7 * t["prob"])
    torch.testing.assert_close(t["loss"], expected)


def test_a_sharp_step_uses_the_gradient_at_the_perturbed_weights():
    stage, optimizer = started(sam=0.1)
    twin = small_model()
    stage.step(optimizer, batch())
    trained = list(twin.parameters())
    loss = F.cross_entropy(twin(batch().views["weak"]), batch().labels)
    gradients = torch.autograd.grad(loss, trained)
    norm = torch.stack([g.norm() for g in gradients]).norm()
    start = [p.detach().clone() for p in trained]
    with torch.no_grad():
        for p, g in zip(trained, gradients, strict=True):
            p.add_(0.1 * g / norm)
    loss = F.cross_entropy(twin(batch().views["weak"]), batch().labels)
    gradients = torch.autograd.grad(loss, trained)
    for p, old, g in zip(stage.model.parameters(), start, gradients, strict=True):
        torch.testing.assert_close(p.detach(), old - 0.05 * g)


@pytest.mark.parametrize(("warmup", "ce_view"), [(1.0, "weak"), (0.0, "weak"), (0.0, "strong")])
def test_statistics_of_a_sharp_step_come_from_the_unperturbed_pass(warmup, ce_view):
    stage, optimizer = started(sam=0.5, warmup=warmup, ce_view=ce_view)
    twin = small_model()
    twin.train()
    twin(batch().views[ce_view])
    stage.step(optimizer, batch())
    for ours, plain in zip(stage.model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(ours, plain)
    norms = [m for m in stage.model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert all(norm.track_running_stats for norm in norms)


@pytest.mark.parametrize("warmup", [1.0, 0.0])
def test_half_of_the_label_loss_may_be_on_the_strong_view(warmup):
    stage, _ = started(warmup=warmup, ce_view="both")
    twin, views, labels = small_model(), batch().views, batch().labels
    twin.train()
    halves = [F.cross_entropy(twin(views[view]), labels) for view in ("weak", "strong")]
    torch.testing.assert_close(stage.loss(batch())["ce"], sum(halves) / 2)
    weak_only = small_model()
    weak_only.train()
    weak_only(views["weak"])
    for ours, plain in zip(stage.model.buffers(), weak_only.buffers(), strict=True):
        assert torch.equal(ours, plain)


def test_images_may_be_drawn_so_that_classes_are_balanced():
    epoch = FakeEpoch(small_model(), batch().views["weak"], batch().labels)
    assert started()[0].class_weights(epoch) == [None]
    (weights,) = started(ce_sampling="balanced")[0].class_weights(epoch)
    torch.testing.assert_close(weights * TASK.class_counts, torch.ones(3))


def test_half_precision_keeps_the_relations_in_float32():
    stage, _ = started(warmup=0.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = stage.loss(batch())
    assert all(terms[t].dtype == torch.float32 for t in ("loss", "sample", "channel", "prob"))
    terms["loss"].backward()
    assert all(torch.isfinite(p.grad).all() for p in stage.model.parameters())


def test_a_checkpoint_between_two_epochs_changes_nothing():
    stage, optimizer = started(epochs=2, steps=5, warmup=0.3)
    for seed in range(5):
        stage.step(optimizer, batch(seed))
    other, other_optimizer = started(epochs=2, steps=5, warmup=0.3)
    other.load_state_dict(stage.state_dict())
    for one, its_optimizer in ((stage, optimizer), (other, other_optimizer)):
        lend(one, index=1, total=2, steps=5)
        for seed in range(5, 8):
            one.step(its_optimizer, batch(seed))
    for a, b in zip(stage.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)
