"""An EM iteration without the encoder's passes: the straightforward way and ours, side by side.

    python benchmarks/stage2.py [--repeats 3] [--json FILE]

K = 8, C = 512, 7000 features, R = 50 000. Both ways estimate class-balanced moments, average them,
calibrate the classifier on R K virtual features by one pass of SGD in batches of 352, and take FDC
forward and backward over 7000 features in batches of 128. ``argmin`` is the default of ``lmd``: it
finds the minimum of the same loss instead of making one pass. Everything runs in one thread.
"""

import argparse
import json
import statistics
import sys

import naive
import torch
from common import (
    Result,
    above,
    clock,
    finish,
    in_process,
    long_tailed_features,
    median_ratio,
    one_thread,
)
from torch import nn

from lmd.methods.lmd import descent
from lmd.methods.lmd.gaussians import ClassGaussians
from lmd.methods.lmd.icc import attraction_and_repulsion
from lmd.methods.lmd.vfc import enough_draws, virtual_features

N, K, C, R, BATCH, M_BATCH, RIDGE = 7000, 8, 512, 50_000, 128, 352, 1e-2
SGD = {"lr": 1e-5, "momentum": 0.9, "weight_decay": 1e-4}
# Rows of the epoch that the straightforward FDC is timed on; the rest would take minutes.
FDC_PART = 64


def first_guess() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(C, K)


class Naive:
    """State and steps of the straightforward way."""

    def __init__(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        self.features, self.labels = features, labels
        self.layer = first_guess()
        self.optimizer = torch.optim.SGD(self.layer.parameters(), **SGD)
        self.mean, self.covariance = naive.moments(*self._numpy(), K, RIDGE)

    def _numpy(self):
        return self.features.double().numpy(), self.labels.numpy()

    def moments(self) -> None:
        mean, covariance = naive.moments(*self._numpy(), K, RIDGE)
        self.mean = naive.average(self.mean, mean, 1)
        self.covariance = naive.average(self.covariance, covariance, 1)

    def calibrate(self) -> tuple[float, float]:
        """Seconds of drawing and of the pass."""
        drawn: list[torch.Tensor] = []
        first = clock(
            lambda: drawn.extend(naive.virtual_features(self.mean, self.covariance, R, 0))
        )
        second = clock(lambda: naive.sgd_epoch(*drawn, self.layer, self.optimizer, M_BATCH))
        return first, second

    def fdc(self, part: int = FDC_PART) -> None:
        x = self.features[:part].clone().requires_grad_()
        mean, covariance = torch.from_numpy(self.mean), torch.from_numpy(self.covariance)
        naive.fdc(x, self.labels[:part], mean.float(), covariance.float()).backward()


class Ours:
    """State and steps of ``lmd``."""

    def __init__(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        self.features, self.labels = features, labels
        self.layer = first_guess()
        self.velocity = (torch.zeros(K, C), torch.zeros(K))
        self.gaussians = ClassGaussians(K, C, ridge=RIDGE).update(features, labels)
        self.generator = torch.Generator().manual_seed(0)
        self.weight, self.bias = (p.detach() for p in self.layer.parameters())

    def moments(self) -> None:
        self.gaussians.update(self.features, self.labels, 1)

    def calibrate(self) -> None:
        sgd = descent.SGD(self.weight, self.bias, self.velocity, **SGD)
        descent.virtual_pass(self.gaussians, R, M_BATCH, self.generator, sgd)

    def argmin(self) -> None:
        counts = torch.full((K,), N // K)
        draws = min(R, enough_draws(K))
        problem = virtual_features(self.gaussians, counts, draws, self.generator)
        penalty = 3e-4 * problem.variance
        solution = problem.solve(self.weight, self.bias, penalty, shrinkage=0.5)
        self.weight, self.bias = solution.weight.float(), solution.bias.float()

    def fdc(self) -> None:
        batches = zip(self.features.split(BATCH), self.labels.split(BATCH), strict=True)
        for features, labels in batches:
            x = features.clone().requires_grad_()
            psi, phi = attraction_and_repulsion(x, labels, self.gaussians)
            (psi - phi).backward()


def memory(side: str) -> None:
    """Print time and peak memory of one iteration in this process as JSON."""

    def work(data: tuple[torch.Tensor, torch.Tensor]) -> None:
        way = {"naive": Naive, "sgd": Ours, "argmin": Ours}[side](*data)
        way.moments()
        (way.argmin if side == "argmin" else way.calibrate)()  # type: ignore[union-attr]
        way.fdc()

    # Loads the imports of the optimiser, which should not count.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()
    seconds, peak = above(lambda: long_tailed_features(N, K, C), work)
    print(json.dumps({"seconds": seconds, "mb": peak}))


def measure(repeats: int) -> list[Result]:
    data = long_tailed_features(N, K, C)
    slow, sgd, argmin = Naive(*data), Ours(*data), Ours(*data)
    argmin.argmin()  # only the first iteration starts from scratch; also loads imports
    sgd.fdc()
    parts: dict[str, dict[str, list[float]]] = {}

    def note(side: str, step: str, seconds: float) -> None:
        parts.setdefault(step, {}).setdefault(side, []).append(seconds)

    for turn in range(repeats):
        for side, way in (("naive", slow), ("sgd", sgd), ("argmin", argmin)):
            note(side, "moments, average", clock(way.moments))
            if side == "naive":
                drawn, descent = slow.calibrate()
                note(side, "virtual features", drawn)
                note(side, "classifier", descent)
                note(side, "FDC", clock(slow.fdc) * N / FDC_PART)
                continue
            note(side, "virtual features", 0.0)
            # Factors and inverses are computed, and timed, at their first use.
            note(side, "classifier", clock(way.argmin if side == "argmin" else way.calibrate))
            note(side, "FDC", clock(way.fdc))
        print(f"turn {turn + 1} of {repeats} done", file=sys.stderr)
    return _report(parts, repeats)


def _report(parts: dict[str, dict[str, list[float]]], repeats: int) -> list[Result]:
    sides = ("naive", "sgd", "argmin")
    print(f"median seconds of {repeats} turns; the naive FDC is measured on {FDC_PART} of {N}")
    print(f"{'':18}{'naive':>10}{'ours: sgd':>12}{'ours: argmin':>14}")
    totals = {side: [sum(p[side][i] for p in parts.values()) for i in range(repeats)]
              for side in sides}  # fmt: skip
    for step, seconds in (parts | {"all": totals}).items():
        row = [statistics.median(seconds[side]) for side in sides]
        print(f"{step:18}{row[0]:10.2f}{row[1]:12.3f}{row[2]:14.3f}")
    used = {side: in_process("stage2.py", "--memory", side)["mb"] for side in sides}
    print("peak memory, MB   " + "".join(f"{side} {used[side]:.0f}   " for side in sides))
    results = []
    for side in sides[1:]:
        ratio = median_ratio(totals["naive"], totals[side])
        results.append(Result(f"stage 2, {side}: times as fast", ratio, 60, True))
        share = used["naive"] / max(used[side], 1.0)
        results.append(Result(f"stage 2, {side}: times less memory", share, 4, True))
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", choices=("naive", "sgd", "argmin"))
    parser.add_argument("--json")
    options = parser.parse_args()
    one_thread()
    if options.memory:
        memory(options.memory)
    else:
        sys.exit(finish(measure(options.repeats), options.json))
