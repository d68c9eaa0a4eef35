"""`lmd.calibrate` on 100 000 x 1024 features of 20 classes, beside scikit-learn.

    python benchmarks/calibrate.py [--json FILE] [--threads 2]

Each side runs in a separate process. scikit-learn fits one LogisticRegression, with the penalty
that `lmd.calibrate` chose for its plain regression; `lmd.calibrate` fits, compares and scores all
candidates. The targets are for two cores that do nothing else. The seconds of the processor, which
other work disturbs less, are shown too.
"""

import argparse
import json
import sys
import time

import numpy as np
import torch
from common import Result, above, finish, in_process

N, K, C = 100_000, 20, 1024
SECONDS, MEGABYTES = 60, 3000


def data(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rectified features of overlapping classes, imbalance factor 100, and a split of 7 : 1 : 2."""
    rng, g = np.random.default_rng(0), torch.Generator().manual_seed(0)
    shares = 0.01 ** (np.arange(K) / (K - 1))
    labels = torch.from_numpy(rng.choice(K, n, p=shares / shares.sum()))
    mixing = torch.randn(C, C, generator=g) / C**0.5
    centres = 0.08 * torch.randn(K, C, generator=g)
    features = torch.empty(n, C)
    for rows in torch.arange(n).split(8192):
        noise = torch.randn(len(rows), C, generator=g)
        features[rows] = (noise @ mixing + centres[labels[rows]]).relu_()
    split = np.array(["train", "validation", "test"])[rng.choice(3, n, p=(0.7, 0.1, 0.2))]
    return features.numpy(), labels.numpy(), split


def ours(n: int) -> dict[str, float]:
    """Seconds and peak memory of `lmd.calibrate`, with the features themselves."""
    import lmd

    found = []

    def work(given: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        features, labels, split = given
        start = time.process_time()
        classifier = lmd.calibrate(features, labels, split=split)
        plain = next(row for row in classifier.candidates if row.key == "plain")
        found.extend([time.process_time() - start, plain.settings["penalty"]])

    seconds, peak = above(lambda: data(n), work)
    own = n * C * 4 / 2**20
    return {"seconds": seconds, "cpu": found[0], "mb": peak + own, "penalty": found[1]}


def theirs(n: int, penalty: float) -> dict[str, float]:
    """Seconds and peak memory of one LogisticRegression with the same penalty."""
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    found = []

    def work(given: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        features, labels, split = given
        start = time.process_time()
        x, y = features[split == "train"], labels[split == "train"]
        strength = penalty * float(x.var(0).sum()) * len(y)
        with threadpool_limits(torch.get_num_threads()):
            LogisticRegression(C=1 / strength, max_iter=1000).fit(x, y)
        found.append(time.process_time() - start)

    seconds, peak = above(lambda: data(n), work)
    return {"seconds": seconds, "cpu": found[0], "mb": peak + n * C * 4 / 2**20}


def measure(n: int, threads: int) -> list[Result]:
    mine = in_process("calibrate.py", "--side", "ours", "--rows", str(n), "--threads", str(threads))
    rows = {"lmd.calibrate, all candidates": mine}
    try:
        import sklearn  # noqa: F401
    except ImportError:
        print("scikit-learn is not installed")
    else:
        words = ["--side", "theirs", "--rows", str(n), "--penalty", str(mine["penalty"])]
        rows["scikit-learn, one LogisticRegression"] = in_process(
            "calibrate.py", *words, "--threads", str(threads)
        )
    print(f"{n} x {C} features of {K} classes, {threads} threads")
    print(f"{'':<38}{'seconds':>9}{'of CPU':>9}{'MB':>8}")
    for name, row in rows.items():
        print(f"{name:<38}{row['seconds']:9.1f}{row['cpu']:9.1f}{row['mb']:8.0f}")
    return [
        Result("calibrate: seconds", mine["seconds"], SECONDS, False),
        Result("calibrate: peak memory in MB", mine["mb"], MEGABYTES, False),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", choices=("ours", "theirs"))
    parser.add_argument("--rows", type=int, default=N)
    parser.add_argument("--penalty", type=float, default=1e-4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.side == "ours":
        print(json.dumps(ours(options.rows)))
    elif options.side == "theirs":
        print(json.dumps(theirs(options.rows, options.penalty)))
    else:
        sys.exit(finish(measure(options.rows, options.threads), options.json))
