"""Features of shipped models and their embeddings."""

from pathlib import Path

import numpy as np
import pytest
from runs_on_disk import edited
from toys import write_npz

from lmd.base.errors import LmdError
from lmd.benchmark.figures.command import Tsne
from lmd.benchmark.figures.embedding import aligned, embed, features_of, read_records
from lmd.fit.train import train

QUICK = {"backbone": "resnet8", "weights": "none", "image_size": 16, "epochs": 1, "batch_size": 8}


def test_alignment_keeps_shape_and_size_of_the_goal() -> None:
    draws = np.random.default_rng(0).normal(size=(30, 2))
    mirrored = draws @ np.array([[0.6, 0.8], [0.8, -0.6]]) * 4 + 7
    np.testing.assert_allclose(aligned(mirrored, draws), draws, atol=1e-12)


def test_the_same_features_give_the_same_embedding() -> None:
    draws = np.random.default_rng(0)
    features = draws.normal(size=(40, 6)) + np.repeat(np.eye(4, 6) * 8, 10, axis=0)
    turn = np.linalg.qr(draws.normal(size=(6, 6)))[0]
    first, second = embed([features, features @ turn], 5, 0)
    assert first.shape == (40, 2)
    assert np.linalg.norm(first - second) < 0.5 * np.linalg.norm(first)
    centres = first.reshape(4, 10, 2).mean(1)
    spread = np.linalg.norm(first.reshape(4, 10, 2) - centres[:, None], axis=2).mean()
    apart = np.linalg.norm(centres[0] - centres[1])
    assert apart > 2 * spread


def test_features_are_those_of_the_shipped_model(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "toy.npz")
    run = train(str(data), method="ce", settings=QUICK, out=tmp_path / "run", quiet=True).path
    records = read_records([run])
    points = features_of([run], records, Tsne(per_class=2))
    assert points.features[0].shape == (len(points.ids), records[0].model.feature_dim)
    assert np.bincount(points.labels).max() == 2
    with edited(run) as record:
        record["data"]["fingerprint"] = "another"
    with pytest.raises(LmdError, match="images or parts differ"):
        features_of([run], read_records([run]), Tsne())
