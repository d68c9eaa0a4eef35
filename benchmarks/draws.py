"""How many draws per class the argmin of the M step needs with many classes.

    python benchmarks/draws.py [--classes 100]

Every solution is judged by its loss over 16 384 other draws, and by its predictions on features
that it has not seen: how many of them differ from those of the first solution.
"""

import argparse
import time

import torch
from common import long_tailed_features, one_thread

from lmd.methods.lmd.gaussians import ClassGaussians
from lmd.methods.lmd.vfc import DRAWS, Problem, Solution, enough_draws, virtual_features

CHANNELS, FEATURES, JUDGES = 512, 20_000, 16_384


def main(classes: int) -> None:
    features, labels = long_tailed_features(FEATURES, classes, CHANNELS)
    half = FEATURES // 2
    gaussians, counts = ClassGaussians(classes, CHANNELS), labels[:half].bincount()
    gaussians.update(features[:half], labels[:half])
    unseen, truth = features[half:].double(), labels[half:]

    def problem(draws: int, seed: int) -> Problem:
        generator = torch.Generator().manual_seed(seed)
        return virtual_features(gaussians, counts, draws, generator)

    judge = problem(JUDGES, 99)
    penalty = 3e-4 * judge.variance
    objective, _ = judge.at(0.5, False)

    @torch.no_grad()
    def loss(found: Solution) -> float:
        weight, bias = found.weight, found.bias + found.weight @ judge.centre
        return float(objective(weight, bias) + penalty / 2 * weight.square().sum())

    start = torch.zeros(classes, CHANNELS), torch.zeros(classes)
    print(f"K = {classes}, C = {CHANNELS}; lmd takes {enough_draws(classes)} draws of each class")
    print("  draws  seed  seconds  evaluations      loss  accuracy  other predictions")
    first: torch.Tensor | None = None
    for draws, seed in ((DRAWS, 0), (DRAWS, 1), *((DRAWS >> i, 2) for i in range(1, 5))):
        given, begun = problem(draws, seed), time.perf_counter()
        found = given.solve(*start, penalty, shrinkage=0.5)
        seconds = time.perf_counter() - begun
        predicted = (unseen @ found.weight.T + found.bias).argmax(1)
        first = predicted if first is None else first
        right = 100 * (predicted == truth).double().mean()
        other = 100 * (predicted != first).double().mean()
        print(
            f"{draws:7}{seed:6}{seconds:9.1f}{found.evaluations:13}{loss(found):10.5f}"
            f"{right:9.2f}%{other:18.2f}%",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=100)
    one_thread()
    main(parser.parse_args().classes)
