"""A shipped model through PyTorch and through onnxruntime, side by side.

    python benchmarks/inference.py [--backbone efficientnet_lite0] [--json FILE]

Batches of 64 images of 64 px already resized: pixels in, probabilities out, one thread each.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from common import Result, finish, median_ratio, one_thread, pixels, side_by_side

from lmd.data.loaders import Normalise
from lmd.export import export_onnx
from lmd.model import Model, ModelSpec, Preprocessing, build_model, load_model, save_model
from lmd.predict import OnnxEngine, TorchEngine

SIZE, BATCH, CLASSES = 64, 64, 8


def settle(model: Model, pre: Preprocessing) -> None:
    """BatchNorm statistics of real batches: without them an untrained model is a constant."""
    normalise = Normalise.of(pre.mean, pre.std, torch.device("cpu"))
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
    worst = float(np.abs(found[0] - found[1]).max())
    assert np.ptp(found[0], axis=0).max() > 0.01, "all images look alike: nothing is compared"
    calls = {k: lambda e=e: [e.probabilities(images) for _ in range(3)] for k, e in engines.items()}
    seconds = side_by_side(calls, repeats)
    print(f"{backbone} at {SIZE} px, batches of {BATCH}, one thread, images/s:")
    for name, values in seconds.items():
        print(f"  {name:15}{3 * BATCH / statistics.median(values):8.0f}")
    ratio = median_ratio(seconds["eager PyTorch"], seconds["onnxruntime"])
    return [
        Result("inference: onnxruntime times as fast", ratio, 1.25, True),
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
