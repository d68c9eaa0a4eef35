"""How time and memory of stage 2 grow with N, K, C and R: measured, and by a cost model.

    python benchmarks/growth.py [--json FILE]

Every point runs in a process of its own, in one thread. The model has one constant for each kind
of work (seconds for a unit of it: the median of the measured points), so where it agrees with the
measurements the formula is right, and the points too large to run here are extended from it.
"""

import argparse
import json
import statistics
import sys

import torch
from common import Result, above, clock, finish, in_process, long_tailed_features, one_thread

from lmd.gaussians import ClassGaussians
from lmd.methods.lmd.calibrate import DRAWS, sgd_pass
from lmd.methods.lmd.icc import fdc_loss
from lmd.methods.lmd.selection import VirtualFeatures
from lmd.methods.lmd.virtual_pass import pays, virtual_pass

M_BATCH, BATCH = 352, 128
SGD = {"lr": 1e-5, "momentum": 0.9, "weight_decay": 1e-4}
Point = tuple[int, int, int, int]  # N, K, C, R

MEASURED: tuple[Point, ...] = (
    (1_000, 8, 512, 5_000), (7_000, 8, 512, 5_000), (100_000, 8, 512, 5_000),
    (7_000, 8, 512, 50_000), (7_000, 23, 512, 5_000), (7_000, 100, 512, 500),
    (7_000, 8, 2048, 5_000),
)  # fmt: skip
EXTENDED: tuple[Point, ...] = (
    (1_000_000, 8, 512, 50_000), (7_000, 8, 512, 500_000), (7_000, 23, 512, 50_000),
    (7_000, 100, 512, 50_000), (7_000, 8, 2048, 50_000), (7_000, 100, 2048, 50_000),
    (1_000_000, 100, 2048, 500_000),
)  # fmt: skip


def work(n: int, k: int, c: int, r: int) -> dict[str, float]:
    """How much there is to do of each kind."""
    batches = r * k / M_BATCH
    if pays(k, c, M_BATCH):
        # Colour K (K - 1) rows for each batch, beside small matrices.
        descent = {"sgd, in logits": batches * (k * (k - 1) * c * c + 4e6)}
    else:
        descent = {"sgd, on features": r * k * (c * c + 100 * c)}
    return {
        "moments": n * c * c + 4 * k * c * c,
        "argmin": k * k * c * c + 6 * c**3 / 40 + 40 * DRAWS * k * k,
        **descent,
        "FDC": k * c**3 + 2 * n * c * c + 10 * n * c,
    }


def bytes_of(n: int, k: int, c: int, r: int) -> float:
    """Peak above the features: moments, new ones and inverses; a class's rows; the draws."""
    return 4 * (3 * k * c * c + n * c / k) + 8 * 8 * DRAWS * k * k + 4 * 3 * 4096 * c


def run_point(n: int, k: int, c: int, r: int) -> dict[str, float]:
    """Seconds of each kind of work, and peak memory."""
    seconds: dict[str, float] = {}
    generator = torch.Generator().manual_seed(0)
    torch.optim.LBFGS([torch.zeros(1, requires_grad=True)])  # its imports are no part of this

    def body(data: tuple[torch.Tensor, torch.Tensor]) -> None:
        features, labels = data
        gaussians = ClassGaussians(k, c)
        seconds["moments"] = clock(lambda: gaussians.fit(features, labels))
        weight, bias = torch.randn(k, c, generator=generator) / c, torch.zeros(k)
        evaluations = []

        def solve() -> None:
            problem = VirtualFeatures.of(gaussians, labels.bincount(), DRAWS, generator)
            solution = problem.shrunk(0.5).solve(weight, bias, 3e-4 * problem.variance)
            evaluations.append(solution.evaluations)

        # By evaluation: how many are needed depends on the data, not on their number.
        seconds["argmin"] = clock(solve) / evaluations[0]
        batches = zip(features.split(BATCH), labels.split(BATCH), strict=True)

        def fdc() -> None:
            for x, y in batches:
                fdc_loss(x.clone().requires_grad_(), y, gaussians).backward()

        seconds["FDC"] = clock(fdc)
        gaussians.factors()
        velocity = torch.zeros_like(weight), torch.zeros_like(bias)
        drawn = r, M_BATCH, generator
        if pays(k, c, M_BATCH):
            descend = lambda: virtual_pass(gaussians, *drawn, weight, bias, velocity, **SGD)  # noqa: E731
            seconds["sgd, in logits"] = clock(descend)
        else:
            batches_of = gaussians.batches(*drawn)
            descend = lambda: sgd_pass(batches_of, weight, bias, velocity, **SGD)  # noqa: E731
            seconds["sgd, on features"] = clock(descend)

    _, peak = above(lambda: long_tailed_features(n, k, c), body)
    return seconds | {"mb": peak}


def measure() -> list[Result]:
    points = {}
    for point in MEASURED:
        points[point] = in_process("growth.py", "--point", *map(str, point))
        print(f"{point} done", file=sys.stderr)
    kinds = ("moments", "argmin", "sgd, in logits", "sgd, on features", "FDC")
    unit = {
        kind: statistics.median(found[kind] / work(*p)[kind]
                                for p, found in points.items() if kind in found)
        for kind in kinds
    }  # fmt: skip
    print("seconds, measured (by the cost model); argmin: of one of its 10 to 30 evaluations")
    print(f"{'N':>9}{'K':>5}{'C':>6}{'R':>8}" + "".join(f"{kind:>20}" for kind in kinds) + "   MB")
    errors, spaces = [], []
    for point in MEASURED + EXTENDED:
        found, asked = points.get(point, {}), work(*point)
        cells = []
        for kind in kinds:
            model = asked.get(kind, 0.0) * unit[kind]
            real = f"{found[kind]:.3g} " if kind in found else ""
            cells.append(f"{real}({model:.3g})" if kind in asked else "")
            if kind in found:
                errors.append(max(found[kind] / model, model / found[kind]))
        space = bytes_of(*point) / 2**20
        if found:
            spaces.append(max(found["mb"] / space, space / found["mb"]))
        real = f"{found['mb']:.0f} " if found else ""
        n, k, c, r = point
        row = f"{n:9}{k:5}{c:6}{r:8}" + "".join(f"{cell:>20}" for cell in cells)
        print(f"{row}   {real}({space:.0f})")
    few, many = points[7_000, 8, 512, 5_000]["mb"], points[7_000, 8, 512, 50_000]["mb"]
    return [
        Result("growth: memory with ten times R", many / few, 1.1, False),
        Result("growth: cost model, median factor off", statistics.median(errors), 2, False),
        Result("growth: memory model, median factor off", statistics.median(spaces), 2, False),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--point", nargs=4, type=int, metavar=("N", "K", "C", "R"))
    parser.add_argument("--json")
    options = parser.parse_args()
    one_thread()
    if options.point:
        print(json.dumps(run_point(*options.point)))
    else:
        sys.exit(finish(measure(), options.json))
