"""Run folders as training leaves them, with numbers from the real scoring and nothing trained."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lmd.benchmark.plan import Plan
from lmd.evaluation.evaluate import scored
from lmd.runs.folder import PartPredictions, Predictions, Run
from lmd.runs.record import (
    DataInfo,
    Machine,
    MethodInfo,
    ModelInfo,
    Record,
    Request,
    StageInfo,
)
from lmd.scoring.tiers import assign_tiers

SKIN = [
    "melanocytic nevus",
    "melanoma",
    "benign keratosis",
    "basal cell carcinoma",
    "actinic keratosis and intraepithelial carcinoma (Bowen's disease)",
    "squamous cell carcinoma",
    "vascular lesion",
    "dermatofibroma",
]

SUPPORT = (40, 20)  # images of each class in ``write_hits``


def begun(name: str, classes: Sequence[str], train: Sequence[int], **method: str) -> Record:
    """The record of a run that has just begun."""
    protocol = {"image_size": 224, "epochs": 30, "split": [0.7, 0.1, 0.2], "head_size": None}
    settings = {"lambda_1": 10.0, "gram": "normalised", "rrl": True}
    about = {"key": "lmd", "title": "LMD", "note": "A reconstruction.", **method}
    return Record(
        status="running",
        name=name,
        created="2026-03-02T09:15:00+00:00",
        lmd_version="0.1.0",
        commit="55a4177c0ffe",
        command=f"lmd train images/ --method lmd --out runs/{name}",
        request=Request(data="images/", method="lmd", protocol=protocol, settings=settings),
        method=MethodInfo(
            paper="Long-tailed medical diagnosis", profile="default", settings=settings, **about
        ),
        protocol=protocol,
        data=DataInfo(
            source="images/",
            kind="folder",
            synthetic=False,
            fingerprint="9d1f6c2ab4",
            file_sha256=None,
            classes=list(classes),
            counts={"train": [int(n) for n in train]},
            imbalance_factor=float(max(train) / min(train)),
            grouped=False,
            skipped=[],
            notes=[],
        ),
        tiers=assign_tiers(train, classes, "thirds"),
        model=ModelInfo(
            backbone="resnet18",
            weights="imagenet",
            head="linear",
            feature_dim=512,
            parameters=11180616,
            selected="The model after the last epoch is reported.",
            prior="uniform",
        ),
        machine=Machine(
            python="3.11.9", torch="2.6.0", platform="Linux", device="cpu", threads=2, processes=1
        ),
    )


def write_run(
    folder: Path,
    record: Record,
    predictions: Predictions,
    history: Sequence[dict[str, Any]] = (),
    *,
    resamples: int = 100,
) -> Run:
    """Score the predictions, finish the record and write a run folder."""
    size = len(predictions.classes)
    counts = record.data.counts | {
        part: np.bincount(of.labels, minlength=size).tolist()
        for part, of in predictions.parts.items()
    }
    data = record.data.model_copy(update={"counts": counts})
    record = scored(record.replaced(data=data), predictions, resamples=resamples).replaced(
        status="finished",
        finished="2026-03-02T10:41:12+00:00",
        stages=[StageInfo(name="RRL", epochs=30, seconds=3012.5, views=["weak", "strong"])],
        timings={"decode": 41.2, "train": 5071.0},
        history=list(history),
    )
    folder.mkdir(parents=True)
    run = Run(folder)
    run.write_record(record)
    run.write_predictions(predictions)
    run.write_history(history)
    return Run(folder, record, predictions)


def write_hits(folder: Path, hits: tuple[int, int], groups: int | None = None) -> Run:
    """A run of two classes that has the first ``hits`` images of each right, in both parts.

    ``groups`` is the number of successive images of one patient.
    """
    labels = np.repeat([0, 1], SUPPORT)
    place = np.concatenate([np.arange(n) for n in SUPPORT])
    right = place < np.repeat(hits, SUPPORT)
    probabilities = np.full((len(labels), 2), 0.1, np.float32)
    probabilities[np.arange(len(labels)), np.where(right, labels, 1 - labels)] = 0.9
    ids = np.array([f"{i:03}" for i in range(len(labels))])
    group = None if groups is None else np.arange(len(labels)) // groups
    order = np.random.default_rng(hits[0]).permutation(len(labels))
    part = PartPredictions(
        ids[order], labels[order], probabilities[order], None if group is None else group[order]
    )
    record = begun(folder.name, ("a", "b"), [400, 20])
    return write_run(
        folder, record, Predictions(("a", "b"), {"validation": part, "test": part}), resamples=20
    )


def make_run(
    folder: Path,
    classes: Sequence[str],
    *,
    skill: float = 2.0,
    tail_loss: float = 2.0,
    absent: tuple[int, ...] = (),
    epochs: tuple[int, ...] = (30, 20),
    title: str = "LMD",
    seed: int = 0,
) -> Record:
    """A long-tailed run of a given skill; its test images depend on the classes alone."""
    size = len(classes)
    train = np.maximum(1000 * 100.0 ** -(np.arange(size) / max(size - 1, 1)), 1).astype(int)
    generator = np.random.default_rng(seed)
    parts = {}
    for part, share in (("validation", 10), ("test", 4)):
        support = np.maximum(train // share, 3)
        support[list(absent)] = 0
        labels = np.repeat(np.arange(size), support)
        logits = generator.normal(size=(len(labels), size)) + 0.6 * np.log(train / train.min() + 1)
        logits[np.arange(len(labels)), labels] += skill + tail_loss * labels / size
        probabilities = np.exp(1.4 * logits)
        probabilities /= probabilities.sum(1, keepdims=True)
        ids = np.array([f"{part}/{i:05}.jpg" for i in range(len(labels))])
        parts[part] = PartPredictions(ids, labels, probabilities.astype(np.float32))
    record = begun(folder.name, classes, train.tolist(), title=title)
    history = fake_history(epochs, generator)
    return write_run(folder, record, Predictions(tuple(classes), parts), history).record


def fake_history(epochs: tuple[int, ...], generator: np.random.Generator) -> list[dict[str, Any]]:
    """Falling losses of one or two stages; the first epoch of each is not validated."""
    rows = []
    for stage, count in enumerate(epochs):
        for epoch in range(1, count + 1):
            fall = float(2 * np.exp(-epoch / 8) + 0.05 * generator.random())
            own = {"fdc": -20 + 10 * fall} if stage else {"relation": 0.2 * fall}
            rows.append(
                {
                    "stage": stage + 1,
                    "stage_name": ("RRL", "ICC")[stage],
                    "epoch": epoch,
                    "lr": 0.01,
                    "seconds": 60.2,
                    "val_bacc": None if epoch == 1 else 0.75 - 0.1 * fall + 0.03 * stage,
                    "loss": fall,
                    "ce": 0.8 * fall,
                    **own,
                }
            )
    return rows


@contextmanager
def edited(folder: Path) -> Iterator[dict[str, Any]]:
    """The record on disk as plain JSON; what is changed inside is written back."""
    path = folder / "record.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    yield values
    path.write_text(json.dumps(values), encoding="utf-8")


def as_planned(plan: Plan, folder: Path) -> None:
    """Let every run in the folder have been asked for by the plan."""
    for run in plan.runs:
        if (folder / run.name / "record.json").exists():
            with edited(folder / run.name) as record:
                record["request"] = run.request


@contextmanager
def edited_arrays(folder: Path) -> Iterator[dict[str, Any]]:
    """The arrays of the predictions on disk; what is changed inside is written back."""
    path = folder / "predictions.npz"
    with np.load(path) as file:
        arrays = dict(file)
    yield arrays
    np.savez(path, **arrays)
