"""A shipped model in PyTorch and in onnxruntime, side by side.

    python benchmarks/inference.py [--backbone efficientnet_lite0] [--json FILE]

First the models alone, from resized pixels to probabilities, in batches of 64 images of 64 px. Then
all of ``predict``: files of 600 x 450 px, decoded in parallel while the model computes. Each model
has one thread.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from common import Result, finish, median_ratio, one_thread, photographs, pixels, side_by_side

from lmd.export.export import export_onnx
from lmd.model import Model, Normalise, Preprocessing, build_model
from lmd.model.files import ModelSpec, load_model, save_model
from lmd.predict.engines import OnnxEngine, TorchEngine
from lmd.predict.predictor import Predictor

SIZE, BATCH, CLASSES, FILES = 64, 64, 8, 512


def settle(model: Model, pre: Preprocessing) -> None:
    """Set BatchNorm statistics from batches; an untrained model is nearly constant without."""
    normalise = Normalise(pre.mean, pre.std, torch.device("cpu"))
    for norm in model.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all batches
    with torch.no_grad():
        for seed in range(1, 4):
            model.train()(normalise(torch.from_numpy(pixels(BATCH, SIZE, seed))))
    model.eval()


def measure(backbone: str, repeats: int) -> list[Result]:
    model, pre = build_model(backbone, "none", CLASSES, image_size=SIZE, seed=0)
    settle(model, pre)
    names = tuple(f"class {k}" for k in range(CLASSES))
    width = model.classifier.in_features
    spec = ModelSpec(names, backbone, "linear", width, pre, "none", (1,) * CLASSES)
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, Path(folder), spec)
        engines = {
            "onnxruntime": OnnxEngine(export_onnx(folder, Path(folder) / "m.onnx"), threads=1),
            "eager PyTorch": TorchEngine(*load_model(Path(folder))),
        }
    images = pixels(BATCH, SIZE)
    found = [engine.probabilities(images) for engine in engines.values()]
    assert np.ptp(found[0], axis=0).max() > 0.01, "all images look alike: nothing is compared"
    calls = {k: lambda e=e: [e.probabilities(images) for _ in range(3)] for k, e in engines.items()}
    seconds = side_by_side(calls, repeats)
    with tempfile.TemporaryDirectory() as folder:
        files = photographs(Path(folder), FILES)
        whole = {k: lambda e=e: Predictor(e).predict(files) for k, e in engines.items()}
        found += [call().probabilities for call in whole.values()]
        taken = side_by_side(whole, repeats)
    worst = max(float(np.abs(a - b).max()) for a, b in (found[:2], found[2:]))
    print(f"{backbone} at {SIZE} px, batches of {BATCH}, one thread, images/s:")
    print(f"  {'':15}{'model':>8}{'predict':>9}")
    for name in engines:
        model_rate = 3 * BATCH / statistics.median(seconds[name])
        print(f"  {name:15}{model_rate:8.0f}{FILES / statistics.median(taken[name]):9.0f}")
    alone = median_ratio(seconds["eager PyTorch"], seconds["onnxruntime"])
    ratio = median_ratio(taken["eager PyTorch"], taken["onnxruntime"])
    return [
        Result("inference: onnxruntime times as fast, model", alone, 1.25, True),
        Result("inference: onnxruntime times as fast, predict", ratio, 1.25, True),
        Result("inference: largest difference of a probability", worst, 1e-4, False),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="efficientnet_lite0")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json")
    options = parser.parse_args()
    one_thread()
    sys.exit(finish(measure(options.backbone, options.repeats), options.json))
