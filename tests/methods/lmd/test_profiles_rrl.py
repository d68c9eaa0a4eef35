"""One test for each row of the table of differences that concerns stage 1 (rows 1 to 7)."""

import torch
from profiles import every_profile, stage_one
from torch.nn import functional as F
from toys import small_model

from lmd.methods.lmd.rrl import channel_relation_loss, probability_loss, sample_relation_loss


@every_profile
def test_row_01_image_for_cross_entropy(profile):
    stage, batch, _ = stage_one(profile)
    view = "strong" if profile == "official" else "weak"
    for done in (0, 50):  # before and after consistency has started
        stage.done = done
        expected = F.cross_entropy(small_model(4)(batch.views[view]), batch.labels)
        torch.testing.assert_close(stage.loss(batch)["ce"], expected)


@every_profile
def test_row_02_when_consistency_starts(profile):
    stage, batch, _ = stage_one(profile, steps=100)
    off = []
    for done in range(100):
        stage.done = done
        if done in (0, 19, 20, 21, 99) and stage.loss(batch)["sample"].item() == 0:
            off.append(done)
    assert off == {"corrected": [0, 19], "paper": [], "official": [0, 19, 20]}[profile]


def consistency_inputs(profile):
    stage, batch, _ = stage_one(profile)
    with torch.no_grad():  # a teacher that is not the student
        for parameter in stage.teacher.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    stage.done = 60
    terms = stage.loss(batch)
    student = small_model(4)
    teacher = stage.teacher.train(profile == "official")
    z, goal = student.features(batch.views["strong"]), teacher.features(batch.views["weak"])
    return terms, z, goal, student.classifier(z), teacher.classifier(goal)


@every_profile
def test_row_03_gram_matrices(profile):
    terms, z, goal, _, _ = consistency_inputs(profile)
    values = {g: sample_relation_loss(z, goal, g) for g in ("normalised", "raw")}
    assert not torch.isclose(values["raw"], values["normalised"], rtol=0.05)
    expected = values["raw" if profile == "paper" else "normalised"]
    torch.testing.assert_close(terms["sample"], expected, rtol=1e-4, atol=1e-6)


@every_profile
def test_row_04_divisors(profile):
    terms, z, goal, _, _ = consistency_inputs(profile)
    gram = "raw" if profile == "paper" else "normalised"
    total = 16 * channel_relation_loss(z, goal, gram)
    divisor = len(z) if profile == "official" else 16
    torch.testing.assert_close(terms["channel"], total / divisor, rtol=1e-4, atol=1e-6)


@every_profile
def test_row_05_direction_of_kl(profile):
    terms, _, _, logits, goal = consistency_inputs(profile)
    ways = {d: probability_loss(logits, goal, d) for d in ("teacher_student", "student_teacher")}
    assert not torch.isclose(*ways.values(), rtol=1e-3)
    expected = ways["student_teacher" if profile == "paper" else "teacher_student"]
    torch.testing.assert_close(terms["prob"], expected, rtol=1e-4, atol=1e-6)


@every_profile
def test_row_06_weights(profile):
    terms, *_ = consistency_inputs(profile)
    t = terms
    expected = t["ce"] + 10 * t["sample"] + 10 * t["channel"] + 5 * t["prob"]
    torch.testing.assert_close(t["loss"], expected)


@every_profile
def test_row_07_teacher(profile):
    stage, batch, optimizer = stage_one(profile, steps=10)
    head, own_head = stage.model.classifier.weight, stage.teacher.classifier.weight
    assert torch.equal(head, own_head) == (profile != "official")
    students, teachers = [], []
    for _ in range(10):
        stage.step(optimizer, batch)
        students.append(head.detach().clone())
        teachers.append(own_head.detach().clone())
        with torch.no_grad():  # equal for all classes, so harmless, and easy to follow
            head.add_(1.0)
    start = {"corrected": 2, "paper": 0, "official": 0}[profile]
    limit = 1 - 1 / (0.3 * 10) if profile == "corrected" else 0.999
    expected = small_model(4).classifier.weight.detach()
    for t in range(start, 10):
        decay = limit if profile == "paper" else min(1 - 1 / (t - start + 1), limit)
        expected = decay * expected + (1 - decay) * students[t]
        torch.testing.assert_close(teachers[t], expected, rtol=1e-5, atol=1e-6)
    # Late in a long run the decay has reached its limit.
    stage.done = 5000
    stage.total = 10_000
    before = own_head.detach().clone()
    stage.step(optimizer, batch)
    limit = 1 - 1 / 3000 if profile == "corrected" else 0.999
    expected = limit * before + (1 - limit) * head.detach()
    assert (expected - before).abs().max() > 1e-4
    torch.testing.assert_close(own_head.detach(), expected, rtol=1e-6, atol=2e-6)
    # BatchNorm: the student's statistics in eval mode, or its own in train mode.
    same = all(map(torch.equal, stage.teacher.buffers(), stage.model.buffers()))
    assert same == (profile != "official")
    assert stage.teacher.encoder[1].training == (profile == "official")
    assert all(p.grad is None for p in stage.teacher.parameters())
