"""Every reference number of LMD's formulas."""

import json

import torch
from toys import VECTORS, fdc_loss

from lmd.methods.lmd.gaussians import ClassGaussians
from lmd.methods.lmd.icc import attraction_and_repulsion, gce_loss
from lmd.methods.lmd.rrl import channel_relation_loss, probability_loss, sample_relation_loss


def test_every_reference_vector():
    vectors = json.loads(VECTORS.read_text())["vectors"]
    inputs = json.loads(VECTORS.read_text())["inputs"]

    def close(ours, theirs):
        theirs = torch.as_tensor(theirs)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)

    relation = vectors["lmd_batch_relation"]
    z, goal = torch.tensor(relation["student"]), torch.tensor(relation["teacher"])
    used = "matrix_sum(the value used)"
    close(sample_relation_loss(z, goal, "normalised"), relation[used])
    channel = channel_relation_loss(z, goal, "normalised", "samples")
    close(channel, vectors["lmd_channel_relation"][used])
    literal = vectors["lmd_relation_paper_literal"]
    close(sample_relation_loss(z, goal, "raw"), literal["sample(1/B)"])
    close(channel_relation_loss(z, goal, "raw"), literal["channel(1/C)"])

    logits, labels = torch.tensor(inputs["logits"]), torch.tensor(inputs["labels"])
    kl = vectors["lmd_probability"]
    prob = probability_loss(logits, torch.tensor(kl["teacher_logits"]))
    close(prob, kl["divided_by_batch"])
    close(5 * prob, kl["KL(teacher||student) sum"])
    close(gce_loss(logits, labels, vectors["gce"]["q"]), vectors["gce"]["mean"])

    fdc = vectors["lmd_fdc"]
    gaussians = ClassGaussians(3, 2)
    gaussians.mean.copy_(torch.tensor(fdc["mu"]))
    gaussians.covariance.copy_(torch.tensor(fdc["sigma"]))
    x, y = torch.tensor(fdc["features"]), torch.tensor(fdc["labels"])
    loss = fdc_loss(x, y, gaussians)
    close(loss, fdc["paper_sign(psi-phi)"])
    close(-loss, fdc["official_return(repulsion-attraction)"])
    psi, phi = attraction_and_repulsion(x, y, gaussians)
    close(psi, fdc["attraction_psi(mahalanobis with inverse cov)"])
    close(phi, fdc["repulsion_phi"])
    psi, phi = attraction_and_repulsion(x, y, gaussians, "literal")
    close(psi, fdc["paper_literal_with_Sigma_not_inverse"]["psi"])
    close(phi, fdc["paper_literal_with_Sigma_not_inverse"]["phi"])

    vfc = vectors["lmd_vfc"]
    gaussians = ClassGaussians(2, 2).update(torch.tensor(vfc["X"]), torch.tensor(vfc["y"]))
    close(gaussians.mean, vfc["mean"])
    close(gaussians.covariance, vfc["cov(unbiased + 0.01*I)"])
