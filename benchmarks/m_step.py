"""Which M step is better on validation, and at what cost (row 15 of docs/paper-vs-code.md).

    python benchmarks/m_step.py RUN [--threads N]

Takes the encoder of a finished run, computes the features of its training and validation images
once, and calibrates a newly initialised classifier with each kind of M step. The test part is not
used.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from lmd.base.progress import Display
from lmd.data import table
from lmd.data.dataset import plan_data
from lmd.data.loaders import evaluation_batches
from lmd.data.source import Columns, Source
from lmd.methods import METHODS
from lmd.methods.stage import Stage, Task
from lmd.model import Model, Normalise
from lmd.model.files import load_model
from lmd.runs.protocol import Protocol

Part = Literal["train", "validation"]
Features = dict[str, tuple[Tensor, Tensor]]

CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "argmin, regularisers by validation (default)": (2, {}),
    "argmin, natural draws": (2, {"m_sampling": "natural"}),
    "argmin, shrinkage 0.5, penalty 3e-4": (1, {"shrinkage": 0.5, "weight_penalty": 3e-4}),
    "argmin, no regulariser": (1, {"shrinkage": 0.0, "weight_penalty": 0.0}),
    "argmin on real features (w/o VFC)": (1, {"vfc": False}),
    "SGD 1e-2, R = 5 000": (2, {"m_step": "sgd", "m_lr": 1e-2, "virtual_features": 5000}),
    "SGD 1e-5, R = 50 000 (paper)": (2, {"m_step": "sgd"}),
}


@dataclass
class FixedFeatures:
    """The contract's ``Epoch`` over fixed features."""

    found: Features
    index: int
    total: int
    generator: torch.Generator
    steps: int = 1
    val_recall: Tensor | None = None

    def features(
        self, drawn: Literal["natural", "balanced"] = "natural", part: Part = "train"
    ) -> tuple[Tensor, Tensor]:
        features, labels = self.found[part]
        if drawn == "natural":
            return features, labels
        weights = (1 / torch.bincount(labels).double())[labels]
        index = torch.multinomial(weights, len(labels), True, generator=self.generator)
        return features[index], labels[index]


def encode(model: Model, images: table.Part, normalise: Normalise) -> tuple[Tensor, Tensor]:
    with torch.inference_mode():
        found = [model.features(normalise(b)) for _, b in evaluation_batches(images, 128)]
    return torch.cat(found).clone(), torch.from_numpy(images.labels)


def balanced_accuracy(model: Model, features: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        right = (model.classifier(features).argmax(1) == labels).double()
    return float(torch.stack([right[labels == k].mean() for k in labels.unique()]).mean())


def last_stage(model: Model, task: Task, settings: dict[str, Any]) -> Stage:
    """The ICC stage of LMD with a newly initialised classifier."""
    torch.manual_seed(0)
    method = METHODS["lmd"]
    *_, stage = method.start(model, task, settings)
    return stage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    record = json.loads((asked.run / "record.json").read_text())
    request = record["request"]
    source = Source(request["data"], Columns.of(request["columns"]))
    data = plan_data(source, Protocol.model_validate(request["protocol"]))
    data = data.decode(Display(quiet=True))
    model, spec = load_model(asked.run)
    normalise = Normalise(spec.preprocessing.mean, spec.preprocessing.std, torch.device("cpu"))
    found = {part: encode(model, data.part(part), normalise) for part in ("train", "validation")}
    task = Task(torch.bincount(found["train"][1]), spec.feature_dim)
    print(f"{'M step':<46} iteration  validation BACC  seconds in all")
    for name, (iterations, settings) in CASES.items():
        stage = last_stage(model, task, settings)
        started = time.perf_counter()
        for j in range(iterations):
            generator = torch.Generator().manual_seed(j)
            stage.start_epoch(FixedFeatures(found, j, iterations, generator))
            spent = time.perf_counter() - started
            score = 100 * balanced_accuracy(model, *found["validation"])
            print(f"{name:<46} {j + 1:9}  {score:15.1f}  {spent:14.1f}", flush=True)


if __name__ == "__main__":
    main()
