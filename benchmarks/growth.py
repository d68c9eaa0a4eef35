"""How time and memory of stage 2 grow with N, K, C and R: measured, and by a cost model.

    python benchmarks/growth.py [--json FILE]

Every point runs in a separate process with one thread. For the two points that differ only in R,
peak memory is the median of several processes, since a single one varies by a tenth. The cost model
is a sum of terms that follow from the algorithms, each with a constant. The constants are fitted to
small points and checked on larger ones. Points too large to run here are extrapolated.
"""

import argparse
import json
import statistics
import sys
from functools import partial

import numpy as np
import torch
from common import Result, above, clock, finish, in_process, long_tailed_features, one_thread
from scipy.optimize import nnls

from lmd.methods.lmd.descent import SGD, pays, sgd_pass, virtual_pass
from lmd.methods.lmd.gaussians import ClassGaussians
from lmd.methods.lmd.icc import attraction_and_repulsion
from lmd.methods.lmd.vfc import LOGITS, enough_draws, virtual_features

M_BATCH, BATCH = 352, 128
STEPS = {"lr": 1e-5, "momentum": 0.9, "weight_decay": 1e-4}
Point = tuple[int, int, int, int]  # N, K, C, R

FITTED: tuple[Point, ...] = (
    (1_000, 8, 512, 5_000), (7_000, 8, 512, 5_000), (100_000, 8, 512, 20_000),
    (7_000, 4, 512, 20_000), (7_000, 13, 512, 5_000), (7_000, 23, 512, 2_000),
    (7_000, 50, 512, 1_000), (2_000, 4, 1024, 5_000), (7_000, 8, 1024, 5_000),
    (2_000, 23, 1024, 1_000),
)  # fmt: skip
CHECKED: tuple[Point, ...] = (
    (1_000_000, 8, 512, 5_000), (7_000, 8, 512, 500_000), (7_000, 23, 512, 20_000),
    (7_000, 100, 512, 5_000), (7_000, 8, 2048, 5_000), (7_000, 23, 2048, 1_000),
)  # fmt: skip
EXTENDED: tuple[Point, ...] = (
    (7_000, 23, 512, 50_000), (7_000, 100, 512, 50_000), (7_000, 8, 2048, 500_000),
    (1_000_000, 23, 2048, 50_000), (1_000_000, 100, 2048, 500_000),
)  # fmt: skip
# Only R differs, by a factor of a hundred: memory must not grow with it.
PAIR: tuple[Point, Point] = ((7_000, 8, 512, 5_000), (7_000, 8, 512, 500_000))
TURNS = 5
KINDS = ("moments", "argmin", "sgd, in logits", "sgd, on features", "FDC")


def terms(n: int, k: int, c: int, r: int) -> dict[str, tuple[float, ...]]:
    """The terms whose sum, up to constants, is the time of each kind and the memory (``mb``)."""
    batches = r * k / M_BATCH
    if pays(k, c, M_BATCH):
        # K (K - 1) coloured rows for each batch, and small matrices.
        descent = {"sgd, in logits": (batches * k * (k - 1) * c * c, batches * k**3, batches)}
    else:
        descent = {"sgd, on features": (r * k * c * c, r * k * c)}
    draws = min(r, enough_draws(k))
    logits = min(draws * k * k, LOGITS)
    return {
        "moments": (n * c * c, n * c, k * c * c),
        "argmin": (k * k * c * c, c**3, draws * k**3, draws * k * k),
        **descent,
        "FDC": (k * c**3, n * c * c, n * c),
        # Covariances, the rows of a class, the logits of the draws, what libraries take at first.
        "mb": (k * c * c, n * c / k, logits, 1.0),
    }


def fit(points: dict[Point, dict[str, float]]) -> dict[str, np.ndarray]:
    """Constants for every kind, none below zero, with the least relative error."""
    constants = {}
    for kind in (*KINDS, "mb"):
        rows = [(terms(*p)[kind], found[kind]) for p, found in points.items() if kind in found]
        design = np.array([[t / seen for t in row] for row, seen in rows])
        scale = design.max(0)
        constants[kind] = nnls(design / scale, np.ones(len(rows)))[0] / scale
    return constants


def run_point(n: int, k: int, c: int, r: int) -> dict[str, float]:
    """Seconds of each kind of work, and peak memory."""
    seconds: dict[str, float] = {}
    generator = torch.Generator().manual_seed(0)
    torch.optim.LBFGS([torch.zeros(1, requires_grad=True)])  # loads its imports

    def body(data: tuple[torch.Tensor, torch.Tensor]) -> None:
        features, labels = data
        gaussians = ClassGaussians(k, c)
        seconds["moments"] = clock(lambda: gaussians.update(features, labels))
        weight, bias = torch.randn(k, c, generator=generator) / c, torch.zeros(k)
        evaluations = []

        def solve() -> None:
            draws = min(r, enough_draws(k))
            problem = virtual_features(gaussians, labels.bincount(), draws, generator)
            penalty = 3e-4 * problem.variance
            solution = problem.solve(weight, bias, penalty, shrinkage=0.5)
            evaluations.append(solution.evaluations)

        # Per evaluation: how many are needed depends on the data, not on its size.
        seconds["argmin"] = clock(solve) / evaluations[0]
        batches = zip(features.split(BATCH), labels.split(BATCH), strict=True)

        def fdc() -> None:
            for x, y in batches:
                psi, phi = attraction_and_repulsion(x.clone().requires_grad_(), y, gaussians)
                (psi - phi).backward()

        seconds["FDC"] = clock(fdc)
        gaussians.factors()
        velocity = torch.zeros_like(weight), torch.zeros_like(bias)
        drawn = r, M_BATCH, generator
        if pays(k, c, M_BATCH):
            kind, descend = "sgd, in logits", partial(virtual_pass, gaussians, *drawn)
        else:
            kind, descend = "sgd, on features", partial(sgd_pass, gaussians.batches(*drawn))
        seconds[kind] = clock(lambda: descend(SGD(weight, bias, velocity, **STEPS)))

    _, peak = above(lambda: long_tailed_features(n, k, c), body)
    return seconds | {"mb": peak}


def in_turn(point: Point) -> dict[str, float]:
    """Measure a point in a separate process."""
    found = in_process("growth.py", "--point", *map(str, point))
    print(f"{point} done", file=sys.stderr)
    return found


def measure() -> list[Result]:
    points = {point: in_turn(point) for point in FITTED + CHECKED}
    peaks = {point: [points[point]["mb"]] for point in PAIR}
    for _ in range(TURNS - 1):
        for point in PAIR:
            peaks[point].append(in_turn(point)["mb"])
    few, many = (statistics.median(peaks[point]) for point in PAIR)
    for point, peak in zip(PAIR, (few, many), strict=True):
        points[point]["mb"] = peak
    constants = fit({point: points[point] for point in FITTED})
    print("seconds, measured (by the cost model); argmin: of one of its 10 to 100 evaluations")
    print(f"{'N':>9}{'K':>5}{'C':>6}{'R':>8}" + "".join(f"{k:>20}" for k in KINDS) + f"{'MB':>16}")
    off: dict[str, list[float]] = {"seconds": [], "mb": []}
    for part, listed in (("fitted", FITTED), ("checked", CHECKED), ("extended", EXTENDED)):
        print(part)
        for point in listed:
            found, asked = points.get(point, {}), terms(*point)
            cells = []
            for kind in (*KINDS, "mb"):
                if kind not in asked:
                    cells.append("")
                    continue
                model = float(np.dot(asked[kind], constants[kind]))
                real = f"{found[kind]:.3g} " if found else ""
                cells.append(f"{real}({model:.3g})")
                if part == "checked":
                    factor = max(found[kind] / model, model / found[kind])
                    off["mb" if kind == "mb" else "seconds"].append(factor)
            n, k, c, r = point
            row = "".join(f"{cell:>20}" for cell in cells[:-1])
            print(f"{n:9}{k:5}{c:6}{r:8}{row}{cells[-1]:>16}")
    print("peak MB of R = 5 000 and of R = 500 000, each time: " + "; ".join(
        ", ".join(f"{mb:.0f}" for mb in peaks[point]) for point in PAIR))  # fmt: skip
    worst = ", ".join(f"{name} {max(values):.2f}" for name, values in off.items())
    print(f"the cost model is off by a factor of at most: {worst}")
    return [
        Result("growth: memory with a hundred times R", many / few, 1.1, False),
        Result(
            "growth: time model, median factor off", statistics.median(off["seconds"]), 2, False
        ),
        Result("growth: memory model, median factor off", statistics.median(off["mb"]), 2, False),
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
