"""A training step of RRL in the real loop, compared with its bare passes on tensors in memory.

    python benchmarks/stage1.py [--backbone resnet18] [--steps 12] [--repeats 3] [--json FILE]

The bare passes are: student forward on weak and strong views, teacher forward on weak views, one
backward pass. The real step adds views, transfer, normalisation, relations, both optimisers and the
checks. The passes have one thread; a worker process makes the views, as always. The loader is also
measured alone: views per second and core.
"""

import argparse
import copy
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from common import Result, clock, finish, median_ratio, one_thread, pixels
from torch.nn import functional as F

from lmd.base.progress import Display
from lmd.data.loaders import training_batches
from lmd.data.table import Part
from lmd.methods.lmd.rrl import RRL, RRLSettings
from lmd.methods.stage import Task
from lmd.model import Normalise, build_model, channels_last
from lmd.runs.protocol import Protocol
from lmd.training.loop import Trainer

SIZE, BATCH, CLASSES = 64, 64, 8


class Bare:
    """The passes alone."""

    def __init__(self, backbone: str, images: Part, normalise: Normalise) -> None:
        model, _ = build_model(backbone, "none", CLASSES, image_size=SIZE, seed=0)
        self.student = channels_last(model).train()
        self.teacher = copy.deepcopy(model).eval()
        self.weak = normalise(torch.from_numpy(images[:BATCH]))
        self.strong = self.weak.flip(3)
        self.labels = torch.from_numpy(images.labels[:BATCH])

    def step(self) -> None:
        self.student.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.student(self.weak), self.labels)
        loss = loss + F.cross_entropy(self.student(self.strong), self.labels)
        with torch.no_grad():
            self.teacher(self.weak)
        loss.backward()


def real(backbone: str, images: Part) -> dict[str, float]:
    """Seconds of waiting and of steps, for one epoch of the real loop."""
    model, pre = build_model(backbone, "none", CLASSES, image_size=SIZE, seed=0)
    protocol = Protocol(
        image_size=SIZE, backbone=backbone, weights="none", epochs=1, batch_size=BATCH
    )
    cpu = torch.device("cpu")
    task = Task(torch.bincount(torch.from_numpy(images.labels), minlength=CLASSES), 0)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "checkpoint").mkdir()
        trainer = Trainer(
            model=model,
            stages=lambda: iter([RRL(model, task, RRLSettings(warmup=0.0))]),
            train=images,
            validation=None,
            protocol=protocol,
            normalise=Normalise(pre.mean, pre.std, cpu),
            folder=Path(folder),
            device=cpu,
            display=Display(quiet=True),
        )
        trainer.fit()
    return dict(trainer.progress.timings)


def loader_rate(size: int, view: str, images: int = 512) -> float:
    """Images per second that one core makes views of."""
    data = Part(pixels(images, size), np.arange(images), np.arange(images) % CLASSES)
    loader = training_batches(
        data, [None], views=(view,), batch_size=BATCH, seed=0, workers=0
    )  # fmt: skip
    start = time.perf_counter()
    for _ in loader:
        pass
    return images / (time.perf_counter() - start)


def measure(backbone: str, steps: int, repeats: int) -> list[Result]:
    places = np.arange(steps * BATCH)
    images = Part(pixels(len(places), SIZE), places, places % CLASSES)
    _, pre = build_model(backbone, "none", CLASSES, image_size=SIZE, seed=0)
    bare = Bare(backbone, images, Normalise(pre.mean, pre.std, torch.device("cpu")))
    bare.step()
    real(backbone, images.take(np.arange(BATCH)))  # loads what is lazy
    passes, whole, waits = [], [], []
    half = max(1, steps // 2)
    for turn in range(repeats):
        # Measured before and after, in case the machine gets faster or slower meanwhile.
        before = clock(lambda: [bare.step() for _ in range(half)])
        seconds = real(backbone, images)
        after = clock(lambda: [bare.step() for _ in range(half)])
        passes.append((before + after) / (2 * half))
        waits.append(seconds["waiting for batches"] / steps)
        whole.append(waits[-1] + seconds["stage 1 steps"] / steps)
        print(f"turn {turn + 1} of {repeats} done", file=sys.stderr)
    print(f"{backbone} at {SIZE} px, batch {BATCH}; median of {repeats} × {steps} steps, ms:")
    for name, values in (("bare passes", passes), ("real step", whole), ("of it waiting", waits)):
        print(f"  {name:14}{1000 * statistics.median(values):8.1f}")
    for size in (64, 224):
        rates = {view: loader_rate(size, view) for view in ("weak", "strong")}
        print(f"  views at {size} px, images/s and core: " + ", ".join(
            f"{view} {rate:.0f}" for view, rate in rates.items()))  # fmt: skip
    ratio = median_ratio(whole, passes)
    return [Result("stage 1: real step over bare passes", ratio, 1.15, False)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    one_thread()
    sys.exit(finish(measure(options.backbone, options.steps, options.repeats), options.json))
